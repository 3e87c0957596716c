"""Compiling without running: topologies, figures, the largest batch."""

import dataclasses
import functools
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from fusion_jax.config import (
  PRESETS,
  BatchConfig,
  DataConfig,
  ExperimentConfig,
  FilterConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.config.decoding import DecodingConfig
from fusion_jax.config.training import ParallelConfig
from fusion_jax.data.batching import Shape
from fusion_jax.data.prepare import prepare
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.parallel.mesh import make_mesh
from fusion_jax.tools.aot.__main__ import as_json, report
from fusion_jax.tools.aot.counts import Collective, Total, collectives, totals
from fusion_jax.tools.aot.programs import (
  COMPILATIONS,
  DoesNotFit,
  Figures,
  ProgramRequest,
  figures_for,
  largest_batch,
  search_shape,
  too_large,
  training_shape,
  vocabulary_sizes,
)
from fusion_jax.tools.aot.topology import CHIPS, read_topology, topology_devices

_ROOT = Path(__file__).parents[2]
_TINY = ExperimentConfig(
  data=DataConfig(
    tokenizer=TokenizerConfig(vocabulary_size=64),
    filter=FilterConfig(max_length=8),
    batch=BatchConfig(tokens=128, row_multiple=16),
  ),
  model=dataclasses.replace(
    PRESETS['tiny'], width=16, filter=32, encoder_layers=1, decoder_layers=1
  ),
  optimizer=OptimizerConfig(accumulation=2),
  training=TrainingConfig(loss_chunk=16),
  decoding=DecodingConfig(
    beam_size=2, max_source_length=8, max_length_ratio=1.0, batch_tokens=128
  ),
)
_CHIP = CHIPS['v5e']
_HAS_LIBTPU = importlib.util.find_spec('libtpu') is not None


def test_names_of_topologies():
  assert read_topology('v5e:16x16')[1:] == ('v5e', 1, (16, 16))
  assert read_topology('4xh100:8')[1:] == ('h100', 4, (8,))


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('v5e', "'v5e' is none; give CHIP:AxB"),
    ('v9:2x2', 'there are v4, v5e, v5p, v6e, a100, h100, h200'),
    ('v5p:4x4', "'v5p:4x4': v5p has 3 axes"),
    ('v5e:0x4', "'v5e:0x4': v5e has 2 axes"),
    ('v5e:32x32', 'at most 256 chips; several slices are 2xv5e'),
  ],
)
def test_topologies_that_are_none(name, message):
  with pytest.raises(InputError, match=re.escape(message)):
    read_topology(name)


@pytest.mark.parametrize(
  ('name', 'needs'),
  [('v5e:2x4', '"jax[tpu]=='), ('2xh100:8', '--no-deps jax-cuda13-pjrt==')],
)
def test_a_compiler_that_is_not_installed(monkeypatch, name, needs):
  def missing(*names, target_config='', topology='1x2x8', **options):
    assert topology == '1x2x8'
    assert target_config.count('{') == target_config.count('}')
    raise RuntimeError('no such plugin')

  monkeypatch.setattr(topologies, 'get_topology_desc', missing)
  with pytest.raises(InputError, match=re.escape(f'pip install {needs}')):
    topology_devices(read_topology(name))


@pytest.mark.parametrize(
  ('lengths', 'shape'),
  [
    # Rows are a multiple of 16; 128 slots on one side are 16 rows of 8.
    ((None, None), (16, 8, 8)),
    ((4, None), (32, 4, 4)),
    ((2, 6), (32, 2, 6)),
  ],
)
def test_the_batch_is_that_of_the_config(lengths, shape):
  assert training_shape(_TINY, ProgramRequest('train', *lengths)) == shape


def test_the_batch_is_that_of_a_prepared_corpus(tmp_path):
  data = dataclasses.replace(
    _TINY.data,
    prepared=str(tmp_path),
    embedded_pairs=300,
    tokenizer=TokenizerConfig(vocabulary_size=300),
    filter=FilterConfig(max_length=60),
  )
  corpus = prepare(data)
  config = dataclasses.replace(_TINY, data=data)
  folder = str(corpus.directory)
  sizes = vocabulary_sizes(config, folder)
  assert sizes == (corpus.source_tokenizer.vocabulary.size,) * 2
  longest = corpus.split('train').lengths.max(0)
  shape = training_shape(config, ProgramRequest(prepared=folder))
  assert shape == (16, *longest)


