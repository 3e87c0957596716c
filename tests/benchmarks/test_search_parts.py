"""Which part of a search an instruction belongs to."""

from benchmarks.search_parts import part_names
from benchmarks.sizes import SIZES

_TEXT = """HloModule jit_search_batch

%fused (p: f32[1,64]) -> f32[1,500] {
  %p = f32[1,64]{1,0} parameter(0)
  ROOT %inner = f32[1,500]{1,0} dot(%p, %table), lhs_contracting_dims={1}
}

ENTRY %main (x: f32[1,64]) -> f32[1,64] {
  %kept = f32[2,32,17]{2,1,0} fusion(%x), kind=kLoop, calls=%cached, metadata={op_name="jit(f)/decoder/layer_0/self_attention.attend/dynamic_update_slice"}
  %logits = f32[1,500]{1,0} fusion(%x), kind=kCustom, calls=%fused
  %query = f32[1,64]{1,0} dot(%x, %w), metadata={op_name="jit(f)/decoder/layer_0/self_attention/query/dot_general"}
  %scores = f32[2,1,17]{2,1,0} dot(%x, %kept), metadata={op_name="jit(f)/decoder/layer_0/self_attention/dot_general"}
  %memory = f32[1,64]{1,0} dot(%x, %w), metadata={op_name="jit(f)/Transformer.encode/encoder/layer_0/self_attention/query/dot_general"}
  %square = f32[1,64]{1,0} fusion(%x), kind=kLoop, calls=%n, metadata={op_name="jit(f)/layer_0/self_attention_residual.before/norm/square"}
  %softmax = f32[2,1]{1,0} fusion(%scores), kind=kLoop, calls=%n, metadata={op_name="jit(f)/layer_0/self_attention/reduce_max"}
  %best = (f32[1,4]{1,0}, s32[1,4]{1,0}) custom-call(%logits), custom_call_target="TopK", metadata={op_name="jit(f)/while/body/top_k"}
  ROOT %moved = f32[1,64]{1,0} copy(%query)
}
"""  # noqa: E501


def test_instructions_belong_to_parts():
  names = part_names(_TEXT, SIZES['tiny'])
  assert {
    name: names[name] for name in names if name not in ('p', 'inner')
  } == {
    'kept': 'cache',
    'logits': 'logits',
    'query': 'layers, products',
    'scores': 'attention, products',
    'memory': 'encoder',
    'square': 'norms and residuals',
    'softmax': 'attention, but products',
    'best': 'top-k',
    'moved': 'other',
  }
