"""What can be chosen about the fusion of layers.

Defaults are the papers', except where they were measured to train badly. Sizes
that default to 0 follow the model, as the text below them says.

  Dou 2018     Dou et al., EMNLP 2018: Exploiting Deep Representations
  Wang 2018    Wang et al., COLING 2018: Multi-layer Representation Fusion
  Dou 2019     Dou et al., AAAI 2019: Dynamic Layer Aggregation
  Emelin 2019  Emelin et al., WMT 2019: Lexical Shortcuts
  Yang 2022    Yang et al., TASLP 2022: GTRANS
  Liu 2021     Liu et al., ICLR 2021: Encoder Layer Fusion
"""

import dataclasses
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import AfterValidator, Field

from fusion_jax.bounds import (
  Depth,
  NotNegative,
  PositiveFloat,
  Share,
  Size,
  SizeOrZero,
  Text,
)
from fusion_jax.config.section import section
from fusion_jax.errors import InputError, require
from fusion_jax.faults import choice_fault

Side = Literal['encoder', 'decoder']
# Of a layer of each side.
SUBLAYERS: Mapping[Side, int] = types.MappingProxyType(
  {'encoder': 2, 'decoder': 3}
)

_Value: TypeAlias = bool | int | float | Text
_Options = TypeVar('_Options')


class Only(NamedTuple):
  """Says of a field that only some schemes, or only one side, read it."""

  readers: tuple[str, ...]


@section('model.*.dense')
class DenseOptions:
  """Dense connection (Dou 2018, Eq. 4)."""

  include_embedding: bool = False
  """Whether H[0] is a term of the sums too."""

  post_sum_norm: bool = False
  """Whether a norm follows every sum."""


@section('model.*.linear')
class LinearOptions:
  """Linear combination (Dou 2018, Eq. 5)."""

  factored: bool = True
  """True: concat(H[1..L]) A B, the form that has the paper's size. False:
  sum_l W_l H[l], the form of the paper's text."""

  hidden: SizeOrZero = 0
  """Columns of A; 0: model.filter."""

  bias: bool = True
  """Whether the maps have biases."""

  output_norm: bool = False
  """Whether a norm follows the combination."""


@section('model.*.agg')
class AggOptions:
  """The aggregation node (Dou 2018, Eq. 7) and the trees made of it."""

  hidden: SizeOrZero = 0
  """Hidden width of the node; 0: model.filter."""

  activation: Literal['sigmoid', 'relu', 'attention'] = 'sigmoid'
  """Activation of the node's feed-forward network; 'attention': multi-head
  attention over the positions takes the place of the network."""

  residual: Literal['all', 'top', 'none'] = 'all'
  """Inputs that are added to the node's output; 'top': the highest layer."""

  zero_out: bool = True
  """Start with W2 = 0, so that the node is the norm of its residual inputs; has
  no effect with residual='none'. False is the paper's start, which trains
  worse: every sigmoid(0) adds half a row of W2."""

  group_size: Annotated[Size, Only(('hierarchical',))] = 2
  """Hierarchical: layers of a group."""

  feedback: Annotated[bool, Only(('hierarchical',))] = True
  """Hierarchical: whether the node of a group is the next group's input."""


_NETWORKS = Only(('feed_forward', 'hops'))
_HOPS = Only(('hops',))


@section('model.*.mlrf')
class MlrfOptions:
  """Average, feed-forward and multi-hop fusion (Wang 2018, Eq. 3-7)."""

  include_embedding: bool = True
  """Whether H[0] is fused too."""

  layer_embedding: Annotated[bool, _NETWORKS] = True
  """Add a learned vector to every layer, shared by both sides (Eq. 4)."""

  hidden: Annotated[Size, _NETWORKS] = 512
  """Feed-forward and multi-hop: hidden width of the feed-forward network."""

  hops: Annotated[Depth, _HOPS] = 4
  """Multi-hop: number of hops."""

  scorer_width: Annotated[Size, _HOPS] = 1_024
  """Multi-hop: hidden width of the scorer."""

  scorer_activation: Annotated[Literal['tanh', 'relu'], _HOPS] = 'tanh'
  """Multi-hop: activation of the scorer."""

  independent: Annotated[Literal['none', 'per_layer', 'per_hop'], _HOPS] = (
    'none'
  )
  """Multi-hop: whether every layer, or every hop, has a W1 of its own."""

  feature_wise: Annotated[bool, _HOPS] = False
  """Multi-hop: weights for every feature instead of one weight a layer."""

  norm: Literal['affine', 'plain', 'none'] = 'affine'
  """Norm after the fusion, with or without scale and offset."""


