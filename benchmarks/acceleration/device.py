"""The device that programs see, as a line of JSON, and what it can compute.

python -m benchmarks.acceleration.device

A process of its own, which gives the memory of the device back.
"""

import json
import shutil
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusion_jax.tools.aot.chips import CHIPS

# device_kind of JAX. PCIe and NVL cards are slower and not in the table.
_CHIPS = {
  'NVIDIA A100-SXM4-40GB': 'a100',
  'NVIDIA A100-SXM4-80GB': 'a100',
  'NVIDIA H100 80GB HBM3': 'h100',
  'NVIDIA H200': 'h200',
  'TPU v4': 'v4',
  'TPU v5 lite': 'v5e',
  'TPU v5': 'v5p',
  'TPU v6 lite': 'v6e',
}
# TFLOP/s of dense products: NVIDIA's data sheets of A100 (2021), H100 (2023)
# and H200 (2024); those of the last two are twice as high, for sparse ones.
_FLOAT32 = {
  'a100': {'tf32': 156.0, 'float32': 19.5},
  'h100': {'tf32': 495.0, 'float32': 67.0},
  'h200': {'tf32': 495.0, 'float32': 67.0},
}
# Largest relative errors of products whose operands have 24 and 11 bits; with
# bfloat16's 8 bits they are larger.
_ARITHMETICS = {'float32': 1e-5, 'tf32': 1e-3}
_SIZE = 512


def describe() -> dict[str, Any]:
  """Return the kind of device, its driver, and how it multiplies float32."""
  device = jax.devices()[0]
  memory = device.memory_stats() or {}
  return {
    'platform': device.platform,
    'kind': device.device_kind,
    'devices': jax.device_count(),
    'memory_mb': memory.get('bytes_limit', 0) / 2**20 or None,
    'runtime': device.client.platform_version,
    'driver': _nvidia_driver(),
    'matmul_precision': jax.config.jax_default_matmul_precision or 'default',
    'float32_products': arithmetic(product_error()),
  }


def product_error() -> float:
  """Return the error of a float32 product, relative in the Frobenius norm."""
  left, right = np.random.default_rng(0).normal(size=(2, _SIZE, _SIZE))
  rounded = left.astype(np.float32), right.astype(np.float32)
  exact = rounded[0].astype(np.float64) @ rounded[1].astype(np.float64)
  found = np.asarray(jax.jit(jnp.matmul)(*rounded), np.float64)
  return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def arithmetic(error: float) -> str:
  """Return 'float32', 'tf32' or 'bfloat16' by the error of a product."""
  fitting = [name for name, most in _ARITHMETICS.items() if error <= most]
  return fitting[0] if fitting else 'bfloat16'


def _nvidia_driver() -> str | None:
  program = shutil.which('nvidia-smi')
  if program is None:
    return None
  query = ['--query-gpu=driver_version', '--format=csv,noheader', '--id=0']
  answer = subprocess.run([program, *query], capture_output=True, text=True)
  return answer.stdout.strip() or None


def peak_tflops(kind: str, arithmetic: str) -> float | None:
  """Return the peak of a device."""
  chip = _CHIPS.get(kind)
  if chip and arithmetic == 'bfloat16':
    return CHIPS[chip].flops / 1e12
  return _FLOAT32.get(chip, {}).get(arithmetic)


def utilisation(
  gflop: float, seconds: float, peak: float | None
) -> float | None:
  """Return the model FLOPs utilisation, gflop / (seconds * peak).

  Chowdhery et al. (2022), "PaLM", appendix B.
  """
  return None if peak is None else gflop / seconds / (1_000 * peak)


if __name__ == '__main__':
  sys.exit(print(json.dumps(describe())))
