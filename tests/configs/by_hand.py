"""Parameter counts from the papers' equations, without a model.

D model width, F filter, L layers of a side, n inputs of a node.
"""

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SideConfig


def count(model: ModelConfig, source: int, target: int) -> int:
  """Parameters of a model with vocabularies of these sizes."""
  pieces = {
    'all': target,
    'target_output': source + target,
    'source_target': 2 * target,
    'none': source + 2 * target,
  }[model.tied_embeddings]
  bias = target if model.output_bias else 0
  final = 4 * model.width if model.norm == 'pre' else 0
  stacks = sum(_stack(model, side) for side in ('encoder', 'decoder'))
  tables = pieces * model.width + bias + _layer_embedding(model)
  return tables + stacks + final


def _dense(inputs: int, outputs: int, bias: bool = True) -> int:
  return inputs * outputs + bias * outputs


def _network(inputs: int, hidden: int, outputs: int) -> int:
  return _dense(inputs, hidden) + _dense(hidden, outputs)


def _stack(m: ModelConfig, side: Side) -> int:
  """Layers and fusion.

  Encoder layer 4 (D^2 + D) + 2 D F + F + D + 4 D, decoder layer
  8 (D^2 + D) + 2 D F + F + D + 6 D.
  """
  attentions, d = (1 if side == 'encoder' else 2), m.width
  norms = {'post': 2 * d, 'pre': 2 * d, 'rezero': 0}[m.norm]
  scale = m.norm == 'rezero'
  layer = (
    attentions * 4 * _dense(d, d, m.attention_bias)
    + _network(d, m.filter, d)
    + (attentions + 1) * norms
    + scale
  )
  options, layers = m.side(side), m.layers(side)
  return (
    layers * layer
    + _FUSIONS[options.fusion](m, options, side)
    + _SOURCES[options.attention](m, options, side)
    + options.skip_gains * layers * (attentions + 1)
  )


def _node(m: ModelConfig, activation: str, n: int) -> int:
  """n D F + F + F D + D + 2 D; Dou et al. (2018), Eq. 7."""
  d = m.width
  if activation == 'attention':
    return 3 * _dense(n * d, d) + _dense(d, d) + 2 * d
  return _network(n * d, m.filter, d) + 2 * d


def _linear(m: ModelConfig, options: SideConfig, side: Side) -> int:
  return _network(m.layers(side) * m.width, m.filter, m.width)


def _iterative(m: ModelConfig, options: SideConfig, side: Side) -> int:
  return (m.layers(side) - 1) * _node(m, options.options.activation, 2)


def _hierarchical(m: ModelConfig, options: SideConfig, side: Side) -> int:
  nodes, activation = m.layers(side) // 2, options.options.activation
  return _node(m, activation, 2) + (nodes - 1) * _node(m, activation, 3)