def test_the_search_has_the_most_target_positions():
  # 128 slots of beam 2 are 8 rows of 8 + 10 positions.
  assert search_shape(_TINY, ProgramRequest('decode')) == (8, 8, 18)
  with pytest.raises(InputError, match='must be at least --source_length=9'):
    search_shape(_TINY, ProgramRequest('decode', 9))


def _mesh(config: ExperimentConfig, **axes: int) -> ExperimentConfig:
  return dataclasses.replace(config, parallel=ParallelConfig(**axes))


@pytest.mark.extended
def test_figures_of_a_training_step_on_eight_devices():
  config = _mesh(_TINY, data=2, fsdp=2, tensor=2)
  figures, program, _ = figures_for(
    config, ProgramRequest(), _CHIP, jax.devices()
  )
  assert figures.chips == 8
  assert figures.shape == (16, 8, 8)
  assert figures.parameters == program.parameters
  # Parameters and both moments, cut by 4 but for norms and small biases.
  whole = 3 * 4 * figures.parameters
  assert whole / 4 < figures.state < whole / 2
  assert figures.state < figures.peak < 2**20
  kinds = {'all-reduce', 'all-gather', 'reduce-scatter'}
  assert set(figures.exchanges) == kinds
  assert figures.sent == sum(x.sent for x in figures.exchanges.values())


@pytest.mark.extended
def test_operations_are_those_of_the_whole_batch_on_any_mesh():
  one, _, _ = figures_for(_TINY, ProgramRequest(), _CHIP, jax.devices()[:1])
  many, _, _ = figures_for(_TINY, ProgramRequest(), _CHIP, jax.devices())
  assert one.flops == many.flops
  assert one.exchanges == {}
  # 128 tokens on either side, D = 16, F = 32, V = 64. A token costs in the
  # encoder 4 D^2 + 2 D F + 2 * 8 D, in the decoder 8 D^2 + 2 D F + 4 * 8 D
  # (its keys and values of the source: as many tokens) and D V; 2
  # operations each, three times.
  d, f, v, length = 16, 32, 64, 8
  encoder = 4 * d * d + 2 * d * f + 2 * length * d
  decoder = 8 * d * d + 2 * d * f + 4 * length * d
  assert one.flops == pytest.approx(6 * 128 * (encoder + decoder + d * v))


def test_figures_of_a_search():
  figures, program, _ = figures_for(
    _TINY, ProgramRequest('decode'), _CHIP, jax.devices()[:2]
  )
  assert (figures.chips, program.trips) == (2, 18)
  # At least the output layer of 8 rows x 2 hypotheses in 18 steps.
  assert figures.flops > 18 * 8 * 2 * 2 * 16 * 64
  assert figures.exchanges == {}


@pytest.mark.extended
def test_a_program_that_does_not_fit():
  small = _CHIP._replace(memory=1_000.0)
  with pytest.raises(DoesNotFit, match='it does not fit: '):
    figures_for(_TINY, ProgramRequest(), small, jax.devices()[:1])


@pytest.mark.parametrize(
  ('message', 'needed', 'available'),
  [
    # As libtpu 0.0.42 words them.
    (
      'RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G '
      'of 15.75G hbm. Exceeded hbm capacity by 4.75G.',
      20.5,
      15.75,
    ),
    (
      'RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required '
      'for HLO temporaries (400.00G) exceeds available HBM (15.75G).',
      400,
      15.75,
    ),
  ],
)
def test_what_the_compiler_says_of_memory(message, needed, available):
  error = too_large(jax.errors.JaxRuntimeError(message))
  assert isinstance(error, DoesNotFit)
  assert error.needed == needed * 2**30
  assert error.available == available * 2**30
  assert f'{needed - available:.2f} GiB too much' in str(error)


