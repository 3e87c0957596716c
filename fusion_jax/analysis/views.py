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
  probes,
  similarity,
  sown_figures,
  sown_weights,
)
from fusion_jax.analysis import sown_quantities as sown
from fusion_jax.analysis.run_with_text import Numbers, RunWithText, sides_of
from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.files import read_json, write_errors, write_whole


@dataclasses.dataclass(frozen=True)
class View:
  """One way to look at a run: what it measures, draws and says.

  Attributes:
    name: Name of the subcommand and of the files.
    reading: Explanation of the figure, in one or two sentences.
    needs: Models that the view applies to, in words, for a message.
    slow: Whether the view takes minutes.
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


def _view(name: str, *functions: Any, **options: Any) -> View:
  words: dict[str, Any] = _WORDS[name]
  return View(name, *functions, **words | options)


def _sown(
  name: str,
  measure: Callable[[RunWithText], Numbers],
  applies: Callable[[ModelConfig], bool],
) -> View:
  """Return a view of what schemes sow, drawn by the functions of its name."""
  draw = getattr(sown_figures, name)
  summary = getattr(sown_figures, f'{name}_summary')
  return _view(name, measure, draw, summary, applies=applies)


def _fused(*schemes: str) -> Callable[[ModelConfig], bool]:
  return lambda config: bool(sides_of(config, *schemes))


_VIEWS = (
  _view(
    'similarity', similarity.similarity, similarity.draw, similarity.summary
  ),
  _view(
    'gradients',
    curves.gradient_norms,
    curves.draw_gradients,
    curves.gradient_summary,
  ),
  _view('curves', curves.curves, curves.draw, curves.summary),
  _view(
    'exploitation',
    exploitation.exploitation,
    exploitation.draw,
    exploitation.summary,
    applies=exploitation.has_nodes,
  ),
  _sown('couplings', sown.couplings, _fused(*sown.ROUTING)),
  _sown('hops', sown.hop_attention, _fused('hops')),
  _sown('gates', sown.gates, lambda config: bool(sown.gate_places(config))),
  _sown('groups', sown.group_weights, _fused('gtrans')),
  _view(
    'group_bleu',
    ablations.group_scores,
    ablations.draw_groups,
    ablations.groups_summary,
    applies=lambda config: 'decoder' in sides_of(config, 'gtrans'),
  ),
  _sown(
    'layer_weights', sown_weights.layer_weights, sown_weights.has_layer_weights
  ),
  _sown(
    'position_weights',
    sown_weights.position_weights,
    sown_weights.has_position_weights,
  ),
  _sown('surface', sown.surface, sown.mixes_predictions),
  _view('ablations', ablations.measure, ablations.draw, ablations.summary),
  _view('probes', probes.measure, probes.draw, probes.summary),
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
  }
  text = json.dumps(
    about | dict(values), ensure_ascii=False, indent=1, allow_nan=False
  )
  write_whole(path, text.encode() + b'\n')


def kept(path: Path, analysed: RunWithText) -> dict[str, Any] | None:
  """Read a result that `keep` wrote, if it was made of the same inputs."""
  try:
    result = read_json(path, dict[str, Any])
  except InputError:
    return None
  return result if result.get('key') == analysed.digest else None
