"""What can be chosen about the fusion of layers, as frozen dataclasses.

Defaults are the papers'. Sizes that default to 0 follow the model, as the
comment beside them says.

  Dou 2018     Dou et al., EMNLP 2018: Exploiting Deep Representations
  Wang 2018    Wang et al., COLING 2018: Multi-layer Representation Fusion
  Dou 2019     Dou et al., AAAI 2019: Dynamic Layer Aggregation
  Emelin 2019  Emelin et al., WMT 2019: Lexical Shortcuts
  Yang 2022    Yang et al., TASLP 2022: GTRANS
"""

import dataclasses
import re
import types
from typing import Literal

from fusion_jax.bounds import (
  Depth,
  NotNegative,
  PositiveFloat,
  Share,
  Size,
  SizeOrZero,
)
from fusion_jax.errors import require

_STRICT = types.MappingProxyType({'extra': 'forbid'})

Side = Literal['encoder', 'decoder']

Scheme = Literal[
  'none',
  'dense',
  'linear',
  'iterative',
  'hierarchical',
  'average',
  'feed_forward',
  'hops',
  'dynamic_combination',
  'dynamic_routing',
  'em_routing',
  'gtrans',
  'transparent',
  'dlcl',
]


@dataclasses.dataclass(frozen=True)
class DenseOptions:
  """Dense connection (Dou 2018, Eq. 4)."""

  __pydantic_config__ = _STRICT

  # H[0] is a term of the sums too.
  include_embedding: bool = False
  # A norm after every sum.
  post_sum_norm: bool = False


@dataclasses.dataclass(frozen=True)
class LinearOptions:
  """Linear combination (Dou 2018, Eq. 5)."""

  __pydantic_config__ = _STRICT

  # True: concat(H[1..L]) A B, the form of the paper's size.
  # False: sum_l W_l H[l], the form of the paper's text.
  factored: bool = True
  # Columns of A; 0: model.filter.
  hidden: SizeOrZero = 0
  bias: bool = True
  # A norm after the combination.
  output_norm: bool = False


@dataclasses.dataclass(frozen=True)
class AggOptions:
  """The aggregation node (Dou 2018, Eq. 7) and the trees made of it."""

  __pydantic_config__ = _STRICT

  # Hidden width of the node; 0: model.filter.
  hidden: SizeOrZero = 0
  activation: Literal['sigmoid', 'relu', 'attention'] = 'sigmoid'
  # Inputs added to the node's output; 'top': the highest backbone layer.
  residual: Literal['all', 'top', 'none'] = 'all'
  # Starts with W2 = 0, so that the node is the norm of its residual inputs; not
  # with residual='none'. False is the paper's start, which trains worse: every
  # sigmoid(0) adds half a row of W2.
  zero_out: bool = True
  # Hierarchical: layers of a group.
  group_size: Size = 2
  # Hierarchical: the node of a group is the input of the next group.
  feedback: bool = True


@dataclasses.dataclass(frozen=True)
class MlrfOptions:
  """Average, feed-forward and multi-hop fusion (Wang 2018, Eq. 3-7)."""

  __pydantic_config__ = _STRICT

  # H[0] is fused too.
  include_embedding: bool = True
  # Adds a learned vector to every layer, shared by both sides (Eq. 4);
  # not used by the average.
  layer_embedding: bool = True
  # Hidden width of the feed-forward network.
  hidden: Size = 512
  # Multi-hop: hops, width and activation of the scorer.
  hops: Depth = 4
  scorer_width: Size = 1_024
  scorer_activation: Literal['tanh', 'relu'] = 'tanh'
  # Multi-hop: a W1 of their own for layers or hops.
  independent: Literal['none', 'per_layer', 'per_hop'] = 'none'
  # Multi-hop: weights for every feature instead of one a layer.
  feature_wise: bool = False
  # The norm after fusion: with or without scale and offset.
  norm: Literal['affine', 'plain', 'none'] = 'affine'