def _figures(shape: Shape, peak: float, state: int) -> Figures:
  return Figures(
    mesh={'data': 1, 'fsdp': 1, 'tensor': 1},
    shape=shape,
    parameters=1,
    peak=int(peak),
    state=state,
    flops=1.0,
    moved=1.0,
    exchanges={},
    trace_seconds=0.0,
    compile_seconds=0.0,
  )


class _Compiler:
  """Memory of rows^power times `a_row`; refuses what is over the limit."""

  def __init__(self, a_row: float, state: int, memory: float, power: float):
    self._law = a_row, state, power
    self._memory = memory
    self.tried: list[int] = []

  def needed(self, rows: int) -> float:
    a_row, state, power = self._law
    return state + a_row * rows**power

  def __call__(self, config: ExperimentConfig):
    shape = training_shape(config, ProgramRequest())
    self.tried.append(shape.rows)
    needed = self.needed(shape.rows)
    if needed > self._memory:
      raise DoesNotFit(needed, self._memory)
    return _figures(shape, needed, self._law[1])


@given(
  st.floats(10, 3_000), st.sampled_from([0, 10_000]), st.floats(0.95, 1.05)
)
def test_the_largest_batch_is_found_in_few_compilations(a_row, state, power):
  memory = 1e6
  compiler = _Compiler(a_row, state, memory, power)
  found = largest_batch(_TINY, ProgramRequest(), compiler, memory)
  rows = found.shape[0]
  assert len(compiler.tried) <= COMPILATIONS
  assert len(set(compiler.tried)) == len(compiler.tried)
  assert rows in compiler.tried
  assert compiler.needed(rows) <= memory
  # What fits is met within a tenth, or by less than the 16 rows that a batch
  # grows by.
  assert compiler.needed(int(1.12 * rows) + 16) > memory


def test_no_batch_fits():
  compiler = _Compiler(1e6, 0, 1e6, 1.0)
  with pytest.raises(
    CheckFailed, match=r'no batch fits, down to data\.batch\.tokens=128,'
  ):
    largest_batch(_TINY, ProgramRequest(), compiler, 1e6)


def test_the_report_and_its_json():
  figures = _figures(Shape(16, 8, 8), 2**30, 2**29)
  topology = read_topology('v5e:1x1')
  text = report(topology, 'train', figures)
  assert '1.00 GiB of 15.75 GiB a chip, it fits; 0.50 GiB' in text
  assert 'nothing is exchanged between chips' in text
  values = json.loads(json.dumps(as_json(topology, 'train', figures)))
  assert values['topology'] == 'v5e:1x1'
  assert values['shape'] == {'rows': 16, 'source': 8, 'target': 8}
  assert values['versions']['jax'] == jax.__version__


def _program(*flags: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [
      sys.executable,
      '-m',
      'fusion_jax.tools.aot',
      '--config=configs/quickstart.py',
      *flags,
    ],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )


def test_the_program_refuses_in_one_line(tmp_path):
  output = tmp_path / 'none' / 'figures.json'
  answer = _program('--topology=v5e:2x4', f'--output={output}')
  assert answer.returncode == 2
  assert answer.stderr == f'error: --output: {output.parent}: no such folder\n'
  assert answer.stdout == ''


_without_libtpu = pytest.mark.skipif(
  not _HAS_LIBTPU, reason='libtpu is not installed'
)


@_without_libtpu
def test_two_slices_of_a_pod(tmp_path):
  output = tmp_path / 'figures.json'
  answer = _program(
    '--topology=2xv5e:2x2',
    '--config.data.batch.row_multiple=8',
    f'--output={output}',
  )
  assert answer.returncode == 0, answer.stderr
  values = json.loads(output.read_text())
  assert values['mesh'] == {'data': 8, 'fsdp': 1, 'tensor': 1}
  assert 'all-reduce between slices' in values['exchanges']


_MESH = ParallelConfig(data=2, fsdp=2, tensor=2)


