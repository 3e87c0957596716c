"""COMET of translations (Rei et al. 2020), by the package unbabel-comet.

The package is no requirement: it needs PyTorch and models of gigabytes. It runs
on the CPU, because JAX holds the accelerators.
"""

import importlib.metadata
import os
from collections.abc import Callable, Sequence
from typing import Any

from fusion_jax.errors import InputError, first_line

_BATCH = 16

# Sources, translations and references to a line for the user.
Comet = Callable[[Sequence[str], Sequence[str], Sequence[str]], str]


def load_comet(name: str) -> Comet:
  """Load a model of COMET."""
  try:
    from comet import download_model, load_from_checkpoint
  except ImportError:
    raise InputError(
      f'--comet={name}: the package unbabel-comet is missing: '
      'pip install unbabel-comet'
    ) from None
  try:
    path = name if os.path.isfile(name) else download_model(name)
    model = load_from_checkpoint(path)
  except Exception as error:
    raise InputError(f'--comet={name}: {first_line(error)}') from error
  version = importlib.metadata.version('unbabel-comet')
  signature = f'COMET|nrefs:1|model:{name}|version:{version}'
  return lambda *texts: f'{signature} = {_score(model, *texts):.4f}'


def _score(
  model: Any,
  sources: Sequence[str],
  translations: Sequence[str],
  references: Sequence[str],
) -> float:
  texts = zip(sources, translations, references, strict=True)
  rows = [{'src': s, 'mt': t, 'ref': r} for s, t, r in texts]
  found = model.predict(rows, batch_size=_BATCH, gpus=0, progress_bar=False)
  return float(found.system_score)
