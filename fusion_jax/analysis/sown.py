"""What single schemes sow: hops, couplings, gates and predictions.

Papers whose quantities these are:

- hops: Wang et al. (COLING 2018), Fig. 5
- couplings: Dou et al. (AAAI 2019), Fig. 4 and section 4.3.4
- gates: Emelin et al. (WMT 2019), appendix A.3: 'we were unable to discern any
  distinct patterns in the activations of the individual gates'
- surface: Liu et al. (ICLR 2021)

Axis letters: B batch, T positions, L layers, P hops or parts of the text, I
iterations, N output capsules, D model width, K kinds, M moments, Q quantities.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fusion_jax import figures
from fusion_jax.analysis import passes
from fusion_jax.analysis.run_with_text import (
  SIDES,
  Numbers,
  RunWithText,
  TextPair,
  sides_of,
)
from fusion_jax.config import ModelConfig, Side
from fusion_jax.data.batching import Batch, Shape, assemble
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.fusion.mixture import at_positions
from fusion_jax.fusion.routing import coupling_diversity, coupling_entropy
from fusion_jax.fusion.scheme import scheme_of

ROUTING = 'dynamic_routing', 'em_routing'
_GATES = 'key_gate', 'value_gate'
# Section 4.3.4 of Dou et al. (2019), with 6 layers and 512 capsules; the side
# is not named.
_PAPER = {
  'capsules': 512,
  'uniform_entropy': math.log(512),
  'entropy': [6.24, 5.93, 5.86],
  'diversity': [0.0, 0.09, 0.18],
}
# Number of sentences whose attention is given word by word.
_SENTENCES = 5
# Most subwords in the figure of the hops, so that they stay readable.
_MOST_PIECES = 36
# Width and height of a panel in inches, at which 512 capsules have a pixel
# each.
_COUPLINGS = (6.0, 2.8)
# The side whose positions an attention with gates reads.
_TEXTS: Mapping[str, Side] = {
  'encoder self-attention': 'encoder',
  'decoder self-attention': 'decoder',
  'decoder cross-attention': 'encoder',
}
# What is averaged over the target subwords of SurfaceFusion.
_PREDICTIONS = 'weight', 'own', 'surface', 'both'
_LOSSES = {
  'own': "the decoder's own",
  'surface': "of the source's embeddings",
  'both': 'both together',
}


def hops(analysed: RunWithText) -> Numbers:
  """Measure the attention of every hop over the layers, and of sentences."""
  config = analysed.run.config.model
  sides = sides_of(config, 'hops')
  totals = passes.sums_by_part(
    analysed,
    lambda seen: {side: (side, _attention(seen, side)) for side in sides},
  )
  pairs = analysed.pairs[:_SENTENCES]
  sentences = _sentence_attention(analysed, pairs, sides)
  return {
    side: {
      'layers': [
        f'H[{n}]' for n in scheme_of(config, side).layers_read(config, side)
      ],
      'mean': totals[side].means.T.tolist(),
      'positions': int(totals[side].counts[0]),
      'sentences': [
        _sentence(analysed, pair, side, attention)
        for pair, attention in zip(pairs, sentences[side], strict=True)
      ],
    }
    for side in sides
  }


def _attention(seen: passes.Pass, side: Side) -> Float[Array, 'B T L P']:
  return seen.views[side]['read_out']['hop_attention']


def _sentence_attention(
  analysed: RunWithText, pairs: Sequence[TextPair], sides: tuple[Side, ...]
) -> Mapping[Side, Float[np.ndarray, 'B T L P']]:
  """Return the attention of a few sentences, computed in one batch."""
  longest = (max(len(pair.ids(side)) for pair in pairs) for side in SIDES)
  batch = assemble(list(pairs), Shape(len(pairs), *longest))

  @jax.jit
  def one_pass(parameters: Any, batch: Batch) -> Mapping[Side, jax.Array]:
    seen = passes.watched(analysed.run.model, parameters, batch)
    return {side: _attention(seen, side) for side in sides}

  return jax.device_get(one_pass(analysed.run.parameters, batch))


def _sentence(
  analysed: RunWithText,
  pair: TextPair,
  side: Side,
  attention: Float[np.ndarray, 'T L P'],
) -> dict[str, Any]:
  ids, tokenizer = pair.ids(side), analysed.tokenizer(side)
  pieces = read = tokenizer.pieces(ids.tolist())
  if side == 'decoder':
    read = [*tokenizer.pieces([tokenizer.vocabulary.start]), *pieces[:-1]]
  return {
    'line': pair.line,
    'pieces': pieces,
    'read': read,
    'attention': attention[: len(ids)].transpose(2, 1, 0).tolist(),
  }


def draw_hops(numbers: Numbers) -> figures.Figure:
  """Draw the mean of each side, then the hops of the first sentence."""
  panels = []
  for side, x in _by_side(numbers):
    mean, title = np.array(x['mean']).T, f'{side}, mean over the text'
    names = [str(hop) for hop in range(1, mean.shape[1] + 1)]
    labels = 'hop', 'layer', 'mean attention', (0.0, 1.0)
    given = mean, x['layers'], names, *labels
    panels.append(figures.Panel(title, figures.draw_map, *given))
  side, shown = _by_side(numbers)[-1]
  sentence = shown['sentences'][0]
  # Matplotlib would read text between two dollar signs as a formula.
  pieces = [
    piece.replace('$', r'\$') for piece in sentence['pieces'][:_MOST_PIECES]
  ]
  x = f'subword that is {"predicted" if side == "decoder" else "read"}'
  means, labels = len(panels), (x, 'layer', 'attention', (0.0, 1.0))
  for hop, attention in enumerate(sentence['attention'], start=1):
    title = f'{side}, line {sentence["line"]}, hop {hop}'
    values = np.array(attention)[:, : len(pieces)]
    given = values, shown['layers'], pieces, *labels
    panels.append(figures.Panel(title, figures.draw_map, *given))
  size = max(4.4, 0.22 * len(pieces) + 1.5), 3.2
  figure = figures.draw_panels(panels, size=size)
  for axes in figure.axes[means : len(panels)]:
    axes.tick_params('x', rotation=90)
  return figure


def _by_side(numbers: Numbers) -> list[tuple[Side, Any]]:
  return [(side, numbers[side]) for side in SIDES if side in numbers]


def hops_summary(numbers: Numbers) -> str:
  """Name the layer that each hop attends to most."""
  said = []
  for side, x in numbers.items():
    shares = ', '.join(
      f'{x["layers"][np.argmax(hop)]} {max(hop):.2f}' for hop in x['mean']
    )
    said.append(f'in the {side} {shares}')
  return f'The layer that each hop attends to most: {"; ".join(said)}.'


def couplings(analysed: RunWithText) -> Numbers:
  """Measure the mean couplings of every iteration, and their entropy."""
  sides = sides_of(analysed.run.config.model, *ROUTING)
  totals = passes.sums_by_part(
    analysed, lambda seen: {side: (side, _routed(seen, side)) for side in sides}
  )
  numbers = {side: _couplings(totals[side]) for side in sides}
  return numbers | {'paper': _PAPER}


def _routed(seen: passes.Pass, side: Side) -> dict[str, Any]:
  couplings: Float[Array, 'B T I L N']
  couplings = seen.views[side]['read_out']['couplings']
  iterations = jnp.moveaxis(couplings, 2, 0)
  return {
    'couplings': couplings,
    'entropy': jnp.stack([*map(coupling_entropy, iterations)], -1),
    'diversity': jnp.stack([*map(coupling_diversity, iterations)], -1),
  }


def _couplings(total: passes.Sums) -> dict[str, Any]:
  means = {name: values.tolist() for name, values in total.means.items()}
  capsules = np.shape(means['couplings'])[-1]
  return {
    **means,
    'capsules': capsules,
    'uniform_entropy': math.log(capsules),
    'positions': int(total.counts[0]),
  }


def draw_couplings(numbers: Numbers) -> figures.Figure:
  """Draw maps of the iterations of both sides, and the entropies at the end."""
  panels = [
    _iteration(f'{side}, iteration {index + 1}', x, index)
    for side, x in _by_side(numbers)
    for index in range(len(x['entropy']))
  ]
  named = {**dict(_by_side(numbers)), 'Dou 2019': numbers['paper']}
  entropies = {
    name: _curve([y / max(x['uniform_entropy'], 1e-12) for y in x['entropy']])
    for name, x in named.items()
  }
  diversities = {name: _curve(x['diversity']) for name, x in named.items()}
  for curves, y in (
    (entropies, 'entropy / uniform entropy'),
    (diversities, 'diversity, mean of 1 - cosine'),
  ):
    labels = 'iteration', y
    panels.append(figures.Panel('', figures.draw_lines, curves, *labels))
  columns = max(2, *(len(x['entropy']) for _, x in _by_side(numbers)))
  figure = figures.draw_panels(panels, columns, _COUPLINGS)
  figures.share_legend(figure, figure.axes[len(panels) - 2 : len(panels)])
  return figure


def _iteration(
  title: str, numbers: Mapping[str, Any], index: int
) -> figures.Panel:
  couplings = np.array(numbers['couplings'])
  rows = [f'H[{layer}]' for layer in range(1, couplings.shape[1] + 1)]
  # Uniform couplings take the middle of the colours or less.
  most = max(couplings.max(), 2 * math.exp(-numbers['uniform_entropy']))
  labels = 'output capsule', 'layer', 'mean coupling', (0.0, most)
  title = f'{title}: entropy {numbers["entropy"][index]:.2f} nats'
  given = couplings[index], rows, (), *labels
  return figures.Panel(title, figures.draw_map, *given)


def _curve(values: Sequence[Any]) -> figures.Line:
  """Number values from 1, without empty ones, as means over the layers."""
  points = {
    number: float(np.mean(value))
    for number, value in enumerate(values, start=1)
    if value is not None and not (isinstance(value, list) and None in value)
  }
  return list(points), list(points.values())


def couplings_summary(numbers: Numbers) -> str:
  """List the entropies, beside the paper's."""

  def listed(x: Mapping[str, Any]) -> str:
    values = ', '.join(f'{value:.2f}' for value in x['entropy'])
    return f'{values} of at most {x["uniform_entropy"]:.2f}'

  said = '; '.join(f'{side}: {listed(x)}' for side, x in _by_side(numbers))
  return (
    f'Entropy of the couplings by iteration, in nats: {said} (Dou et al. '
    f'2019: {listed(_PAPER)}).'
  )


