"""The frozen dataclasses of an experiment and their checks.

Every field is described here, once. A file in `configs/` builds an
`ExperimentConfig`; the run directory keeps it as `config.json`.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Literal

from fusion_jax.decoding_options import DecodingConfig
from fusion_jax.directions import (
  Direction,
  check_directions,
  check_tag,
  tag_of,
)
from fusion_jax.errors import require, require_at_least
from fusion_jax.fusion_checks import check_side
from fusion_jax.fusion_options import Side, SideConfig
from fusion_jax.parallel_options import ParallelConfig

_STRICT = types.MappingProxyType({'extra': 'forbid'})


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """How text becomes subword ids (SentencePiece)."""

  __pydantic_config__ = _STRICT

  # 'unigram' (Kudo 2018) or 'bpe' (Sennrich et al. 2016).
  algorithm: Literal['unigram', 'bpe'] = 'unigram'
  # Pieces in each vocabulary, the special symbols included.
  vocabulary_size: int = 32_000
  # Unknown characters become UTF-8 bytes instead of <unk>.
  byte_fallback: bool = False
  # Share of the characters of the corpus that get a piece of their own.
  character_coverage: float = 1.0
  # One vocabulary for both languages, or one for each.
  joint: bool = True
  # At most so many lines, evenly spaced, train the tokenizer; 0: all. Each
  # direction has the share of them that it has of the training.
  training_lines: int = 2_000_000
  # Use these SentencePiece models and train none. With joint=True only
  # source_model is given.
  source_model: str = ''
  target_model: str = ''

  def __post_init__(self):
    path = 'data.tokenizer.'
    require(
      self.vocabulary_size >= 8,
      path + 'vocabulary_size',
      f'must be at least 8, got {self.vocabulary_size}',
    )
    require(
      0.9 <= self.character_coverage <= 1.0,
      path + 'character_coverage',
      f'must be between 0.9 and 1, got {self.character_coverage}',
    )
    require(
      self.training_lines >= 0,
      path + 'training_lines',
      f'must be 0 (all) or more, got {self.training_lines}',
    )
    require(
      not (self.joint and self.target_model),
      path + 'target_model',
      'must be empty with joint=True: source_model serves both sides',
    )
    require(
      self.joint or bool(self.source_model) == bool(self.target_model),
      path + 'source_model',
      'give both source_model and target_model, or neither',
    )


@dataclasses.dataclass(frozen=True)
class FilterConfig:
  """Which training pairs are dropped. Empty lines always are."""

  __pydantic_config__ = _STRICT

  # Longest source or target in subwords, tags and the end symbol included.
  max_length: int = 128
  # Largest ratio of the two lengths in subwords; 0: any. Pairs in which
  # both sides have at most 10 subwords are not tested.
  max_length_ratio: float = 0.0
  # Drop a pair that has been seen before.
  drop_duplicates: bool = False

  def __post_init__(self):
    require(
      self.max_length >= 2,
      'data.filter.max_length',
      f'must be at least 2, got {self.max_length}',
    )
    require(
      self.max_length_ratio == 0 or self.max_length_ratio >= 1,
      'data.filter.max_length_ratio',
      f'must be 0 (any) or at least 1, got {self.max_length_ratio}',
    )


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """How examples become a bounded set of batch shapes."""

  __pydantic_config__ = _STRICT

  # Slots of one batch on one side, padding included: a batch of R rows of
  # S source and T target positions has R * (S + T) / 2 of them. It counts
  # the whole batch over all devices and all accumulated parts.
  tokens: int = 4_096
  # At most so many (rows, source, target) shapes; each is compiled once.
  shapes: int = 8
  # Source and target lengths of a shape are multiples of this. 8 suits
  # TPUs; 1 leaves the least padding.
  length_multiple: int = 1
  # Rows of a shape are a multiple of this and of optimizer.accumulation. The
  # devices that rows are cut over, times accumulation, must divide it.
  row_multiple: int = 8
  # Several training pairs share a row, none of which sees another; all
  # batches then have one shape. Validation keeps to `shapes`.
  packing: bool = False
  # Source and target positions of a packed row, at least
  # data.filter.max_length; 0: chosen from the lengths of the corpus.
  packed_source: int = 0
  packed_target: int = 0

  def __post_init__(self):
    names = 'tokens', 'shapes', 'length_multiple', 'row_multiple'
    require_at_least(1, self, 'data.batch', *names)
    for field in ('packed_source', 'packed_target'):
      require_at_least(0, self, 'data.batch', field)
      value, multiple = getattr(self, field), self.length_multiple
      require(
        self.packing or not value,
        f'data.batch.{field}',
        f'needs data.batch.packing=True, got {value} without it',
      )
      require(
        value % multiple == 0,
        f'data.batch.{field}',
        f'must be a multiple of data.batch.length_multiple={multiple}, got '
        f'{value}',
      )


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """Subword regularisation of the training text (Kudo 2018; Provilkov 2020)."""

  __pydantic_config__ = _STRICT

  # Unigram: the smoothing exponent of the lattice sampling (0.1 in the
  # paper). BPE: the probability of dropping a merge. 0: no sampling.
  source_alpha: float = 0.0
  target_alpha: float = 0.0

  def __post_init__(self):
    for field in ('source_alpha', 'target_alpha'):
      value = getattr(self, field)
      require(
        0 <= value <= 1,
        f'data.sampling.{field}',
        f'must be between 0 and 1, got {value}',
      )

  @property
  def enabled(self) -> bool:
    return self.source_alpha > 0 or self.target_alpha > 0


# The fields of `DataConfig` that `directions` replace.
_ONE_DIRECTION = (
  'source_language',
  'target_language',
  'train',
  'valid',
  'test',
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Where the text comes from and how it becomes batches.

  A corpus is named by a string:
    'dir/train.{lang}.gz'              parallel files, one per language; plain,
                                       .gz or .xz
    'tfds:wmt14_translate/de-en:train' a TFDS translation dataset and split
    'embedded:train'                   the corpus that ships in the package
  """

  __pydantic_config__ = _STRICT

  # Language codes; they replace {lang} in file names, and name the features
  # of a TFDS dataset.
  source_language: str = 'en'
  target_language: str = 'de'
  # Corpora of each split, joined in this order.
  train: tuple[str, ...] = ('embedded:train',)
  valid: tuple[str, ...] = ('embedded:valid',)
  test: tuple[str, ...] = ('embedded:test',)
  # Several directions in one run, in place of the five fields above. All are
  # encoded by the same tokenizer and trained in one mixture.
  directions: tuple[Direction, ...] = ()
  # Tags before the subwords of the source, first that of its language, then
  # that of the language to translate to: '<2{lang}>' for example; '': none.
  # The target's (Johnson et al. 2017) is needed where one source language has
  # several target languages. Each tag is one piece of the vocabulary, which no
  # text is cut into and no translation has.
  source_tag: str = ''
  target_tag: str = ''
  # T: direction k has the share (n_k * weight_k)^(1/T) of the training pairs,
  # up to a factor (Arivazhagan et al. 2019). 1: in proportion to its n_k
  # pairs; the larger, the more alike.
  mixing_temperature: float = 1.0
  # Relative file names start here.
  root: str = '.'
  # Prepared corpora live here, each in a folder named by its content.
  prepared: str = 'prepared'
  # Pairs of the embedded training corpus.
  embedded_pairs: int = 50_000
  tokenizer: TokenizerConfig = TokenizerConfig()
  filter: FilterConfig = FilterConfig()
  batch: BatchConfig = BatchConfig()
  sampling: SamplingConfig = SamplingConfig()

  def __post_init__(self):
    require(bool(self.train), 'data.train', 'must name at least one corpus')
    require(
      self.source_language != self.target_language,
      'data.target_language',
      f'must differ from the source language, both are '
      f'{self.source_language!r}',
    )
    require(
      self.embedded_pairs >= 1,
      'data.embedded_pairs',
      f'must be >= 1, got {self.embedded_pairs}',
    )
    require(
      0 < self.mixing_temperature < math.inf,
      'data.mixing_temperature',
      f'must be > 0 and finite, got {self.mixing_temperature}',
    )
    self._check_directions()
    self._check_packing()

  def _check_directions(self) -> None:
    every = self.all_directions
    for side in ('source', 'target'):
      languages = [getattr(each, f'{side}_language') for each in every]
      check_tag(f'data.{side}_tag', getattr(self, f'{side}_tag'), languages)
    if not self.directions:
      return
    check_directions(self.directions, self.target_tag)
    for field in dataclasses.fields(self):
      if field.name in _ONE_DIRECTION:
        require(
          getattr(self, field.name) == field.default,
          f'data.{field.name}',
          'has no effect with data.directions; leave it out',
        )

  def _check_packing(self) -> None:
    longest = self.filter.max_length
    for field in ('packed_source', 'packed_target'):
      size = getattr(self.batch, field)
      require(
        size == 0 or size >= longest,
        f'data.batch.{field}',
        f'must be 0 (chosen) or at least data.filter.max_length={longest}, '
        f'got {size}',
      )

  @property
  def all_directions(self) -> tuple[Direction, ...]:
    """`directions`, or the one of the fields above them."""
    own = {name: getattr(self, name) for name in _ONE_DIRECTION}
    return self.directions or (Direction(**own),)

  def between(self, source: str, target: str) -> 'DataConfig':
    """The same with one direction, of these languages."""
    return dataclasses.replace(
      self, source_language=source, target_language=target, directions=()
    )

  def tags(self, source: str, target: str) -> tuple[str, ...]:
    """What stands before a source line of one language for the other."""
    pairs = (self.source_tag, source), (self.target_tag, target)
    return tuple(tag_of(*each) for each in pairs if each[0])

  @property
  def all_tags(self) -> tuple[str, ...]:
    """Those of all directions, each once."""
    tags = (
      self.tags(each.source_language, each.target_language)
      for each in self.all_directions
    )
    return tuple(dict.fromkeys(tag for own in tags for tag in own))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The encoder-decoder Transformer of Vaswani et al. (2017)."""

  __pydantic_config__ = _STRICT

  # Model width D (d_model).
  width: int = 512
  # Width of the hidden layer of the feed-forward sublayer, F.
  filter: int = 2048
  # Attention heads N; the head width is width / heads.
  heads: int = 8
  encoder_layers: int = 6
  decoder_layers: int = 6
  # 'post': LN(x + f(x)), the paper's. 'pre': x + f(LN(x)), and one LN more
  # at the end of each stack. 'rezero': x + a f(x) without any norm, a = 0 at
  # first and one a layer (Bachlechner et al. 2020).
  norm: Literal['post', 'pre', 'rezero'] = 'post'
  norm_epsilon: float = 1e-6
  # 'sinusoidal': section 3.5 of the paper. 'learned': a table of
  # max_positions vectors for each side.
  positions: Literal['sinusoidal', 'learned'] = 'sinusoidal'
  max_positions: int = 1_024
  # Which of the source table, the target table and the output projection
  # are one array: 'none'; 'source_target'; 'target_output'; 'all'.
  tied_embeddings: Literal['none', 'source_target', 'target_output', 'all'] = (
    'all'
  )
  # Biases of the attention projections, of the feed-forward layers and of
  # the output projection.
  attention_bias: bool = True
  feedforward_bias: bool = True
  output_bias: bool = False
  # 'glorot': uniform(+-sqrt(6 / (fan_in + fan_out))), biases 0.
  # 'mlrf': uniform(+-1 / sqrt(fan_in)), biases too (Wang et al. 2018).
  # Embeddings are normal with deviation width^-0.5 in both.
  initialization: Literal['glorot', 'mlrf'] = 'glorot'
  # Dropout on: the output of every sublayer; the attention weights; the
  # hidden layer of the feed-forward sublayer; the sum of embedding and
  # position.
  dropout: float = 0.1
  attention_dropout: float = 0.0
  activation_dropout: float = 0.0
  embedding_dropout: float = 0.1
  # 'hash': a counter-based integer hash, cheap on every backend.
  # 'threefry': jax.random.bernoulli.
  dropout_generator: Literal['hash', 'threefry'] = 'hash'
  # Dtype of activations and matrix products. Parameters, softmax, norms and
  # loss are float32 in either case.
  compute_dtype: Literal['float32', 'bfloat16'] = 'float32'
  # How the layers of each stack are fused.
  encoder: SideConfig = SideConfig()
  decoder: SideConfig = SideConfig()
  # Compile one layer and run it in a loop: compilation does not grow with
  # depth. Their parameters are then one array over all layers.
  scan_layers: bool = False
  # Compute the insides of each layer again in the backward pass and keep only
  # its inputs, and beside them by remat_policy 'nothing'; 'dots': the results
  # of all matrix products; 'dots_without_batch': of those with weights, not
  # of the attention's. XLA on a CPU saves memory by it only with scan_layers.
  remat: bool = False
  remat_policy: Literal['nothing', 'dots', 'dots_without_batch'] = 'nothing'

  def __post_init__(self):
    sizes = 'width', 'filter', 'heads', 'max_positions'
    layers = 'encoder_layers', 'decoder_layers'
    require_at_least(1, self, 'model', *sizes, *layers)
    require(
      self.width % self.heads == 0,
      'model.heads',
      f'must divide model.width: {self.width} / {self.heads} leaves a '
      f'remainder of {self.width % self.heads}',
    )
    require(
      self.positions == 'learned' or self.width % 2 == 0,
      'model.width',
      f'must be even for sinusoidal positions, got {self.width}',
    )
    require(
      self.remat or self.remat_policy == 'nothing',
      'model.remat_policy',
      f'{self.remat_policy!r} needs model.remat=True; set it, or leave the '
      'policy out',
    )
    for field in (
      'dropout',
      'attention_dropout',
      'activation_dropout',
      'embedding_dropout',
    ):
      value = getattr(self, field)
      require(
        0 <= value < 1, f'model.{field}', f'must be in [0, 1), got {value}'
      )
    for name in ('encoder', 'decoder'):
      check_side(
        self.side(name),
        name,
        layers=self.layers(name),
        width=self.width,
        filter_width=self.filter,
        norm=self.norm,
      )
      self._check_scan(name)

  def _check_scan(self, name: Side) -> None:
    side = self.side(name)
    many = side.multi_layer.layers > 1
    require(
      not (self.scan_layers and (side.owns_layer_inputs or many)),
      'model.scan_layers',
      f'needs layers that are all alike, which model.{name} with '
      + ('multi_layer.layers > 1' if many else f'fusion={side.fusion!r}')
      + ' has not; choose one',
    )

  def side(self, name: Side) -> SideConfig:
    """The fusion of the encoder or the decoder."""
    return self.encoder if name == 'encoder' else self.decoder

  def layers(self, name: Side) -> int:
    """The layers of the encoder or the decoder."""
    return self.encoder_layers if name == 'encoder' else self.decoder_layers

  @property
  def head_width(self) -> int:
    return self.width // self.heads


# Vaswani et al. (2017), Table 3; 'small' and 'tiny' for CPUs and tests.
PRESETS: Mapping[str, ModelConfig] = types.MappingProxyType(
  {
    'big': ModelConfig(width=1024, filter=4096, heads=16, dropout=0.3),
    'base': ModelConfig(),
    'small': ModelConfig(
      width=256, filter=1024, heads=4, encoder_layers=3, decoder_layers=3
    ),
    'tiny': ModelConfig(
      width=64, filter=128, heads=2, encoder_layers=2, decoder_layers=2
    ),
  }
)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Adam and its learning-rate schedule."""

  __pydantic_config__ = _STRICT

  # The rate of update t, counted from 1, with W updates of warm-up; all but
  # 'vaswani' grow linearly to `peak`.
  # 'vaswani': scale * D^-0.5 * min(t^-0.5, t * W^-1.5), their Eq. 3.
  # 'inverse_sqrt': then peak * sqrt(W / t).
  # 'cosine': then half a cosine from `peak` to `final` at training.steps.
  # 'constant': then `peak`.
  schedule: Literal['vaswani', 'inverse_sqrt', 'cosine', 'constant'] = 'vaswani'
  scale: float = 1.0
  peak: float = 5e-4
  final: float = 0.0
  # W; 1 is no warm-up.
  warmup_steps: int = 4_000
  # The warm-up lasts until so many target tokens have been seen and grows
  # with them; W is then the updates that it took. 0: by warmup_steps.
  warmup_tokens: int = 0
  beta1: float = 0.9
  beta2: float = 0.98
  epsilon: float = 1e-9
  # Dtype in which Adam's first moment is kept between the updates, which
  # are computed in float32; the second moment is always float32.
  moments_dtype: Literal['float32', 'bfloat16'] = 'float32'
  # Decoupled decay (AdamW, Loshchilov and Hutter 2019): an update also takes
  # rate * weight_decay * parameter from the weight matrices and embedding
  # tables; norms, biases and the scalars of fusions have none.
  weight_decay: float = 0.0
  # Largest global norm of the gradient of the mean loss; 0: no clipping.
  clip_norm: float = 0.0
  # Parts into which a batch is cut; their gradients are added before the
  # update.
  accumulation: int = 1

  def __post_init__(self):
    for field in ('scale', 'peak', 'epsilon'):
      value = getattr(self, field)
      require(value > 0, f'optimizer.{field}', f'must be > 0, got {value}')
    require_at_least(1, self, 'optimizer', 'warmup_steps', 'accumulation')
    require_at_least(0, self, 'optimizer', 'weight_decay')
    self._check_schedule()
    for field in ('beta1', 'beta2'):
      value = getattr(self, field)
      require(
        0 <= value < 1, f'optimizer.{field}', f'must be in [0, 1), got {value}'
      )
    require(
      self.clip_norm >= 0,
      'optimizer.clip_norm',
      f'must be 0 (none) or more, got {self.clip_norm}',
    )

  def _check_schedule(self) -> None:
    require(
      0 <= self.final <= self.peak,
      'optimizer.final',
      f'must be between 0 and optimizer.peak={self.peak}, got {self.final}',
    )
    require(
      0 <= self.warmup_tokens < 2**31,
      'optimizer.warmup_tokens',
      f'must be at least 0 (by steps) and below 2^31, got {self.warmup_tokens}',
    )
    require(
      not (self.warmup_tokens and self.schedule == 'vaswani'),
      'optimizer.warmup_tokens',
      "needs a schedule with a peak of its own; that of 'vaswani' follows "
      "from warmup_steps: use 'inverse_sqrt' with optimizer.peak",
    )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
  """The loop: how long, how often, what is kept."""

  __pydantic_config__ = _STRICT

  # Updates.
  steps: int = 100_000
  # A run directory whose parameters a new run starts from; what is new in
  # this model starts fresh, and so do optimizer and schedule.
  init_from: str = ''
  # Parameters that are not trained: patterns of the shell over their names,
  # where * matches / too: 'encoder/*', '*_embedding'. They get no update, no
  # decay and no moments. `python -m fusion_jax.models` lists the names.
  freeze: tuple[str, ...] = ()
  # Decay d of the average of the parameters, a + (1 - d) (p - a) after every
  # update, starting at the parameters; 0: none. Validation and decoding read
  # the average, and the state has one more copy of the parameters.
  ema: float = 0.0
  # An update whose loss or gradient is not finite is left out; so many in a
  # row end the run at the next progress line or checkpoint.
  max_skipped: int = 10
  # Where weight matrices become bfloat16, with compute_dtype='bfloat16': at
  # every use, or in one copy a step that all uses and parts of the batch
  # read. Those of the optimizer, and tables and all else, are float32.
  cast_weights: Literal['at_use', 'once'] = 'at_use'
  # Of the initial parameters, the order of the data and dropout.
  seed: int = 0
  label_smoothing: float = 0.1
  # Weight of the layer-diversity reward (Dou et al. 2018, Eq. 9-10; 1.0
  # there); 0: none. The reward of the two stacks is their sum or mean.
  diversity: float = 0.0
  diversity_sides: Literal['sum', 'mean'] = 'sum'
  # Target tokens of one chunk of the output layer and loss; the logits of
  # one chunk are all that is held at a time. 0: the whole batch at once.
  loss_chunk: int = 256
  # Steps between progress lines, between validations (loss and BLEU) and
  # between checkpoints. A validation always saves.
  log_every: int = 100
  validate_every: int = 1_000
  save_every: int = 1_000
  # Validation sentences that are translated for BLEU, of each direction; 0:
  # all. Of several directions `metric` is the mean over them.
  translate_sentences: int = 0
  # Beam of that translation; the other settings are those of `decoding`.
  translate_beam: int = 1
  # Checkpoints kept: the last ones, and the best by `metric`.
  keep_last: int = 5
  keep_best: int = 1
  metric: Literal['bleu', 'chrf', 'loss'] = 'bleu'
  # Validations without improvement of `metric` before stopping; 0: never.
  patience: int = 0

  def __post_init__(self):
    every = 'log_every', 'validate_every', 'save_every'
    counts = 'steps', 'keep_last', 'translate_beam', 'max_skipped'
    require_at_least(1, self, 'training', *every, *counts)
    optional = 'patience', 'keep_best', 'loss_chunk', 'translate_sentences'
    require_at_least(0, self, 'training', *optional, 'seed')
    require(
      self.diversity >= 0,
      'training.diversity',
      f'must be 0 (none) or more, got {self.diversity}',
    )
    require(
      0 <= self.label_smoothing < 1,
      'training.label_smoothing',
      f'must be in [0, 1), got {self.label_smoothing}',
    )
    require(
      0 <= self.ema < 1,
      'training.ema',
      f'must be 0 (none) or below 1, got {self.ema}',
    )
    require(
      all(self.freeze),
      'training.freeze',
      "must have no empty pattern; () freezes nothing, '*' all",
    )


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
  """All of an experiment."""

  __pydantic_config__ = _STRICT

  name: str = 'experiment'
  data: DataConfig = DataConfig()
  model: ModelConfig = ModelConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  training: TrainingConfig = TrainingConfig()
  decoding: DecodingConfig = DecodingConfig()
  parallel: ParallelConfig = ParallelConfig()

  def __post_init__(self):
    tied_sides = self.model.tied_embeddings in ('all', 'source_target')
    require(
      self.data.tokenizer.joint or not tied_sides,
      'model.tied_embeddings',
      f"'{self.model.tied_embeddings}' shares one table between the sides "
      'and needs data.tokenizer.joint=True',
    )
    self._check_recipe()
    if self.model.positions == 'learned':
      longest = max(
        self.data.filter.max_length, self.decoding.max_source_length
      )
      require(
        self.model.max_positions >= longest,
        'model.max_positions',
        f'must be at least {longest}, the longest line of data.filter or '
        f'decoding, got {self.model.max_positions}',
      )

  def _check_recipe(self) -> None:
    optimizer, steps = self.optimizer, self.training.steps
    require(
      optimizer.schedule != 'cosine'
      or optimizer.warmup_tokens > 0
      or optimizer.warmup_steps < steps,
      'optimizer.warmup_steps',
      f'must be below training.steps={steps}, where the cosine ends, got '
      f'{optimizer.warmup_steps}',
    )
    require(
      self.training.cast_weights == 'at_use'
      or self.model.compute_dtype == 'bfloat16',
      'training.cast_weights',
      "'once' needs model.compute_dtype='bfloat16'; use 'at_use'",
    )