def _multi_layer(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """(L - k) (AGG of k + (k - 1) attentions)."""
  read = options.attention_options
  k, attention = read.layers, 4 * _dense(m.width, m.width)
  node = _node(m, read.activation, k)
  return (m.layers(side) - k) * (node + (k - 1) * attention)


def _average(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """The norm after the fusion, here and in the next two."""
  return {'affine': 2, 'plain': 0}[options.options.norm] * m.width


def _feed_forward(m: ModelConfig, options: SideConfig, side: Side) -> int:
  inputs = m.layers(side) + options.options.include_embedding
  network = _network(inputs * m.width, 512, m.width)
  return network + _average(m, options, side)


def _hops(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """Scorer D x 1024, one for all or one a hop, and 1024 x hops."""
  hops = options.options.hops
  scorers = hops if options.options.independent == 'per_hop' else 1
  scorer = scorers * m.width * 1_024 + 1_024 * hops
  network = _network(hops * m.width, 512, m.width)
  return scorer + network + _average(m, options, side)


def _layer_embedding(m: ModelConfig) -> int:
  """One vector for each of H[0..L], shared by both sides."""
  used = any(
    side.fusion in ('feed_forward', 'hops') and side.options.layer_embedding
    for side in (m.encoder, m.decoder)
  )
  return used * (max(m.encoder_layers, m.decoder_layers) + 1) * m.width


def _dynamic_combination(
  m: ModelConfig, options: SideConfig, side: Side
) -> int:
  layers = m.layers(side) * m.width
  return _network(layers, m.filter, layers)


def _dynamic_routing(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """L D -> L D -> L D; or L maps F_l and L maps W_l, all D -> D."""
  layers, d = m.layers(side), m.width
  if options.options.vote_projection == 'block':
    return layers * 2 * _dense(d, d) + 2 * d
  return _network(layers * d, layers * d, layers * d) + 2 * d


def _em_routing(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """Votes, activations L D -> L D -> L, two costs for each of 512 capsules."""
  layers, d = m.layers(side), m.width
  activations = _network(layers * d, layers * d, layers) + 2 * 512
  return _dynamic_routing(m, options, side) + activations


def _gtrans(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """A weight a group and a norm; or a weight a layer and one a group."""
  layers = m.layers(side)
  encoder = side == 'encoder'
  groups = -(-layers // (options.options.group_size or (3 if encoder else 2)))
  return groups + (2 * m.width if encoder else layers)


def _transparent(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """A weight for each of H[0..L] and decoder layer, and the norm of H[0]."""
  features = m.width if options.options.feature_wise else 1
  weights = (m.encoder_layers + 1) * m.decoder_layers * features
  return weights + 2 * m.width


def _surface_fusion(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """An attention, and a gate over two features."""
  gate = _dense(2 * m.width, 1) if options.options.kind == 'learned' else 0
  return 4 * _dense(m.width, m.width) + gate


def _dlcl(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """A square of weights, and without norms='none' a norm for each layer."""
  layers = m.layers(side)
  norms = 0 if options.options.norms == 'none' else layers
  return (layers + 1) ** 2 + norms * 2 * m.width


def _hyper_connections(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """For each sublayer: reading, writing, mixing, and their generator."""
  hyper, n = options.options, options.options.streams
  sublayers = m.layers(side) * (2 if side == 'encoder' else 3)
  each = {
    'static': n * (n + 2),
    'dynamic': n * (n + 2) + m.width * (n + 2) + 2,
    'identity_mix': 2 * n * n * m.width + 2 * n + 2,
    'manifold': n * m.width * (n * n + 2 * n) + n * n + 2 * n + 3,
  }
  return sublayers * each[hyper.kind]


def _attention_residuals(
  m: ModelConfig, options: SideConfig, side: Side
) -> int:
  """2 D for two sources or more; delta: a gate for one or more."""
  own, total = options.options, 0
  each = 2 if side == 'encoder' else 3
  replace = own.kind == 'replace'
  places = m.layers(side) * (each if own.sources == 'sublayer' else 1)
  for below in range(places):
    sources = replace + -(-below // own.block)
    total += 2 * m.width * (sources > 1) + (not replace and sources > 0)
  return total + 2 * m.width * replace


def _mudd(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """After layer l: D K + K C (l + 1) + C (l + 1), and norms of the streams.

  After the last one C is 1, or the memories of all decoder layers.
  """
  layers, mudd, total = m.layers(side), options.options, 0
  last = mudd.memory_ways * m.decoder_layers or 1
  for layer in range(1, layers + 1):
    ways = mudd.ways if layer < layers else last
    hidden = ways * (layer + 1)
    if layer == layers and not mudd.memory_ways:
      hidden *= 4
    outputs = ways * (layer + 1)
    total += m.width * hidden + hidden * outputs + outputs
  streams = 2 * (layers - 1) if mudd.ways > 1 else 0
  read = layers - bool(mudd.memory_ways) if mudd.ways else 0
  sums = layers + 1 + read if mudd.norms == 'pre_post' else 0
  return total + (streams + sums) * 2 * m.width


def _grn(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """For each sum of n outputs: n, n D, or n D + D; and norms of the streams."""
  layers, grn, total = m.layers(side), options.options, 0
  for outputs in range(1, layers + 2):
    ways = grn.ways if outputs <= layers else 1
    apart = min(outputs, grn.last + 2) if grn.last else outputs
    total += (
      ways
      * {
        'scalar': apart,
        'vector': apart * m.width,
        'dynamic': (apart + 1) * m.width,
      }[grn.kind]
    )
  streams = 2 * layers if grn.ways > 1 else 0
  return total + streams * 2 * m.width


def _shortcuts(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """2 D^2, with feature fusion 6 D^2, and two gate biases an attention."""
  shortcut, d = options.attention_options, m.width
  attentions = (2 if shortcut.where == 'both' else 1) * m.layers(side)
  return attentions * ((6 if shortcut.feature_fusion else 2) * d * d + 2 * d)


def _value_residual(m: ModelConfig, options: SideConfig, side: Side) -> int:
  """Two weights in each layer above the first, or no D^2 + D of the values."""
  values, d = options.attention_options, m.width
  attentions = 2 if values.where == 'both' else 1
  each = {'learnable': 2, 'shared': -_dense(d, d, m.attention_bias)}
  return attentions * each.get(values.kind, 0) * (m.layers(side) - 1)


def _nothing(m: ModelConfig, options: SideConfig, side: Side) -> int:
  return 0


_FUSIONS = {
  'none': _nothing,
  'dense': _nothing,
  'linear': _linear,
  'iterative': _iterative,
  'hierarchical': _hierarchical,
  'average': _average,
  'feed_forward': _feed_forward,
  'hops': _hops,
  'dynamic_combination': _dynamic_combination,
  'dynamic_routing': _dynamic_routing,
  'em_routing': _em_routing,
  'gtrans': _gtrans,
  'transparent': _transparent,
  'dlcl': _dlcl,
  'mudd': _mudd,
  'grn': _grn,
  'surface_fusion': _surface_fusion,
  'hyper_connections': _hyper_connections,
  'attention_residuals': _attention_residuals,
}
_SOURCES = {
  'none': _nothing,
  'multi_layer': _multi_layer,
  'shortcut': _shortcuts,
  'value_residual': _value_residual,
}