def gate_places(config: ModelConfig) -> list[str]:
  """Return the names of the attentions of a model that have gates."""
  places = []
  if config.encoder.attention == 'shortcut':
    places.append('encoder self-attention')
  if config.decoder.attention == 'shortcut':
    where = config.decoder.attention_options.where
    places += ['decoder self-attention'] * (where != 'cross')
    places += ['decoder cross-attention'] * (where != 'self')
  return places


def gates(analysed: RunWithText) -> Numbers:
  """Measure the mean and deviation of the gates of keys and values."""
  places = gate_places(analysed.run.config.model)

  def measure(seen: passes.Pass) -> dict[str, tuple[passes.Subwords, Any]]:
    found: dict[str, tuple[passes.Subwords, Any]] = {}
    for place in places:
      side, attention = place.replace('-', '_').split()
      found[place] = _TEXTS[place], _gates(seen.views[side], attention)
    return found

  totals = passes.sums_by_part(analysed, measure)
  return {place: _by_kind(*totals[place]) for place in places}


def _gates(
  sown: Mapping[str, Any], attention: str
) -> Float[Array, 'B T L K 2']:
  """Return mean and mean square over features of the gates of all layers."""
  if 'layers' in sown:
    gates = jnp.stack([sown['layers'][attention][kind] for kind in _GATES])
  else:
    names = [name for name in sown if name.startswith('layer_')]
    names.sort(key=lambda name: int(name.removeprefix('layer_')))
    inside = [sown[name] for name in names]
    layers = [layer[attention] for layer in inside if attention in layer]
    by_kind = ([layer[kind] for layer in layers] for kind in _GATES)
    gates = jnp.stack([*map(jnp.stack, by_kind)])
  features = jnp.stack([gates.mean(-1), jnp.square(gates).mean(-1)])
  return features.transpose(3, 4, 2, 1, 0)


