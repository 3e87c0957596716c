"""Bytes that compiled programs move: by hand, and beside XLA's own count."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks.hlo_traffic import arrays, by_part, instruction, traffic

_KIB = 2**10

# An array and a part of it are copied to the chip before a fusion reads them.
_KEPT = Path(__file__).with_name('kept_on_chip.hlo').read_text()


def _compiled(function, *shapes):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return jax.jit(function).lower(*arguments).compile()


def _moved(function, *shapes) -> int:
  text = _compiled(function, *shapes).as_text()
  return sum(each.moved for each in traffic(text))


def test_arrays_take_up_whole_tiles():
  whole, on_chip, plain = arrays(
    '(bf16[3,5]{1,0:T(8,128)(2,1)}, f32[8,128]{1,0:T(8,128)S(1)}, pred[7]{0})'
  )
  assert whole == (8 * 128 * 2, False)
  assert on_chip == (4 * _KIB, True)
  assert plain.padded == 7
  # Axis 0 changes first: it is the one that is padded to 128.
  (turned,) = arrays('f32[5,3]{0,1:T(8,128)}')
  assert turned.padded == 8 * 128 * 4


def test_an_instruction_is_read():
  one = instruction(
    '  ROOT %add_fusion.2 = f32[16]{0} fusion(%p.1, %p.2), kind=kLoop, '
    'calls=%fused, metadata={op_name="jit(step)/optimizer/add" line=3}'
  )
  assert (one.name, one.opcode, one.root) == ('add_fusion.2', 'fusion', True)
  assert (one.operands, one.called) == (('p.1', 'p.2'), ('fused',))
  assert instruction('}') is None


def test_a_fusion_reads_its_operands_and_writes_its_result_once():
  def function(x, y):
    return jnp.sin(x) * jnp.exp(y) + x

  assert _moved(function, (64, 64), (64, 64)) == 3 * 16 * _KIB


def test_a_loop_counts_as_often_as_it_runs():
  def function(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c @ c), None), x, length=7)[0]

  def once(x):
    return jnp.sin(x @ x)

  # Counters and copies of the loop are small beside a product.
  seven, one = _moved(function, (256, 256)), _moved(once, (256, 256))
  assert seven == pytest.approx(7 * one, rel=0.2)


def test_a_slice_and_an_update_move_what_they_touch():
  def function(x, row):
    row = row + jax.lax.dynamic_slice_in_dim(x, 3, 1)
    return jax.lax.dynamic_update_slice_in_dim(x, row, 5, 0)

  donated = jax.jit(function, donate_argnums=0)
  shapes = [
    jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 256), (1, 256))
  ]
  text = donated.lower(*shapes).compile().as_text()
  moved = sum(each.moved for each in traffic(text))
  assert 3 * _KIB <= moved <= 6 * _KIB


def test_what_is_kept_on_the_chip_moves_nothing():
  start, end, fusion = traffic(_KEPT)
  # Two of the four rows are copied to the chip; a copy belongs to its reader.
  assert (start.read, start.written, start.part) == (512, 0, 'loss')
  assert (end.read, end.written, end.part) == (256, 0, 'loss')
  assert (fusion.read, fusion.written, fusion.part) == (0, 256, 'loss')
  assert by_part([start, end, fusion]) == {'loss': 1024}


def test_agrees_with_the_count_of_xla():
  def function(x, w, v):
    return jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ v).sum())(w)

  compiled = _compiled(function, (128, 64), (64, 96), (96, 32))
  counted = sum(each.moved for each in traffic(compiled.as_text()))
  expected = compiled.cost_analysis()['bytes accessed']
  assert counted == pytest.approx(expected, rel=0.02)