@dataclasses.dataclass(frozen=True)
class DynamicOptions:
  """Dynamic combination (Dou 2019, Eq. 4)."""

  __pydantic_config__ = _STRICT

  # Hidden width; 0: model.filter.
  hidden: SizeOrZero = 0
  normalize: Literal['none', 'softmax'] = 'none'
  output_norm: bool = False


# The options that form='paper' sets (Dou 2019, Algorithms 1 and 2).
LITERAL_ROUTING = types.MappingProxyType(
  {
    'vote_norm': 'none',
    'agreement': 'product',
    'agreement_scale': 1.0,
    'average': 'gain',
    'route_gain': 1.0,
    'residual': 'none',
    'stop_gradient': False,
    'variance_floor': 1e-4,
  }
)


@dataclasses.dataclass(frozen=True)
class RoutingOptions:
  """Capsules, dynamic routing and EM routing (Dou 2019, Eq. 5-16).

  The paper's literal form does not train: votes grow until every layer goes to
  one capsule and no gradient reaches the encoder. The defaults below keep the
  votes at unit size, their agreement bounded, and the top layer as residual.
  """

  __pydantic_config__ = _STRICT

  # 'paper': the literal form, vote_norm='none', agreement='product',
  # agreement_scale=1, average='gain' with route_gain=1, residual='none',
  # stop_gradient=False and variance_floor=1e-4, which the paper does not print;
  # these options must then have their defaults.
  form: Literal['stable', 'paper'] = 'stable'
  # 'rms': the votes of a layer are divided by their root mean square.
  vote_norm: Literal['rms', 'none'] = 'rms'
  # Dynamic: what is added to the logits, the 'cosine' of capsule and vote,
  # their 'product', or the product 'scaled' by the size of the votes and
  # 1 / sqrt(width of a capsule); and a factor on it.
  agreement: Literal['cosine', 'scaled', 'product'] = 'cosine'
  agreement_scale: PositiveFloat = 1.0
  # Dynamic: a capsule is the sum of its votes times route_gain, or their mean
  # weighted by the couplings.
  average: Literal['mass', 'gain'] = 'mass'
  # Output capsules; 0: 512, or model.width where that is less.
  capsules: SizeOrZero = 0
  iterations: Depth = 3
  # 'dense': two matrices over all layers at once, the paper's size.
  # 'block': F_l and W_l for every layer, as in Eq. 7-8.
  vote_projection: Literal['dense', 'block'] = 'dense'
  # What F_l reads in the block form: all layers, or its own.
  context: Literal['all', 'own'] = 'all'
  # Width between the two maps of the dense form; 0: layers * model.width.
  vote_hidden: SizeOrZero = 0
  # Between the two maps. 'auto': none for dynamic, relu for EM routing.
  vote_activation: Literal['auto', 'none', 'relu'] = 'auto'
  # Dynamic: over which capsules an input's couplings sum to 1.
  route_axis: Literal['output', 'input'] = 'output'
  # Dynamic, average='gain': factor g of the weighted votes; 0: that which makes
  # uniform couplings a mean, capsules / layers for 'output' and 1 for 'input'.
  route_gain: NotNegative = 0.0
  # No gradient through the couplings of all but the last iteration.
  stop_gradient: bool = True
  # EM: input activations, one a layer, one a (layer, capsule), or all 1.
  activation: Literal['scalar', 'per_output', 'none'] = 'scalar'
  betas: Literal['learned', 'zero'] = 'learned'
  # EM: inverse temperature. 'linear': 1, 2, 3, then 3.
  # 'hinton': 0.01 (1 - 0.95^(t + 1)).
  temperature: Literal['linear', 'hinton'] = 'linear'
  # EM: added to the variances; 'relative': times the mean square of the votes.
  variance_floor: PositiveFloat = 0.1
  floor: Literal['absolute', 'relative'] = 'absolute'
  # EM: standardise the cost over the output capsules.
  cost_norm: bool = False
  # EM: factor of the log-density of a vote.
  log_density_scale: PositiveFloat = 1.0
  # EM: what a capsule emits: activation * mean, or the mean.
  emit: Literal['act_mean', 'mean'] = 'act_mean'
  output_norm: bool = True
  # Layers added to the capsules before the norm.
  residual: Literal['top', 'none', 'all'] = 'top'

  def capsule_count(self, width: int) -> int:
    """Return N in a model of that width."""
    return self.capsules or min(512, width)

  @property
  def resolved(self) -> 'RoutingOptions':
    """The options with those of form='paper' filled in."""
    if self.form == 'stable':
      return self
    return dataclasses.replace(self, form='stable', **LITERAL_ROUTING)


