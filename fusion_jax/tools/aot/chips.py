"""Chips that can be compiled for, with the figures of their makers.

TPUs: the tables of key specifications in docs.cloud.google.com/tpu/docs/v4,
/v5e, /v5p and /v6e, except the links of v4, six of 50e9; memory: what libtpu
0.0.42 leaves to a program. GPUs: nominal figures of the SXM cards and of DGX,
not looked up in a source; memory: the three quarters that JAX allocates unless
XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
"""

from typing import NamedTuple

from fusion_jax.errors import InputError

GIB = 2**30


class Chip(NamedTuple):
  """One kind of chip.

  Attributes:
    kind: 'tpu' or 'gpu'.
    memory: Bytes of its HBM that a program can use.
    flops: Operations per second of bfloat16 matrix products.
    bandwidth: Bytes per second of its HBM.
    link: Most bytes per second that it sends inside its slice or host.
    network: Most bytes per second that it sends to other slices or hosts, its
      share of their network; 0 if not published.
    clock: Cycles per second of a TPU, 0 for GPUs: the peak over the operations
      per cycle, which are 2 * 128 * 128 for each unit of products (v4 and v5p
      have eight, v5e four) and 2 * 256 * 256 for each of the four of a v6e. A
      compiled product of 4,096 x 4,096 matrices takes 87 to 97 % of these.
    largest: Number of chips of the largest slice, or of a host.
  """

  kind: str
  memory: float
  flops: float
  bandwidth: float
  link: float
  network: float
  clock: float
  largest: int


CHIPS = {
  'v4': Chip('tpu', 30.75 * GIB, 275e12, 1.2e12, 300e9, 0, 1.05e9, 4_096),
  'v5e': Chip('tpu', 15.75 * GIB, 197e12, 0.819e12, 200e9, 3.125e9, 1.5e9, 256),
  'v5p': Chip(
    'tpu', 95.74 * GIB, 459e12, 2.765e12, 600e9, 6.25e9, 1.75e9, 6_144
  ),
  'v6e': Chip('tpu', 31.25 * GIB, 918e12, 1.6e12, 400e9, 12.5e9, 1.75e9, 256),
  'a100': Chip('gpu', 0.75 * 85.1e9, 312e12, 2.039e12, 300e9, 25e9, 0, 8),
  'h100': Chip('gpu', 0.75 * 84.9e9, 989e12, 3.35e12, 450e9, 50e9, 0, 8),
  'h200': Chip('gpu', 0.75 * 150.1e9, 989e12, 4.8e12, 450e9, 50e9, 0, 8),
}


def chip_named(name: str) -> Chip:
  """Return a row of the table."""
  if name not in CHIPS:
    raise InputError(
      f'--topology: no chip {name!r}; there are {", ".join(CHIPS)}'
    )
  return CHIPS[name]
