"""What devices can compute at most, and how much of it a program uses."""

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


def peak_tflops(kind: str, arithmetic: str) -> float | None:
  """Return the peak of a device.

  Args:
    kind: its device_kind.
    arithmetic: of its products, 'bfloat16', 'tf32' or 'float32'.

  Returns:
    10^12 operations a second; None where they are not known.
  """
  chip = _CHIPS.get(kind)
  if chip and arithmetic == 'bfloat16':
    return CHIPS[chip].flops / 1e12
  return _FLOAT32.get(chip, {}).get(arithmetic)


def utilisation(
  gflop: float, seconds: float, peak: float | None
) -> float | None:
  """Return the model FLOPs utilisation, gflop / (seconds * peak).

  Chowdhery et al. (2022), "PaLM", appendix B.

  Args:
    gflop: 10^9 operations of the products of a step.
    seconds: that it takes.
    peak: of the device, 10^12 operations a second; None: not known.

  Returns:
    The share of the peak, from 0 to 1; None without a peak.
  """
  return None if peak is None else gflop / seconds / (1_000 * peak)