def _read(function, shape, spec, out) -> list[Collective]:
  """The exchanges of a function of one float32 array on a mesh of 2 x 2 x 2."""
  mesh = make_mesh(_MESH)
  whole = jax.ShapeDtypeStruct(
    shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec))
  )
  sharded = functools.partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=PartitionSpec(*spec),
    out_specs=PartitionSpec(*out),
    check_vma=False,
  )
  text = jax.jit(sharded(function)).lower(whole).compile().as_text()
  return collectives(text)


def test_a_sum_over_two_axes():
  (found,) = _read(
    lambda x: jax.lax.psum(x, ('data', 'tensor')), (16, 8), ('data',), ()
  )
  # 8 rows of 8 float32 on each device; 4 of them add, fsdp stays apart.
  assert (found.kind, found.size, found.times) == ('all-reduce', 256, 1)
  assert found.members == (0, 1, 4, 5)
  assert found.sent == 2 * 3 / 4 * 256


def test_a_gather_and_a_scatter():
  gather, scatter = sorted(
    _read(
      lambda x: jax.lax.psum_scatter(
        jax.lax.all_gather(x, 'fsdp', tiled=True), 'tensor', tiled=True
      ),
      (16, 8),
      ('fsdp',),
      ('tensor',),
    ),
    key=lambda each: each.kind,
  )
  assert (gather.kind, gather.members) == ('all-gather', (0, 2))
  assert (scatter.kind, scatter.members) == ('reduce-scatter', (0, 1))
  # All 16 rows of 8 float32 are gathered, and then scattered.
  assert gather.size == scatter.size == 512
  assert gather.sent == scatter.sent == 256


def test_what_a_loop_does_counts_as_often_as_it_runs():
  def summed(x):
    def add(carry, _):
      return jax.lax.psum(carry, 'data') / 2, None

    return jax.lax.scan(add, x, length=5)[0]

  (found,) = _read(summed, (4, 4), (), ())
  assert (found.kind, found.times) == ('all-reduce', 5)
  assert found.sent == 5 * 2 * 1 / 2 * 64
  assert totals([found]) == {'all-reduce': Total(5, 320.0)}


def test_a_permutation():
  def shifted(x):
    return jax.lax.ppermute(x, 'data', [(0, 1), (1, 0)])

  (found,) = _read(shifted, (4, 4), ('data',), ('data',))
  # 2 rows of 4 float32 go to the other device; 4 places lie between them.
  assert (found.kind, found.members, found.sent) == (
    'collective-permute',
    (0, 4),
    32.0,
  )


_LINES = {
  # Lists, counted groups with and without a turn, axes of a mesh, parts of
  # axes, and no groups at all: all devices.
  'replica_groups={{0,2},{1,3},{4,6},{5,7}}': (0, 2),
  'replica_groups=[4,2]<=[8]': (0, 1),
  'replica_groups=[2,4]<=[4,2]T(1,0)': (0, 2, 4, 6),
  "replica_groups=mesh['a'=2,'b'=4] {'a'}": (0, 4),
  "replica_groups=mesh['a'=2,'b'=4] {'a','b'}": tuple(range(8)),
  "replica_groups=mesh['a'=8] {'a':(2)2}": (0, 2),
  'replica_groups={}': tuple(range(8)),
}


@pytest.mark.parametrize('groups', _LINES)
def test_every_way_to_write_groups(groups):
  (found,) = collectives(f"""HloModule jit_f, num_partitions=8

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  ROOT %r = f32[4]{{0}} all-reduce(%x), channel_id=1, {groups}, to_apply=%add
}}
""")
  assert found.members == _LINES[groups]
  assert found.size == 16


_TPU = Path(__file__).with_name('tpu_program.hlo').read_text()


def test_what_compilers_for_tpus_and_gpus_write():
  found = {each.kind: [] for each in collectives(_TPU)}
  for each in collectives(_TPU, trips=7):
    found[each.kind].append((each.size, len(each.members), each.times))
  assert found == {
    # Started and ended in two places, it is one; 16 x 4 of two bytes.
    # With a start the operand, a quarter of the whole, stands beside it.
    'all-gather': [(128, 2, 3), (256, 4, 7)],
    'collective-permute': [(16, 2, 7)],
    # Two slices add 64 bytes of each chip.
    'all-reduce between slices': [(64, 2, 1)],
  }
