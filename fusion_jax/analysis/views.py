"""The table of all views, and their files in the folder of a run."""

import dataclasses
import importlib.resources
import json
import tomllib
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fusion_jax import figures
from fusion_jax.analysis import (
  ablations,
  curves,
  exploitation,
  probes,
  similarity,
  sown_figures,
  sown_quantities,
  sown_weights,
)
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import Numbers, View, ViewResult, sides_of
from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.files import read_json, write_errors, write_whole

# Titles, papers and words of the views by name.
_FILE = importlib.resources.files(__package__).joinpath('views.toml')
_WORDS = tomllib.loads(_FILE.read_text(encoding='utf-8'))


def _view(
  name: str,
  measure: Callable[[RunWithText], Numbers],
  draw: Callable[[Numbers], figures.Figure],
  summary: Callable[[Numbers], str],
  **options: Any,
) -> View:
  """Return a view with its words."""
  words: dict[str, Any] = _WORDS[name]
  return View(name, measure, draw, summary, **words | options)


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
  _view(
    'couplings',
    sown_quantities.couplings,
    sown_figures.couplings,
    sown_figures.couplings_summary,
    applies=lambda config: bool(sides_of(config, *sown_quantities.ROUTING)),
  ),
  _view(
    'hops',
    sown_quantities.hop_attention,
    sown_figures.hops,
    sown_figures.hops_summary,
    applies=lambda config: bool(sides_of(config, 'hops')),
  ),
  _view(
    'gates',
    sown_quantities.gates,
    sown_figures.gates,
    sown_figures.gates_summary,
    applies=lambda config: bool(sown_quantities.gate_places(config)),
  ),
  _view(
    'groups',
    sown_quantities.group_weights,
    sown_figures.groups,
    sown_figures.groups_summary,
    applies=lambda config: bool(sides_of(config, 'gtrans')),
  ),
  _view(
    'group_bleu',
    ablations.group_scores,
    ablations.draw_groups,
    ablations.groups_summary,
    applies=lambda config: 'decoder' in sides_of(config, 'gtrans'),
  ),
  _view(
    'layer_weights',
    sown_weights.layer_weights,
    sown_figures.layer_weights,
    sown_figures.layer_weights_summary,
    applies=sown_weights.has_layer_weights,
  ),
  _view(
    'position_weights',
    sown_weights.position_weights,
    sown_figures.position_weights,
    sown_figures.position_weights_summary,
    applies=sown_weights.has_position_weights,
  ),
  _view(
    'surface',
    sown_quantities.surface,
    sown_figures.surface,
    sown_figures.surface_summary,
    applies=sown_quantities.mixes_predictions,
  ),
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


def look_at(view: View, analysed: RunWithText, folder: Path) -> ViewResult:
  """Apply a view to a run, and write VIEW.json, VIEW.png and VIEW.svg."""
  if view.reads != 'metrics':
    analysed.check_finite()
  result = view.look(analysed)
  path = folder / f'{view.name}.json'
  with write_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
    # The numbers are there only with their own figure.
    path.unlink(missing_ok=True)
  figures.save(result.figure, folder / view.name)
  values = {
    'view': view.name,
    'source': view.source,
    'summary': result.summary,
    'numbers': result.numbers,
  }
  keep(path, analysed, values, analysed.digest if view.reads == 'text' else '')
  return result


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