def partition(
  layers: int, size: int, last_group: Literal['ceil', 'floor']
) -> tuple[range, ...]:
  """The layer numbers of every group; Yang et al. (2022), section III.

  Args:
    layers: L; the layers are 1..L.
    size: of a group.
    last_group: 'ceil': a last short group. 'floor': left-over layers belong
      to none.

  Returns:
    ceil(L / size) or floor(L / size) ranges.
  """
  end = layers + 1 if last_group == 'ceil' else layers - size + 2
  return tuple(
    range(first, min(first + size, layers + 1)) for first in range(1, end, size)
  )


def parse_groups(text: str, groups: int, field: str) -> tuple[int, int]:
  """'first:last', counted from 1, as a half-open range counted from 0."""
  match = re.fullmatch('([0-9]{1,9}):([0-9]{1,9})', text)
  first, last = map(int, match.groups()) if match else (0, 0)
  require(
    1 <= first <= last <= groups,
    field,
    f"must be 'first:last' within 1:{groups}, got {text!r}",
  )
  return first - 1, last


@dataclasses.dataclass(frozen=True)
class GtransOptions:
  """Group fusion and probability fusion (Yang 2022, Eq. 2-7)."""

  __pydantic_config__ = _STRICT

  # Layers of a group; 0: 3 in the encoder, 2 in the decoder.
  group_size: SizeOrZero = 0
  # 'ceil': a last short group. 'floor': left-over layers belong to none.
  last_group: Literal['ceil', 'floor'] = 'ceil'
  # Encoder: a norm even where all layers are one group.
  single_group_norm: bool = False
  # Decoder: how the layers of a group become its features.
  mode: Literal['weighted_sum', 'weighted_mean', 'last'] = 'weighted_sum'
  # Decoder: a norm on the features of every group.
  group_norm: bool = False
  # Decoder: log sum_k psi_k P_k, or sum_k psi_k log P_k.
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic'
  # Decoder: psi = softmax(w / temperature); 0: sqrt(model.width).
  temperature: NotNegative = 0.0
  # Decoder: groups that translate, 'first:last' counted from 1; '': all.
  inference_groups: str = ''

  def layers_of_group(self, side: Side) -> int:
    """The layers of a whole group."""
    return self.group_size or (3 if side == 'encoder' else 2)

  def groups(self, layers: int, side: Side) -> tuple[range, ...]:
    """The layer numbers of every group of a stack."""
    return partition(layers, self.layers_of_group(side), self.last_group)


@dataclasses.dataclass(frozen=True)
class TransparentOptions:
  """Transparent attention (Bapna et al. 2018)."""

  __pydantic_config__ = _STRICT

  # Dropout on the weights before their softmax.
  dropout: Share = 0.1
  # 'constant': uniform means. 'uniform': +-sqrt(1 / (L + 1)).
  weights: Literal['constant', 'uniform'] = 'constant'


@dataclasses.dataclass(frozen=True)
class DlclOptions:
  """Dynamic linear combination of layers (Wang et al. 2019)."""

  __pydantic_config__ = _STRICT

  # Weights at the start: mean of the predecessors, or all 1.
  start: Literal['average', 'one'] = 'average'
  normalize: Literal['none', 'softmax'] = 'none'
  # A scalar a layer, or one for every feature.
  weights: Literal['scalar', 'vector'] = 'scalar'
  # Only so many predecessors; 0: all.
  window: SizeOrZero = 0
  # The weights stay as they start.
  frozen: bool = False


