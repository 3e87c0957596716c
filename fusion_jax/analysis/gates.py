"""How far lexical shortcuts are open: by layer, by position, by frequency.

Emelin et al. (WMT 2019), appendix A.3: 'we were unable to discern any distinct
patterns in the activations of the individual gates'.

Axis letters: B batch, T positions, D model width, L layers, K gates (of keys
and of values), M moments, P parts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fusion_jax import figures
from fusion_jax.analysis.passes import sum_over_text, watched
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.text_parts import (
  LABELS,
  by_part,
  members_of,
  moments,
  positions_by_part,
)
from fusion_jax.analysis.view import Numbers, View
from fusion_jax.config import ModelConfig, Side

KINDS = 'key_gate', 'value_gate'


class Place(NamedTuple):
  """An attention of a model that has gates.

  Attributes:
    side: Side of the stack.
    attention: 'self_attention' or 'cross_attention'.
    text: Side of the positions that the gates belong to.
  """

  side: Side
  attention: str
  text: Side

  @property
  def name(self) -> str:
    """The name to display: 'decoder cross-attention'."""
    return f'{self.side} {self.attention.replace("_", "-")}'


def gate_places(config: ModelConfig) -> list[Place]:
  """Return the attentions of a model that have gates."""
  encoder, decoder = config.encoder.shortcut, config.decoder.shortcut
  places = []
  if encoder.source != 'none':
    places.append(Place('encoder', 'self_attention', 'encoder'))
  if decoder.source != 'none' and decoder.where != 'cross':
    places.append(Place('decoder', 'self_attention', 'decoder'))
  if decoder.source != 'none' and decoder.where != 'self':
    places.append(Place('decoder', 'cross_attention', 'encoder'))
  return places


def gate_numbers(analysed: RunWithText) -> Numbers:
  """Measure the mean and deviation of the gates of keys and values."""
  run, places = analysed.run, gate_places(analysed.run.config.model)
  members = members_of(analysed)

  def sums(parameters, batch):
    _, kept = watched(run.model, parameters, batch, 'views')
    member = members(batch)
    return [
      _sums(
        _gates(kept['views'][place.side], place.attention),
        member[place.text],
      )
      for place in places
    ]

  totals = sum_over_text(analysed, sums)
  return {
    place.name: _numbers(*total)
    for place, total in zip(places, totals, strict=True)
  }


def _gates(
  shown: Mapping[str, Any], attention: str
) -> list[Float[Array, 'L B T D']]:
  """Return the gates of keys and of values."""
  if 'layers' in shown:
    return [shown['layers'][attention][kind] for kind in KINDS]
  names = [name for name in shown if name.startswith('layer_')]
  layers = [
    shown[name][attention]
    for name in sorted(names, key=lambda name: int(name[len('layer_') :]))
    if attention in shown[name]
  ]
  return [jnp.stack([layer[kind] for layer in layers]) for kind in KINDS]


def _sums(
  gates: list[Float[Array, 'L B T D']], member: Float[Array, 'B T P']
) -> tuple[Float[Array, 'P L 2 2'], Float[Array, ' P']]:
  """Sum the means and mean squares over features; count the positions."""
  both = jnp.stack(gates)
  features = jnp.stack([both.mean(-1), jnp.square(both).mean(-1)])
  sums = jnp.einsum('BTP,MKLBT->PLKM', member, features)
  return sums, member.sum((0, 1))


def _numbers(
  sums: Float[np.ndarray, 'P L 2 2'], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  found = moments(sums, counts)
  kinds: dict[str, Any] = {
    kind: {name: by_part(own[..., k], 'layer') for name, own in found.items()}
    for k, kind in enumerate(KINDS)
  }
  return kinds | {'positions': positions_by_part(counts)}


def draw(numbers: Numbers) -> figures.Figure:
  """Draw means above and deviations below, by layer, position, frequency.

  Those by position and frequency are averaged over the layers.
  """
  figure, axes = figures.panels(6, columns=3)
  panels = iter(axes)
  for moment in ('mean', 'deviation'):
    for part, name in {'layer': 'layer', **LABELS}.items():
      curves = {
        f'{place}, {kind[: -len("_gate")]}s': _curve(own[kind][moment][part])
        for place, own in numbers.items()
        for kind in KINDS
      }
      panel = next(panels)
      figures.draw_lines(panel, curves, name, f'{moment} of the gates')
      panel.set_ylim(0, 1)
  figures.share_legend(figure, axes)
  return figure


def _curve(
  values: Sequence[Any],
) -> tuple[list[int], list[float]]:
  """Number values from 1, and average those that have one value per layer."""
  curve = [
    (number, float(np.mean(value)))
    for number, value in enumerate(values, start=1)
    if not (isinstance(value, list) and None in value)
  ]
  return [x for x, _ in curve], [y for _, y in curve]


def summary(numbers: Numbers) -> str:
  """List the mean gates of every attention."""
  said = '; '.join(
    f'{place} {np.mean(own["key_gate"]["mean"]["layer"]):.3f} of keys and '
    f'{np.mean(own["value_gate"]["mean"]["layer"]):.3f} of values'
    for place, own in numbers.items()
  )
  return f'Mean gates, where 1 takes the shortcut: {said}.'


VIEW = View(
  name='gates',
  title='How far the shortcuts are open',
  source='Emelin et al. 2019, Eq. 5-12 and appendix A.3',
  reading=(
    'Gates of keys and values, 1 takes the shortcut; over positions and '
    'features, by layer, by position in the sentence, and by how frequent the '
    'subword that is read is in this text.'
  ),
  measure=gate_numbers,
  draw=draw,
  summary=summary,
  applies=lambda config: bool(gate_places(config)),
  needs='a model with shortcuts (shortcut.source)',
)