def _by_kind(
  sums: Float[np.ndarray, 'P L K 2'], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  named = passes.moments(sums, counts)
  kinds: dict[str, Any] = {
    kind: {
      name: passes.by_part(x[..., k], 'layer') for name, x in named.items()
    }
    for k, kind in enumerate(_GATES)
  }
  return kinds | {'positions': passes.by_part(counts.astype(int))}


def draw_gates(numbers: Numbers) -> figures.Figure:
  """Draw means above and deviations below, by layer, position, frequency.

  Those by position and frequency are averaged over the layers.
  """
  panels = []
  for moment in ('mean', 'deviation'):
    for part, name in {'layer': 'layer', **passes.LABELS}.items():
      curves = {
        f'{place}, {kind.removesuffix("_gate")}s': _curve(x[kind][moment][part])
        for place, x in numbers.items()
        for kind in _GATES
      }
      labels = name, f'{moment} of the gates'
      panels.append(figures.Panel('', figures.draw_lines, curves, *labels))
  figure = figures.draw_panels(panels, 3)
  for panel in figure.axes:
    panel.set_ylim(0, 1)
  figures.share_legend(figure, figure.axes)
  return figure


def gates_summary(numbers: Numbers) -> str:
  """List the mean gates of every attention."""
  said = '; '.join(
    f'{place} {np.mean(x["key_gate"]["mean"]["layer"]):.3f} of keys and '
    f'{np.mean(x["value_gate"]["mean"]["layer"]):.3f} of values'
    for place, x in numbers.items()
  )
  return f'Mean gates, where 1 takes the shortcut: {said}.'


def mixes_predictions(config: ModelConfig) -> bool:
  """Return whether two predictions are mixed; 'soft' adds their scores."""
  surface = 'decoder' in sides_of(config, 'surface_fusion')
  return surface and config.decoder.options.kind != 'soft'


def surface(analysed: RunWithText) -> Numbers:
  """Measure both predictions of every target subword, with teacher forcing.

  A subword counts in all, and in the bin of its frequency unless it is an end
  symbol or a tag.
  """
  config = analysed.run.config.model
  totals = passes.sums_by_part(
    analysed,
    lambda seen: {'predictions': ('predicted', _predictions(seen, config))},
  )
  sums, counts = totals['predictions']
  means = sums / np.where(counts > 0, counts, np.nan)[:, None]
  columns = dict(zip(_PREDICTIONS, means.T, strict=True))
  columns['tokens'] = counts.astype(int)
  by_name = {name: passes.by_part(values) for name, values in columns.items()}
  return {
    name: {'all': x['all'], 'frequency': x['frequency']}
    for name, x in by_name.items()
  }


def _predictions(
  seen: passes.Pass, config: ModelConfig
) -> Float[Array, 'B T Q']:
  output, targets = seen.output, jnp.asarray(seen.batch.target)
  assert output.log_weights is not None, 'two predictions'
  alone = [
    output._replace(features=features, log_weights=None)
    for features in output.features
  ]
  weights = jnp.exp(at_positions(output.log_weights, targets.shape))
  losses = [
    -token_log_probabilities(prediction, targets, config.decoder.combine)
    for prediction in (*alone, output)
  ]
  return jnp.stack([weights[0], *losses], -1)


def draw_surface(numbers: Numbers) -> figures.Figure:
  """Draw the losses by the frequency of the subword, and the weight g."""
  x, weight = passes.LABELS['frequency'], _curve(numbers['weight']['frequency'])
  losses = {
    label: _curve(numbers[name]['frequency']) for name, label in _LOSSES.items()
  }
  of_losses = losses, x, 'loss, nats per subword'
  of_weight = {_LOSSES['own']: weight}, x, 'weight g of the prediction'
  figure = figures.draw_panels(
    [figures.Panel('', figures.draw_lines, *y) for y in (of_losses, of_weight)]
  )
  figure.axes[1].set_ylim(0, 1)
  return figure


def surface_summary(numbers: Numbers) -> str:
  """Compare the losses of the predictions."""
  weight, own, surface, both = (numbers[name]['all'] for name in _PREDICTIONS)
  return (
    f"The decoder's own prediction has a loss of {own:.3f} nats and that of "
    f"the source's embeddings {surface:.3f}; with a mean weight of "
    f'{weight:.3f} on the first they have {both:.3f}.'
  )