@dataclasses.dataclass(frozen=True)
class ShortcutOptions:
  """Lexical shortcuts into attention (Emelin 2019, Eq. 5-14)."""

  __pydantic_config__ = _STRICT

  # 'lexical': from H[0]. 'non_lexical': from H[l - 2].
  source: Literal['none', 'lexical', 'non_lexical'] = 'none'
  where: Literal['self', 'cross', 'both'] = 'self'
  # Projects both sources together (Eq. 13-14).
  feature_fusion: bool = False
  # A norm without scale and offset on the source H[l - 2] of non-lexical
  # shortcuts; 'auto': with pre-norm, whose states no norm has seen.
  source_norm: Literal['auto', 'plain', 'none'] = 'auto'
  # The released code's variant: keys and values read what the norm has not
  # seen, and the residual starts from what it has.
  author_compat: bool = False

  def norms_source(self, norm: str) -> bool:
    """Return whether the source of the shortcuts has a norm."""
    auto = self.source == 'non_lexical' and norm == 'pre'
    return self.source_norm == 'plain' or (
      self.source_norm == 'auto' and auto and not self.author_compat
    )


@dataclasses.dataclass(frozen=True)
class MultiLayerOptions:
  """Multi-layer attention (Dou 2018, Eq. 8)."""

  __pydantic_config__ = _STRICT

  # Layers that a self-attention reads; 1: its input alone, as usual.
  layers: Depth = 1
  # Layers 2..k, which have fewer below them, read those they have.
  partial: bool = False


# Factors on the learning rate of what only the fusion has, where 1 was measured
# to train worse (`python -m benchmarks.scheme_health`).
FUSION_RATES = types.MappingProxyType(
  {'linear': 0.1, 'feed_forward': 0.3, 'hops': 0.3}
)


@dataclasses.dataclass(frozen=True)
class SideConfig:
  """The fusion of one stack.

  One scheme owns what follows the stack reads (and, for some, what its layers
  read); shortcuts and multi-layer attention are inside its attention and go
  with any scheme that leaves the layers' inputs alone.
  """

  __pydantic_config__ = _STRICT

  fusion: Scheme = 'none'
  # 'baseline': new parameters start so that the model computes what it would
  # without the fusion: as identity maps where that is exact, otherwise behind
  # gates that start at 0 (fusion_jax/fusion/starts.py).
  start: Literal['fresh', 'baseline'] = 'fresh'
  # A norm of its own for every layer that is fused. 'auto': with pre-norm.
  input_norm: Literal['auto', 'none', 'per_layer'] = 'auto'
  dense: DenseOptions = DenseOptions()
  linear: LinearOptions = LinearOptions()
  agg: AggOptions = AggOptions()
  mlrf: MlrfOptions = MlrfOptions()
  dynamic: DynamicOptions = DynamicOptions()
  routing: RoutingOptions = RoutingOptions()
  gtrans: GtransOptions = GtransOptions()
  transparent: TransparentOptions = TransparentOptions()
  dlcl: DlclOptions = DlclOptions()
  shortcut: ShortcutOptions = ShortcutOptions()
  multi_layer: MultiLayerOptions = MultiLayerOptions()

  def per_layer_norms(self, norm: str) -> bool:
    """Whether every layer that is fused has a norm of its own."""
    return self.input_norm == 'per_layer' or (
      self.input_norm == 'auto' and norm == 'pre'
    )

  @property
  def default_rate(self) -> float:
    """The factor on the learning rate of the fusion's parameters."""
    return FUSION_RATES.get(self.fusion, 1.0)

  @property
  def owns_layer_inputs(self) -> bool:
    """Whether layers read something else than the layer below."""
    if self.fusion == 'hierarchical':
      return self.agg.feedback
    return self.fusion in ('dense', 'dlcl')
