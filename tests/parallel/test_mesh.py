"""Training steps on meshes of all kinds against one device."""

import dataclasses
import functools
import itertools
import re

import jax
import numpy as np
import optax
import pytest
from cases import CASES, norm_for
from jax.sharding import AxisType

from fusion_jax.config import (
  PRESETS,
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.config.fusion import SideConfig
from fusion_jax.config.parallel import AxisRules, ParallelConfig
from fusion_jax.config.presets import changed
from fusion_jax.data.batching import Batch
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.transformer import Transformer
from fusion_jax.parallel.mesh import (
  AXES,
  by_rows,
  make_mesh,
  over_slices,
  replicated,
)
from fusion_jax.runs.checkpoint import TrainState
from fusion_jax.testing import drawn_parameters
from fusion_jax.training.build import check_experiment
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.state import plan_state
from fusion_jax.training.step import make_train_step, zero_totals

_VOCABULARY = 32
_TINY = dataclasses.replace(
  PRESETS['tiny'],
  width=16,
  filter=32,
  encoder_layers=1,
  decoder_layers=2,
  attention_dropout=0.1,
)
_LAYOUTS = [(8, 1, 1), (2, 2, 2)]


def _batch(seed: int) -> Batch:
  rng = np.random.default_rng(seed)
  draw = functools.partial(rng.integers, dtype=np.int32)
  ids = (draw(4, _VOCABULARY, (16, size)) for size in (5, 6))
  return Batch(*ids, draw(1, 6, 16), draw(0, 7, 16))


def _config(model: ModelConfig, **options) -> ExperimentConfig:
  return ExperimentConfig(
    model=model,
    # As in test_step: Adam must not blow up what is zero but for rounding.
    optimizer=OptimizerConfig(
      schedule='inverse_sqrt',
      peak=1e-1,
      warmup_steps=1,
      epsilon=1e-2,
      accumulation=options.pop('accumulation', 1),
    ),
    training=TrainingConfig(loss_chunk=8, **options),
  )


class _Job:
  """A training step and its state on a mesh."""

  def __init__(
    self,
    config: ExperimentConfig,
    layout: tuple[int, int, int],
    optimizer: optax.GradientTransformation | None = None,
  ):
    devices = jax.devices()[: int(np.prod(layout))]
    types = (AxisType.Auto,) * 3
    self.mesh = jax.make_mesh(layout, AXES, axis_types=types, devices=devices)
    model = Transformer(config.model, _VOCABULARY, _VOCABULARY, 2)
    optimizer = optimizer or make_optimizer(
      config.optimizer, config.model.width
    )
    plan = plan_state(model, optimizer, config, self.mesh)
    self.step = make_train_step(model, optimizer, config, self.mesh, plan.specs)
    self._model, self._plan = model, plan
    self.totals = jax.device_put(
      zero_totals(config.model.encoder_layers), replicated(self.mesh)
    )

  @functools.cached_property
  def state(self) -> TrainState:
    with jax.set_mesh(self.mesh):
      return self._plan.make()

  def start_anywhere(self) -> None:
    """Random parameters, the same on every mesh, and nothing to compile."""
    abstract = self._plan.abstract
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)
    self.state = jax.device_put(
      zeros._replace(parameters=drawn_parameters(self._model, seed=0)),
      jax.tree.map(lambda x: x.sharding, abstract),
    )

  def batch(self, seed: int) -> Batch:
    return jax.device_put(_batch(seed), by_rows(self.mesh))

  def run(self, steps: int = 2):
    with jax.set_mesh(self.mesh):
      for seed in range(steps):
        self.state, self.totals = self.step(
          self.state, self.totals, self.batch(seed)
        )
    return jax.device_get((self.state, self.totals))

  def compiled(self) -> str:
    with jax.set_mesh(self.mesh):
      lowered = self.step.lower(self.state, self.totals, self.batch(0))
    return lowered.compile().as_text()


def _assert_agree(one, many):
  (state, totals), (other, others) = one, many
  assert totals.sums.tokens == others.sums.tokens
  np.testing.assert_allclose(totals.sums.loss, others.sums.loss, rtol=1e-5)
  np.testing.assert_allclose(totals.diversity, others.diversity, rtol=1e-4)
  for path, x in jax.tree.leaves_with_path(state.parameters):
    y = functools.reduce(lambda t, key: t[key.key], path, other.parameters)
    name = jax.tree_util.keystr(path)
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=name)


_FULL = _config(_TINY, accumulation=2, diversity=1.0)