@section('model.*.dynamic')
class DynamicOptions:
  """Dynamic combination (Dou 2019, Eq. 4)."""

  hidden: SizeOrZero = 0
  """Hidden width; 0: model.filter."""

  normalize: Literal['none', 'softmax'] = 'none'
  """Whether the weights of the layers go through a softmax."""

  output_norm: bool = False
  """Whether a norm follows the combination."""


# The options that form='paper' sets (Dou 2019, Algorithms 1 and 2).
LITERAL_ROUTING: Mapping[str, Any] = types.MappingProxyType(
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

_DYNAMIC = Only(('dynamic_routing',))
_EM = Only(('em_routing',))


@section('model.*.routing')
class RoutingOptions:
  """Capsules, dynamic routing and EM routing (Dou 2019, Eq. 5-16).

  The paper's literal form does not train: votes grow until every layer goes to
  one capsule and no gradient reaches the encoder. The defaults below keep the
  votes at unit size, their agreement bounded, and the top layer as residual.
  """

  form: Literal['stable', 'paper'] = 'stable'
  """'paper': the literal form, vote_norm='none', agreement='product',
  agreement_scale=1, average='gain' with route_gain=1, residual='none',
  stop_gradient=False and variance_floor=1e-4, which the paper does not print;
  these options must then have their defaults."""

  vote_norm: Literal['rms', 'none'] = 'rms'
  """'rms': divide the votes of a layer by their root mean square."""

  agreement: Annotated[Literal['cosine', 'scaled', 'product'], _DYNAMIC] = (
    'cosine'
  )
  """Dynamic: what is added to the logits: the cosine of capsule and vote, their
  product, or the product scaled by the size of the votes and by
  1 / sqrt(width of a capsule)."""

  agreement_scale: Annotated[PositiveFloat, _DYNAMIC] = 1.0
  """Dynamic: factor on the agreement."""

  average: Annotated[Literal['mass', 'gain'], _DYNAMIC] = 'mass'
  """Dynamic: whether a capsule is the mean of its votes, weighted by the
  couplings ('mass'), or their weighted sum times route_gain ('gain')."""

  capsules: SizeOrZero = 0
  """Output capsules; 0: 512, or model.width where that is less."""

  iterations: Depth = 3
  """Iterations of the routing."""

  vote_projection: Literal['dense', 'block'] = 'dense'
  """'dense': two matrices over all layers at once, which has the paper's size.
  'block': F_l and W_l for every layer, as in Eq. 7-8."""

  context: Literal['all', 'own'] = 'all'
  """What F_l reads in the block form: all layers, or its own."""

  vote_hidden: SizeOrZero = 0
  """Width between the two maps of the dense form; 0: layers * model.width."""

  vote_activation: Literal['auto', 'none', 'relu'] = 'auto'
  """Activation between the two maps; 'auto': none for dynamic routing, relu for
  EM routing."""

  route_axis: Annotated[Literal['output', 'input'], _DYNAMIC] = 'output'
  """Dynamic: the couplings of an input sum to 1 over the capsules ('output'),
  or those of a capsule over the inputs ('input')."""

  route_gain: Annotated[NotNegative, _DYNAMIC] = 0.0
  """Dynamic with average='gain': factor on the weighted votes; 0: that which
  makes uniform couplings a mean, capsules / layers for 'output' and 1 for
  'input'."""

  stop_gradient: bool = True
  """Let no gradient through the couplings of all but the last iteration."""

  activation: Annotated[Literal['scalar', 'per_output', 'none'], _EM] = 'scalar'
  """EM: input activations, one a layer, one for each layer and capsule, or all
  1."""

  betas: Annotated[Literal['learned', 'zero'], _EM] = 'learned'
  """EM: beta_u and beta_a, learned or 0."""

  temperature: Annotated[Literal['linear', 'hinton'], _EM] = 'linear'
  """EM: inverse temperature of iteration t; 'linear': 1, 2, 3, then 3;
  'hinton': 0.01 (1 - 0.95^(t + 1))."""

  variance_floor: Annotated[PositiveFloat, _EM] = 0.1
  """EM: what is added to the variances."""

  floor: Annotated[Literal['absolute', 'relative'], _EM] = 'absolute'
  """EM: 'relative': the floor times the mean square of the votes."""

  cost_norm: Annotated[bool, _EM] = False
  """EM: standardise the cost over the output capsules."""

  log_density_scale: Annotated[PositiveFloat, _EM] = 1.0
  """EM: factor on the log-density of a vote."""

  emit: Annotated[Literal['act_mean', 'mean'], _EM] = 'act_mean'
  """EM: what a capsule emits: activation * mean, or the mean."""

  output_norm: bool = True
  """Whether a norm follows the capsules."""

  residual: Literal['top', 'none', 'all'] = 'top'
  """Layers that are added to the capsules before the norm."""

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
  """Return the layer numbers of every group; Yang et al. (2022), sec. III."""
  end = layers + 1 if last_group == 'ceil' else layers - size + 2
  return tuple(
    range(first, min(first + size, layers + 1)) for first in range(1, end, size)
  )


def parse_groups(text: str, groups: int, field: str) -> tuple[int, int]:
  """Read 'first:last', counted from 1, as a half-open range from 0."""
  match = re.fullmatch('([0-9]{1,9}):([0-9]{1,9})', text)
  first, last = map(int, match.groups()) if match else (0, 0)
  require(
    1 <= first <= last <= groups,
    field,
    f"must be 'first:last' within 1:{groups}, got {text!r}",
  )
  return first - 1, last


_DECODER = Only(('decoder',))


@section('model.*.gtrans')
class GtransOptions:
  """Group fusion and probability fusion (Yang 2022, Eq. 2-7)."""

  group_size: SizeOrZero = 0
  """Layers of a group; 0: 3 in the encoder, 2 in the decoder."""

  last_group: Literal['ceil', 'floor'] = 'ceil'
  """'ceil': the last group may be short. 'floor': layers that are left over
  belong to no group."""

  single_group_norm: Annotated[bool, Only(('encoder',))] = False
  """Encoder: a norm even where all layers are one group."""

  mode: Annotated[
    Literal['weighted_sum', 'weighted_mean', 'last'], _DECODER
  ] = 'weighted_sum'
  """Decoder: how the layers of a group become its features."""

  group_norm: Annotated[bool, _DECODER] = False
  """Decoder: a norm on the features of every group."""

  combine: Annotated[Literal['arithmetic', 'geometric'], _DECODER] = (
    'arithmetic'
  )
  """Decoder: log sum_k psi_k P_k, or sum_k psi_k log P_k."""

  temperature: Annotated[NotNegative, _DECODER] = 0.0
  """Decoder: psi = softmax(w / temperature); 0: sqrt(model.width)."""

  inference_groups: Annotated[Text, _DECODER] = ''
  """Decoder: groups that translate, 'first:last' counted from 1; '': all."""

  def layers_of_group(self, side: Side) -> int:
    """Return the number of layers of a whole group."""
    return self.group_size or (3 if side == 'encoder' else 2)

  def groups(self, layers: int, side: Side) -> tuple[range, ...]:
    """Return the layer numbers of every group of a stack."""
    return partition(layers, self.layers_of_group(side), self.last_group)


@section('model.decoder.surface')
class SurfaceOptions:
  """SurfaceFusion (Liu 2021): the source's embeddings predict too."""

  kind: Literal['hard', 'soft', 'learned'] = 'hard'
  """How both predictions become one. 'hard': with weights g and 1 - g of their
  log-probabilities; 'learned': with a g that every position computes; 'soft':
  the scores are added before the softmax."""

  weight: Annotated[float, Field(gt=0, lt=1)] = 0.8
  """Hard: weight g of the decoder's own prediction; learned: g at the
  start."""

  least: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
  """Learned: least weight of either prediction. With 0, as released, the one
  that learns faster takes all weight, and the other never learns."""

  combine: Literal['arithmetic', 'geometric'] = 'geometric'
  """Hard and learned: log(g P + (1 - g) P_s), or g log P + (1 - g) log P_s, as
  released."""

  temperature: PositiveFloat = 1.0
  """Soft: what the scores from the embeddings are divided by."""

  positions: bool = False
  """Read H[0] of the encoder, embeddings with positions."""

  network: bool = False
  """Whether a feed-forward network with a residual sum, which both predictions
  share, stands before the output layer, as in the released command."""


@section('model.encoder.transparent')
class TransparentOptions:
  """Transparent attention (Bapna et al. 2018)."""

  dropout: Share = 0.1
  """Dropout on the weights before their softmax."""

  dropout_place: Literal['logits', 'weights'] = 'logits'
  """Where dropout is; 'weights': after the softmax, as Liu et al. released."""

  memory_norm: bool = False
  """Whether the memories have a layer norm, the same for all, and dropout
  behind it, as Liu et al. released."""

  weights: Literal['constant', 'uniform'] = 'constant'
  """Weights at the start; 'constant': uniform means; 'uniform': drawn from
  +-sqrt(1 / (L + 1))."""

  feature_wise: bool = False
  """Weights for every feature instead of one weight a layer (Liu et al. 2021,
  "fine-grained")."""


@section('model.*.dlcl')
class DlclOptions:
  """Dynamic linear combination of layers (Wang et al. 2019).

  norms='none' with start='top' is the depth-weighted averaging of DenseFormer
  (Pagliardini et al. 2024), which also has dilation and period.
  """

  start: Literal['average', 'one', 'top'] = 'average'
  """Weights at the start: the mean of the predecessors; all 1; or 1 for the
  layer below and 0 for the others ('top'), which without norms is the plain
  model."""

  first: Literal['fixed', 'learned'] = 'fixed'
  """What the first layer of a post-norm stack reads. 'fixed': H[0]; 'learned':
  w H[0] with a learned w that starts as 1, as in the released code. With
  pre-norm w is always learned."""

  norms: Literal['auto', 'none'] = 'auto'
  """Norms of the layers or of their sums; 'auto': as model.norm says, see
  Dlcl."""

  normalize: Literal['none', 'softmax'] = 'none'
  """Whether the weights of a layer go through a softmax."""

  weights: Literal['scalar', 'vector'] = 'scalar'
  """One weight a layer, or one for every feature."""

  window: SizeOrZero = 0
  """Number of predecessors that are read; 0: all."""

  dilation: Depth = 1
  """Of the predecessors, read only each dilation-th, from the layer below
  downwards."""

  period: Depth = 1
  """Sum only after each period-th layer; the others read the layer below.
  Number of layers: only what follows the stack is a sum."""

  frozen: bool = False
  """Keep the weights as they start."""


@section('model.*.mudd')
class MuddOptions:
  """Multiway dynamic dense connections (Xiao et al. 2025)."""

  ways: Literal[0, 1, 4] = 4
  """Sums after each layer: one for the residual, the query, the key and the
  value of the layer above, or one for all of them. 0: none; layers read the
  layer below, and memory_ways alone has sums."""

  memory_ways: Annotated[Literal[0, 1, 2], Only(('encoder',))] = 0
  """Encoder: sums of all layers for each layer of the decoder, in place of the
  output: one for the keys and one for the values of its cross-attention, or one
  for both. 0: none; all read the output."""

  norms: Literal['none', 'pre_post'] = 'none'
  """'pre_post': norms of the layers that are summed and of the sum for the
  residual, as in the paper's deep models."""

  hidden_multiple: SizeOrZero = 0
  """Round the hidden widths K of the generators up to (K // m + 1) m; 0: not.
  The released code has 64."""


@section('model.*.grn')
class GrnOptions:
  """Generalised residual networks and DeepCrossAttention (Heddes et al. 2025).

  ways=3 with kind='dynamic' is DeepCrossAttention.
  """

  kind: Literal['scalar', 'vector', 'dynamic'] = 'dynamic'
  """Weights of the outputs below; 'scalar': a number each (v1); 'vector': one
  for every feature (v2); 'dynamic': these and a number that the output itself
  gives at every position (v3)."""

  ways: Literal[1, 3, 4] = 1
  """Sums that a layer reads: one; or one each for the query, which is its
  residual too, the key and the value; or these and one for the residual."""

  last: SizeOrZero = 0
  """Read H[0], the last outputs, as many as this, and the sum of those
  between; 0: all outputs (k-DCA is ways=3 with last=k)."""


@section('model.*.hyper')
class HyperOptions:
  """Hyper-connections (Zhu et al. 2024; Xie et al. 2025)."""

  kind: Literal['static', 'dynamic', 'identity_mix', 'manifold'] = 'dynamic'
  """How a sublayer reads, mixes and writes the streams. 'static': by
  parameters; 'dynamic': by parameters and what each stream says; 'manifold':
  by sigmoids and a doubly stochastic mix of what all streams say (mHC);
  'identity_mix': the same without a mix."""

  streams: Annotated[int, Field(ge=2, le=64)] = 4
  """Number of residual streams."""

  collapse: Literal['mean', 'learned'] = 'mean'
  """What follows the stack: the mean of the streams (the paper's sum over their
  number, which the norm behind it does not see), or a learned reading."""

  rounds: Depth = 20
  """Manifold: rounds of Sinkhorn's algorithm."""


@section('model.*.attention_residual')
class AttentionResidualOptions:
  """Attention residuals (Kimi Team 2026; Luo 2026)."""

  kind: Literal['replace', 'delta'] = 'replace'
  """'replace': a sublayer reads a weighted mean of what is below it instead of
  the residual sum; 'delta': the sum, and g times the mean."""

  sources: Literal['sublayer', 'layer'] = 'sublayer'
  """Whether each sublayer attends to the outputs of sublayers, or each layer,
  once, to those of layers."""

  block: Depth = 1
  """Sublayers, or layers, whose outputs are summed into one source; 1: each is
  a source (full attention residuals)."""

  heads: Size = 1
  """Parts of the width with weights of their own."""

  embedding: bool = False
  """Of kind='delta': whether H[0] is a source too, from the second sublayer on,
  as in the released code. kind='replace' always has it."""


@section('model.*.shortcut')
class ShortcutOptions:
  """Lexical shortcuts into attention (Emelin 2019, Eq. 5-14)."""

  source: Literal['none', 'lexical', 'non_lexical'] = 'none'
  """Where shortcuts come from; 'lexical': H[0]; 'non_lexical': H[l - 2]."""

  where: Literal['self', 'cross', 'both'] = 'self'
  """Attentions that have shortcuts."""

  feature_fusion: bool = False
  """Project both sources together (Eq. 13-14)."""

  source_norm: Literal['auto', 'plain', 'none'] = 'auto'
  """Norm without scale and offset on the source H[l - 2] of non-lexical
  shortcuts; 'auto': with pre-norm, whose states no norm has seen."""

  author_compat: bool = False
  """The variant of the released code: keys and values read what the norm has
  not seen, and the residual starts from what it has."""

  def norms_source(self, norm: str) -> bool:
    """Return whether the source of the shortcuts has a norm."""
    auto = self.source == 'non_lexical' and norm == 'pre'
    return self.source_norm == 'plain' or (
      self.source_norm == 'auto' and auto and not self.author_compat
    )


@section('model.*.value_residual')
class ValueResidualOptions:
  """Value residual (Zhou et al. 2024): each layer reads values of layer 1."""

  kind: Literal[
    'none', 'identity', 'learnable', 'constant', 'sparse', 'shared'
  ] = 'none'
  """Weights of the values of layer 1 and of the layer's own. 'identity': 1/2
  and 1/2; 'learnable': the same at first; 'constant': 2 and 1; 'sparse': 5 and
  1 in the last third of the layers, 0 and 1 in the others. 'shared': the other
  layers have no values of their own (SVFormer)."""

  where: Annotated[Literal['self', 'cross', 'both'], Only(('decoder',))] = (
    'self'
  )
  """Decoder: attentions that have it."""


@section('model.*.multi_layer')
class MultiLayerOptions:
  """Multi-layer attention (Dou 2018, Eq. 8)."""

  layers: Depth = 1
  """Layers that a self-attention reads; 1: its input alone, as usual."""

  partial: bool = False
  """Whether layers 2..k, which have fewer layers below them, read those."""


def _no(side: 'SideConfig') -> bool:
  return False


def _yes(side: 'SideConfig') -> bool:
  return True


def _one(side: 'SideConfig') -> int:
  return 1


@dataclasses.dataclass(frozen=True)
class SchemeRules:
  """What a config knows of a scheme, whose module it does not import.

  Attributes:
    options: Section of `SideConfig` that the scheme reads.
    sides: Sides that may have it.
    owns_layer_inputs: Whether layers read something else than the layer below.
    rate: Factor on the learning rate of what only the fusion has; not 1 where
      that was measured to train worse (`python -m benchmarks.scheme_health`).
    norms: Values of model.norm that it is defined for.
    ways: Number of sums that a layer reads; more than 1 replace the keys and
      values of its self-attention.
    owns_residual: Whether sublayers are added in a way of its own.
    own: Section of its options, if it is from outside the package; None: it
      has none.
  """

  options: str
  sides: tuple[Side, ...] = ('encoder', 'decoder')
  owns_layer_inputs: Callable[['SideConfig'], bool] = _no
  rate: float = 1.0
  norms: tuple[str, ...] = ('post', 'pre', 'rezero')
  ways: Callable[['SideConfig'], int] = _one
  owns_residual: bool = False
  own: type | None = None


_RULES = {
  'dense': SchemeRules('dense', owns_layer_inputs=_yes),
  'linear': SchemeRules('linear', rate=0.1),
  'iterative': SchemeRules('agg'),
  'hierarchical': SchemeRules(
    'agg', owns_layer_inputs=lambda side: side.agg.feedback
  ),
  'average': SchemeRules('mlrf'),
  'feed_forward': SchemeRules('mlrf', rate=0.3),
  'hops': SchemeRules('mlrf', rate=0.3),
  'dynamic_combination': SchemeRules('dynamic'),
  'dynamic_routing': SchemeRules('routing'),
  'em_routing': SchemeRules('routing'),
  'gtrans': SchemeRules('gtrans'),
  'transparent': SchemeRules('transparent', sides=('encoder',)),
  'dlcl': SchemeRules('dlcl', owns_layer_inputs=_yes),
  'mudd': SchemeRules(
    'mudd',
    owns_layer_inputs=lambda side: side.mudd.ways > 0,
    norms=('pre',),
    ways=lambda side: side.mudd.ways,
  ),
  'grn': SchemeRules(
    'grn',
    owns_layer_inputs=_yes,
    norms=('pre',),
    ways=lambda side: side.grn.ways,
  ),
  'hyper_connections': SchemeRules('hyper', norms=('pre',), owns_residual=True),
  'attention_residuals': SchemeRules(
    'attention_residual',
    owns_layer_inputs=_yes,
    norms=('pre',),
    owns_residual=True,
  ),
  'surface_fusion': SchemeRules('surface', sides=('decoder',)),
}
RULES: Mapping[str, SchemeRules] = types.MappingProxyType(_RULES)


def register_rules(name: str, rules: SchemeRules) -> None:
  """Add a scheme to those that configs may name."""
  if name in _RULES or name == 'none':
    raise InputError(f'fusion={name!r}: there is such a scheme already')
  _RULES[name] = rules


def _known(name: str) -> str:
  if fault := choice_fault(name, ('none', *RULES)):
    raise ValueError(f'{fault} (a scheme of your own needs --user_dir)')
  return name


@section('model.*')
class SideConfig:
  """The fusion of one stack.

  One scheme decides what follows the stack reads (and, for some, what its
  layers read). Shortcuts and multi-layer attention are inside its attention
  and go with any scheme that leaves the layers' inputs alone.
  """

  fusion: Annotated[Text, AfterValidator(_known)] = 'none'
  """Fusion scheme: 'none', or a name of `RULES`."""

  start: Literal['fresh', 'baseline'] = 'fresh'
  """'baseline': new parameters start so that the model computes what it would
  without the fusion: as identity maps where that is exact, otherwise behind
  gates that start at 0 (fusion_jax/fusion/starts.py)."""

  input_norm: Literal['auto', 'none', 'per_layer'] = 'auto'
  """Whether every layer that is fused has a norm of its own; 'auto': with
  pre-norm."""

  skip_gains: bool = False
  """Whether what a sublayer adds to is multiplied by a learned gain, which
  starts at 1 (Pagliardini et al. 2024)."""

  dense: DenseOptions = DenseOptions()
  linear: LinearOptions = LinearOptions()
  agg: AggOptions = AggOptions()
  mlrf: MlrfOptions = MlrfOptions()
  dynamic: DynamicOptions = DynamicOptions()
  routing: RoutingOptions = RoutingOptions()
  gtrans: GtransOptions = GtransOptions()
  transparent: TransparentOptions = TransparentOptions()
  surface: SurfaceOptions = SurfaceOptions()
  dlcl: DlclOptions = DlclOptions()
  mudd: MuddOptions = MuddOptions()
  grn: GrnOptions = GrnOptions()
  hyper: HyperOptions = HyperOptions()
  attention_residual: AttentionResidualOptions = AttentionResidualOptions()
  shortcut: ShortcutOptions = ShortcutOptions()
  multi_layer: MultiLayerOptions = MultiLayerOptions()
  value_residual: ValueResidualOptions = ValueResidualOptions()

  own: Annotated[tuple[tuple[Text, _Value], ...], Field(strict=False)] = ()
  """Options of a scheme that is registered from outside: names and values."""

  def own_options(self, kind: type[_Options]) -> _Options:
    """Return the options in `own`, as the section that the scheme declares."""
    return kind(**dict(self.own))

  @property
  def rules(self) -> SchemeRules | None:
    """The rules of the scheme; None without one."""
    return RULES.get(self.fusion)

  def per_layer_norms(self, norm: str) -> bool:
    """Return whether every layer that is fused has a norm of its own."""
    return self.input_norm == 'per_layer' or (
      self.input_norm == 'auto' and norm == 'pre'
    )

  @property
  def default_rate(self) -> float:
    """The factor on the learning rate of the fusion's parameters."""
    return self.rules.rate if self.rules else 1.0

  @property
  def combine(self) -> Literal['arithmetic', 'geometric']:
    """How the predictions of a decoder are mixed, if it has several."""
    surface = self.fusion == 'surface_fusion'
    return self.surface.combine if surface else self.gtrans.combine

  @property
  def owns_layer_inputs(self) -> bool:
    """Whether layers read something else than the layer below."""
    return bool(self.rules and self.rules.owns_layer_inputs(self))

  @property
  def ways(self) -> int:
    """Number of sums that a layer reads."""
    return self.rules.ways(self) if self.rules else 1
