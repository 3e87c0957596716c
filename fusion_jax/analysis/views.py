"""The table of all views, and their files in the folder of a run."""

import dataclasses
import importlib.resources
import json
import tomllib
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from fusion_jax import figures
from fusion_jax.analysis import (
  ablations,
  curves,
  exploitation,
  groups,
  probes,
  similarity,
  sown,
  weight_views,
)
from fusion_jax.analysis.run_with_text import Numbers, RunWithText, sides_of
from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.files import read_json, write_errors, write_whole


@dataclasses.dataclass(frozen=True)
class View:
  """One way to look at a run: what it measures, draws and says.

  The figure is explained by `reading`, and `needs` says to what models the view
  applies; a slow view takes minutes.
  """

  name: str
  measure: Callable[[RunWithText], Numbers]
  draw: Callable[[Numbers], figures.Figure]
  summary: Callable[[Numbers], str]
  title: str
  source: str
  reading: str
  applies: Callable[[ModelConfig], bool] = lambda config: True
  needs: str = 'any model'
  reads: Literal['text', 'metrics', 'parameters'] = 'text'
  slow: bool = False

  def look(self, analysed: RunWithText) -> dict[str, Any]:
    """Measure and summarise a run: the content of its JSON file."""
    numbers = self.measure(analysed)
    return {
      'view': self.name,
      'source': self.source,
      'summary': self.summary(numbers),
      'numbers': numbers,
    }


# The words of each view, and its fields that are no functions.
_FILE = importlib.resources.files(__package__).joinpath('views.toml')
_WORDS = tomllib.loads(_FILE.read_text(encoding='utf-8'))


def _view(
  name: str,
  module: types.ModuleType,
  applies: Callable[[ModelConfig], bool] = lambda config: True,
) -> View:
  """Return a view, which a module measures, draws and sums up by its name."""
  names = name, f'draw_{name}', f'{name}_summary'
  measure, draw, summary = (getattr(module, each) for each in names)
  words: dict[str, Any] = _WORDS[name]
  return View(name, measure, draw, summary, **words, applies=applies)


def _fused(*schemes: str) -> Callable[[ModelConfig], bool]:
  return lambda config: bool(sides_of(config, *schemes))


_VIEWS = (
  _view('similarity', similarity),
  _view('gradients', curves),
  _view('curves', curves),
  _view('exploitation', exploitation, exploitation.has_nodes),
  _view('couplings', sown, _fused(*sown.ROUTING)),
  _view('hops', sown, _fused('hops')),
  _view('gates', sown, lambda config: bool(sown.gate_places(config))),
  _view('groups', groups, _fused('gtrans')),
  _view(
    'group_bleu', groups, lambda config: 'decoder' in sides_of(config, 'gtrans')
  ),
  _view('layer_weights', weight_views, weight_views.has_layer_weights),
  _view('position_weights', weight_views, weight_views.has_position_weights),
  _view('surface', sown, sown.mixes_predictions),
  _view('ablations', ablations),
  _view('probes', probes),
)
VIEWS: Mapping[str, View] = types.MappingProxyType(
  {view.name: view for view in _VIEWS}
)


def views_of(config: ModelConfig) -> list[View]:
  """Return the views that apply to a model, in the order of the table."""
  return [view for view in VIEWS.values() if view.applies(config)]


def check_view(view: View, config: ModelConfig, name: str) -> None:
  """Refuse a view that does not apply to a model."""
  if not view.applies(config):
    listed = ', '.join(fitting.name for fitting in views_of(config))
    raise InputError(
      f'{view.name}: needs {view.needs}, which {name} is not; its views are '
      f'{listed}'
    )


def look_at(view: View, analysed: RunWithText, folder: Path) -> Numbers:
  """Apply a view to a run; write and return its content, and its figure."""
  if view.reads != 'metrics':
    analysed.check_finite()
  content = view.look(analysed)
  figure = view.draw(content['numbers'])
  path = folder / f'{view.name}.json'
  with write_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
    # The numbers are there only with their own figure.
    path.unlink(missing_ok=True)
  figures.save(figure, folder / view.name)
  keep(path, analysed, content, analysed.digest if view.reads == 'text' else '')
  return content


def keep(
  path: Path, analysed: RunWithText, values: Mapping[str, Any], key: str
) -> None:
  """Write a result as JSON, with what it was made of."""
  about: dict[str, Any] = {
    'key': key,
    'run': str(analysed.workdir),
    'step': analysed.run.step,
    'steps': list(analysed.run.steps),
    'text': dataclasses.asdict(analysed.choice),
    **values,
  }
  text = json.dumps(about, ensure_ascii=False, indent=1, allow_nan=False)
  write_whole(path, text.encode() + b'\n')


def kept(path: Path, analysed: RunWithText) -> dict[str, Any] | None:
  """Read a result that `keep` wrote, if it was made of the same inputs."""
  try:
    result = read_json(path, dict[str, Any])
  except InputError:
    return None
  return result if result.get('key') == analysed.digest else None