@functools.cache
def _on_one_device():
  return _Job(_FULL, (1, 1, 1)).run()


@pytest.mark.extended
@pytest.mark.parametrize(('data', 'fsdp', 'tensor'), _LAYOUTS)
def test_layouts_agree_with_dropout_accumulation_and_diversity(
  data, fsdp, tensor
):
  job = _Job(_FULL, (data, fsdp, tensor))
  _assert_agree(_on_one_device(), job.run())
  assert job.step._cache_size() == 1


@pytest.mark.extended
def test_the_kernel_of_attention_agrees_where_heads_are_divided():
  plain = changed(_FULL, {'model.attention_dropout': 0.0})
  kernel = changed(plain, {'model.attention_implementation': 'xla'})
  _assert_agree(_Job(plain, (1, 1, 1)).run(), _Job(kernel, (2, 2, 2)).run())


def _scheme_cases() -> dict[str, ModelConfig]:
  """Models that have every scheme on one of their sides."""
  both = [name for name, scheme in SCHEMES.items() if len(scheme.modules) == 2]
  one_sided = [name for name in SCHEMES if name not in both]
  assert one_sided == ['transparent', 'surface_fusion']
  encoder, decoder = ['transparent', *both[::2]], both[1::2]
  cases = {
    '-'.join(names): _fused(*names)
    for names in itertools.zip_longest(encoder, decoder, fillvalue='none')
  }
  cases['learned-surface'] = CASES['surface_fusion-options-2']
  cases['scan-linear'] = CASES['scan-linear']
  cases['shortcut-multi_layer'] = dataclasses.replace(
    CASES['rezero'],
    encoder=CASES['shortcut'].encoder,
    decoder=CASES['multi_layer-2'].decoder,
  )
  cases['memories-shared-gains'] = dataclasses.replace(
    CASES['rezero'],
    norm='pre',
    encoder=dataclasses.replace(CASES['mudd-memory'].encoder, skip_gains=True),
    decoder=CASES['value-shared-both'].decoder,
  )
  return cases


def _fused(encoder: str, decoder: str) -> ModelConfig:
  """In groups of one, two layers are two nodes or groups."""
  alone = {name: {'group_size': 1} for name in ('gtrans', 'hierarchical')}
  return dataclasses.replace(
    CASES['rezero'],
    norm=norm_for(encoder, decoder),
    encoder_layers=2,
    decoder_layers=2,
    encoder=SideConfig(encoder, alone.get(encoder)),
    decoder=SideConfig(decoder, alone.get(decoder)),
  )


_SCHEMES = _scheme_cases()
_SOME = 'dense-hierarchical', 'hops-em_routing', 'learned-surface'


@pytest.mark.extended
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name in _SOME else pytest.mark.slow)
    for name in _SCHEMES
  ],
)
def test_every_scheme_agrees_where_its_parameters_are_cut_by_both_axes(name):
  # Adam, which other tests have, would take the scale out of a wrong gradient.
  descent = optax.with_extra_args_support(optax.sgd(1.0))
  # The dropout of layers is above; it takes half of the time to compile.
  config = _config(dataclasses.replace(_SCHEMES[name], dropout=0.0))
  many, one = (
    _Job(config, layout, descent) for layout in [(1, 2, 2), (1, 1, 1)]
  )
  many.start_anywhere()
  one.start_anywhere()
  _assert_agree(one.run(steps=1), many.run(steps=1))


def test_state_is_cut_from_the_beginning():
  state = _Job(_config(_TINY), (1, 4, 2)).state
  leaves = jax.tree.leaves((state.parameters, state.optimizer))
  whole = sum(x.nbytes for x in leaves)
  own = sum(x.addressable_shards[0].data.nbytes for x in leaves)
  # Norms stay whole, everything else is cut by 8, biases by 4 or 2.
  assert own < 0.2 * whole
  kernel = state.parameters['encoder']['layer_0']['feed_forward']['hidden']
  assert kernel['kernel'].addressable_shards[0].data.shape == (4, 16)


def test_the_rules_of_the_config_decide():
  rules = AxisRules(embed='tensor', mlp='')
  config = dataclasses.replace(
    _config(_TINY), parallel=ParallelConfig(rules=rules)
  )
  model = Transformer(_TINY, _VOCABULARY, _VOCABULARY, 2)
  optimizer = make_optimizer(config.optimizer, _TINY.width)
  mesh = jax.make_mesh((1, 4, 2), AXES, axis_types=(AxisType.Auto,) * 3)
  specs = plan_state(model, optimizer, config, mesh).specs
  hidden = specs.parameters['encoder']['layer_0']['feed_forward']['hidden']
  assert tuple(hidden['kernel']) == ('tensor',)
  moments = jax.tree.leaves(specs.optimizer, is_leaf=lambda x: x == ('tensor',))
  assert moments.count(hidden['kernel']) >= 2


