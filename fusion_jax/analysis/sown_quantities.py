"""What single schemes sow: hops, couplings, gates, groups and predictions.

Papers whose quantities these are, with what they printed in `PAPER`:

- hops: Wang et al. (COLING 2018), Fig. 5
- couplings: Dou et al. (AAAI 2019), Fig. 4 and section 4.3.4
- gates: Emelin et al. (WMT 2019), appendix A.3: 'we were unable to discern any
  distinct patterns in the activations of the individual gates'
- groups: Yang et al. (TASLP 2022), Fig. 8 and 9 and Table VI
- surface: Liu et al. (ICLR 2021)

Axis letters: B batch, T positions, L layers, P hops or parts of the text, I
iterations, N output capsules, D model width, K kinds, M moments, Q quantities.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fusion_jax.analysis.passes import (
  Pass,
  Sums,
  by_part,
  moments,
  sums_by_part,
  watched,
)
from fusion_jax.analysis.run_with_text import RunWithText, TextPair, numbered
from fusion_jax.analysis.view import Numbers, sides_of
from fusion_jax.config import ModelConfig, Side
from fusion_jax.data.batching import Batch, Shape, assemble
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import groups_of, log_group_weights
from fusion_jax.fusion.mixture import at_positions
from fusion_jax.fusion.routing import coupling_diversity, coupling_entropy
from fusion_jax.fusion.scheme import scheme_of

logger = logging.getLogger(__name__)

ROUTING = 'dynamic_routing', 'em_routing'
GATES = 'key_gate', 'value_gate'
# What is averaged over the target subwords of SurfaceFusion.
PREDICTIONS = 'weight', 'own', 'surface', 'both'
PAPER: Mapping[str, Any] = {
  # Section 4.3.4, with 6 layers and 512 capsules; the side is not named.
  'couplings': {
    'capsules': 512,
    'uniform_entropy': math.log(512),
    'entropy': [6.24, 5.93, 5.86],
    'diversity': [0.0, 0.09, 0.18],
  },
  # Table VI: psi of 6 + 18 layers, groups of 3.
  'groups': [0.066, 0.071, 0.103, 0.255, 0.254, 0.251],
}
# Number of sentences whose attention is given word by word.
_SENTENCES = 5
# Names of groups' weights in metrics.jsonl, and the corresponding names here.
_LOGGED = {
  'encoder/read_out/group_weights': 'encoder',
  'decoder/prediction/layer_weights': 'decoder_layers',
  'decoder/prediction/group_weights': 'psi',
}


def hop_attention(analysed: RunWithText) -> Numbers:
  """Measure the attention of every hop over the layers, and of sentences."""
  config = analysed.run.config.model
  sides = sides_of(config, 'hops')
  totals = sums_by_part(
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


def _attention(seen: Pass, side: Side) -> Float[Array, 'B T L P']:
  return seen.views[side]['read_out']['hop_attention']


def _sentence_attention(
  analysed: RunWithText, pairs: Sequence[TextPair], sides: tuple[Side, ...]
) -> Mapping[Side, Float[np.ndarray, 'B T L P']]:
  """Return the attention of a few sentences, computed in one batch."""
  sources = max(len(pair.source) for pair in pairs)
  targets = max(len(pair.target) for pair in pairs)

  @jax.jit
  def one_pass(parameters: Any, batch: Batch) -> Mapping[Side, jax.Array]:
    seen = watched(analysed.run.model, parameters, batch)
    return {side: _attention(seen, side) for side in sides}

  batch = assemble(list(pairs), Shape(len(pairs), sources, targets))
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


def couplings(analysed: RunWithText) -> Numbers:
  """Measure the mean couplings of every iteration, and their entropy."""
  config = analysed.run.config.model
  sides = sides_of(config, *ROUTING)

  def measure(seen: Pass) -> dict[str, tuple[Side, Any]]:
    return {side: (side, _routed(seen, side)) for side in sides}

  totals = sums_by_part(analysed, measure)
  numbers = {side: _couplings(totals[side]) for side in sides}
  return numbers | {'paper': PAPER['couplings']}


def _routed(seen: Pass, side: Side) -> dict[str, Any]:
  couplings: Float[Array, 'B T I L N']
  couplings = seen.views[side]['read_out']['couplings']
  iterations = jnp.moveaxis(couplings, 2, 0)
  return {
    'couplings': couplings,
    'entropy': jnp.stack([*map(coupling_entropy, iterations)], -1),
    'diversity': jnp.stack([*map(coupling_diversity, iterations)], -1),
  }


def _couplings(total: Sums) -> dict[str, Any]:
  means = {name: values.tolist() for name, values in total.means.items()}
  capsules = np.shape(means['couplings'])[-1]
  return {
    **means,
    'capsules': capsules,
    'uniform_entropy': math.log(capsules),
    'positions': int(total.counts[0]),
  }


class Place(NamedTuple):
  """An attention that has gates, and the side of their positions."""

  side: Side
  attention: Literal['self_attention', 'cross_attention']
  text: Side

  @property
  def name(self) -> str:
    """The name to display: 'decoder cross-attention'."""
    return f'{self.side} {self.attention.replace("_", "-")}'


def gate_places(config: ModelConfig) -> list[Place]:
  """Return the attentions of a model that have gates."""
  places = []
  if config.encoder.attention == 'shortcut':
    places.append(Place('encoder', 'self_attention', 'encoder'))
  if config.decoder.attention != 'shortcut':
    return places
  where = config.decoder.attention_options.where
  if where != 'cross':
    places.append(Place('decoder', 'self_attention', 'decoder'))
  if where != 'self':
    places.append(Place('decoder', 'cross_attention', 'encoder'))
  return places


def gates(analysed: RunWithText) -> Numbers:
  """Measure the mean and deviation of the gates of keys and values."""
  places = gate_places(analysed.run.config.model)
  totals = sums_by_part(
    analysed,
    lambda seen: {
      place.name: (place.text, _gates(seen.views[place.side], place.attention))
      for place in places
    },
  )
  return {place.name: _by_kind(*totals[place.name]) for place in places}


def _gates(
  sown: Mapping[str, Any], attention: str
) -> Float[Array, 'B T L K 2']:
  """Return mean and mean square over features of the gates of all layers."""
  if 'layers' in sown:
    gates = jnp.stack([sown['layers'][attention][kind] for kind in GATES])
  else:
    names = [name for name in sown if name.startswith('layer_')]
    names.sort(key=lambda name: int(name.removeprefix('layer_')))
    layers = [
      sown[name][attention] for name in names if attention in sown[name]
    ]
    by_kind = ([layer[kind] for layer in layers] for kind in GATES)
    gates = jnp.stack([*map(jnp.stack, by_kind)])
  features = jnp.stack([gates.mean(-1), jnp.square(gates).mean(-1)])
  return features.transpose(3, 4, 2, 1, 0)


def _by_kind(
  sums: Float[np.ndarray, 'P L K 2'], counts: Float[np.ndarray, ' P']
) -> dict[str, Any]:
  named = moments(sums, counts)
  kinds: dict[str, Any] = {
    kind: {name: by_part(x[..., k], 'layer') for name, x in named.items()}
    for k, kind in enumerate(GATES)
  }
  return kinds | {'positions': by_part(counts.astype(int))}


def psi_of(parameters: Mapping[str, Any], config: ModelConfig) -> list[float]:
  """Return psi = softmax(w / temperature); Yang et al. (2022), Eq. 6."""
  temperature = config.decoder.options.temperature or math.sqrt(config.width)
  weights = parameters['decoder']['prediction']['group_weights']
  return jnp.exp(log_group_weights(weights, temperature)).tolist()


def group_weights(analysed: RunWithText) -> Numbers:
  """Read the weights of groups and of the layers in them."""
  config, parameters = analysed.run.config.model, analysed.run.parameters
  sides = sides_of(config, 'gtrans')
  weights: dict[str, list[float]] = {}
  if 'encoder' in sides:
    w = parameters['encoder']['read_out']['weights']
    weights['encoder'] = jax.nn.sigmoid(w).tolist()
  if 'decoder' in sides:
    prediction = parameters['decoder']['prediction']
    if 'layer_weights' in prediction:
      w = prediction['layer_weights']
      weights['decoder_layers'] = jax.nn.sigmoid(w).tolist()
    weights['psi'] = psi_of(parameters, config)
  return {
    'weights': weights,
    'layers': {
      side: [[group[0], group[-1]] for group in groups_of(config, side)]
      for side in sides
    },
    'training': _over_training(analysed),
    'paper': PAPER['groups'],
  }


def _over_training(analysed: RunWithText) -> dict[str, Any] | None:
  try:
    rows = analysed.of_kind('fusion')
  except InputError as error:
    logger.warning('%s; the weights over the training are left out', error)
    return None
  weights: dict[str, Any] = {'steps': [row['step'] for row in rows]}
  for logged, name in _LOGGED.items():
    if values := numbered(rows, f'{logged}_'):
      weights[name] = list(values.values())
  return weights


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
  totals = sums_by_part(
    analysed,
    lambda seen: {'predictions': ('predicted', _predictions(seen, config))},
  )
  sums, counts = totals['predictions']
  means = sums / np.where(counts > 0, counts, np.nan)[:, None]
  columns = dict(zip(PREDICTIONS, means.T, strict=True))
  columns['tokens'] = counts.astype(int)
  by_name = {name: by_part(values) for name, values in columns.items()}
  return {
    name: {'all': x['all'], 'frequency': x['frequency']}
    for name, x in by_name.items()
  }


def _predictions(seen: Pass, config: ModelConfig) -> Float[Array, 'B T Q']:
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
