"""Exchanges read from compiled programs, small ones and hand-made ones."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fusion_jax.config.training import ParallelConfig
from fusion_jax.parallel.mesh import make_mesh
from fusion_jax.tools.aot.hlo import Collective, collectives, totals

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
  assert totals([found]) == {'all-reduce': (5, 320.0, 0.0)}


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


def test_nothing_is_exchanged():
  assert _read(lambda x: x * 2, (16, 8), ('data',), ('data',)) == []


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


_TPU = """HloModule jit_f, num_partitions=4

%start (x: bf16[8,4]) -> bf16[16,4] {
  %g.1 = bf16[16,4]{1,0:T(8,128)(2,1)} all-gather(%x), channel_id=5,\
 replica_groups=[2,2]<=[4], frontend_attributes={chain_id="0"}
  ROOT %c.1 = bf16[16,4] custom-call(%g.1)
}

%done (x: bf16[8,4]) -> bf16[16,4] {
  ROOT %g.2 = bf16[16,4]{1,0:T(8,128)(2,1)} all-gather(%x), channel_id=5,\
 replica_groups=[2,2]<=[4], frontend_attributes={chain_id="0"}
}

%condition (p: (s32[], bf16[8,4])) -> pred[] {
  %n = s32[]{:T(128)} constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%unknown (p: (s32[], bf16[8,4])) -> pred[] {
  ROOT %or = pred[] fusion(%p), kind=kLoop, calls=%fused
}

%body (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %a = bf16[16,4] fusion(%x), kind=kCustom, calls=%start
  %b = bf16[16,4] fusion(%x), kind=kCustom, calls=%done
}

%other (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %s = ((bf16[8,4]), (bf16[32,4])) all-gather-start(%x), channel_id=1,\
 replica_groups={{0,1,2,3}}
  %d = bf16[32,4] all-gather-done(%s)
  %q = (f32[4], f32[4], u32[], u32[]) collective-permute-start(%y),\
 source_target_pairs={{0,1},{1,0}}
}

ENTRY %main (x: bf16[8,4]) -> bf16[8,4] {
  %w = (s32[], bf16[8,4]) while(%x), condition=%condition, body=%body
  %u = (s32[], bf16[8,4]) while(%x), condition=%unknown, body=%other
  %send.1 = (f32[2,8]{1,0}, u32[], token[]) send(%x, %t), channel_id=4,\
 frontend_attributes={_xla_megascale_target="{1,2}x{0:3}",\
_xla_megascale_transfer_type="ALL_REDUCE"}
}
"""


def test_what_compilers_for_tpus_and_gpus_write():
  found = {each.kind: [] for each in collectives(_TPU)}
  for each in collectives(_TPU, trips=7):
    found[each.kind].append((each.size, each.group, each.times))
  assert found == {
    # Started and ended in two places, it is one; 16 x 4 of two bytes.
    # With a start the operand, a quarter of the whole, stands beside it.
    'all-gather': [(128, 2, 3), (256, 4, 7)],
    'collective-permute': [(16, 2, 7)],
    # Two slices add 64 bytes of each chip.
    'all-reduce between slices': [(64, 2, 1)],
  }


_GPU = """\
HloModule jit_f, num_partitions=4

ENTRY %main (x: f32[8]) -> f32[8] {
  %all-reduce-start = f32[8] all-reduce-start(%x), channel_id=1
  %all-reduce-start.1 = f32[24] all-reduce-start(%y), channel_id=2
  %all-reduce-done = f32[8] all-reduce-done(%all-reduce-start)
  %wrapped = f32[8] fusion(%z), kind=kLoop, calls=%fused
  %all-reduce-done.1 = f32[24] all-reduce-done(%all-reduce-start.1)
  ROOT %all-reduce = f32[8] all-reduce(%wrapped), channel_id=3
}
"""


def test_an_exchange_overlaps_what_is_computed_before_it_ends():
  found = collectives(_GPU)
  assert [one.overlaps for one in found] == [False, True, False]
  # 24 of the 8 + 24 + 8 numbers.
  assert totals(found)['all-reduce'].overlapping == 0.6