def test_a_size_that_does_not_divide_stays_whole():
  model = Transformer(_TINY, _VOCABULARY + 1, _VOCABULARY + 1, 2)
  optimizer = make_optimizer(OptimizerConfig(), _TINY.width)
  mesh = jax.make_mesh((1, 4, 2), AXES, axis_types=(AxisType.Auto,) * 3)
  specs = plan_state(model, optimizer, _config(_TINY), mesh).specs
  assert tuple(specs.parameters['source_embedding']) == (None, 'fsdp')


_COLLECTIVE = re.compile(
  r'= .*? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)'
  r'(-start)?\(.*op_name="([^"]*)"'
)


@pytest.mark.extended
def test_gradients_are_added_once_an_update_however_many_parts():
  text = _Job(_FULL, (2, 4, 1)).compiled()
  found = [match.group(1, 3) for match in _COLLECTIVE.finditer(text)]
  assert {kind for kind, _ in found} == {
    'all-gather',
    'reduce-scatter',
    'all-reduce',
  }
  assert not [name for _, name in found if 'while' in name]


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'data': 3}, 'data=3 x fsdp=1 x tensor=1 does not multiply to the 8'),
    ({'fsdp': 3}, 'data=-1 x fsdp=3 x tensor=1 does not multiply to the 8'),
    ({'fsdp': 16}, 'data=-1 x fsdp=16 x tensor=1 does not multiply'),
    ({'fsdp': -1}, 'parallel.fsdp: only one axis can be -1'),
    ({'tensor': 0}, 'parallel.tensor: must be at least 1, or -1'),
  ],
)
def test_meshes_that_cannot_be(options, message):
  with pytest.raises(InputError, match=re.escape(message)):
    ParallelConfig(**options).shape(8)


def test_rows_that_do_not_divide_over_the_mesh():
  check_experiment(_config(_TINY), jax.devices())
  message = 'row_multiple: must be a multiple of 16, the 8 devices'
  with pytest.raises(InputError, match=message):
    check_experiment(_FULL, jax.devices())


def test_attention_by_cudnn_needs_gpus():
  cudnn = {'model.attention_implementation': 'cudnn'}
  half = {'model.compute_dtype': 'bfloat16', 'model.attention_dropout': 0.0}
  config = changed(_config(_TINY), half | cudnn)
  with pytest.raises(InputError, match='needs NVIDIA GPUs, the devices are c'):
    check_experiment(config, jax.devices())


def test_the_rest_of_the_devices():
  assert ParallelConfig().shape(8) == (8, 1, 1)
  assert ParallelConfig(fsdp=2, tensor=2).shape(8) == (2, 2, 2)
  assert ParallelConfig(data=1, fsdp=-1).shape(8) == (1, 8, 1)


@pytest.mark.parametrize(
  ('shape', 'slices', 'outer'),
  [
    ((32, 1, 1), 2, (2, 1, 1)),
    ((4, 4, 2), 4, (4, 1, 1)),
    ((1, 8, 2), 2, (1, 2, 1)),
    ((2, 4, 1), 4, (2, 2, 1)),
    ((6, 2, 1), 4, (2, 2, 1)),
  ],
)
def test_data_lies_over_slices_and_then_fsdp(shape, slices, outer):
  assert over_slices(shape, slices) == outer


@pytest.mark.parametrize(
  ('shape', 'slices'), [((1, 1, 8), 2), ((3, 1, 2), 2), ((2, 3, 2), 4)]
)
def test_tensor_stays_inside_of_a_slice(shape, slices):
  with pytest.raises(InputError, match='does not divide over the'):
    over_slices(shape, slices)


def test_a_mesh_of_given_devices():
  devices = jax.devices()[2:6]
  mesh = make_mesh(ParallelConfig(fsdp=2), devices)
  assert dict(mesh.shape) == {'data': 2, 'fsdp': 2, 'tensor': 1}
  assert list(mesh.devices.flat) == devices
  with pytest.raises(InputError, match='does not multiply to the 4 devices'):
    make_mesh(ParallelConfig(fsdp=3), devices)
