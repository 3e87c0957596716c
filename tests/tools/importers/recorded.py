"""Models of other programs with random weights, and what those made of them.

`marian_model` was made by transformers 5.23 and PyTorch 2.13, with
`python -m benchmarks.peers.import_parity marian --shape=tiny`; `fairseq_model`
by fairseq 0.12.2, with `fairseq` instead of `marian`. The text is ten English
sentences with their German translations, written for this.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fusion_jax.decoding.batches import padded
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.decoding.translate import Translator
from fusion_jax.runs.loading import load_run
from fusion_jax.tools.importers.__main__ import main

FOLDER = Path(__file__).parent
MARIAN, FAIRSEQ = FOLDER / 'marian_model', FOLDER / 'fairseq_model'


def import_model(format_: str, folder: Path, output: Path, *flags: str) -> int:
  """Runs the program."""
  given = [f'--from={format_}', f'--input={folder}', f'--output={output}']
  return main([*given, *flags])


def import_fairseq(folder: Path, output: Path, *flags: str) -> int:
  """Runs the program with the SentencePiece model of the recorded case."""
  spm = f'--source_spm={FAIRSEQ / "joint.model"}'
  return import_model('fairseq', folder, output, spm, *flags)


def recorded(folder: Path) -> dict:
  """What the other program wrote."""
  return json.loads((folder / 'recorded.json').read_text())


def copied(folder: Path, tmp_path: Path) -> Path:
  """A copy of a folder, to be damaged."""
  return Path(shutil.copytree(folder, tmp_path / 'model'))


def log_probabilities(run, sources, targets) -> np.ndarray:
  """log p of the tokens of all targets, one after another."""
  end = run.target_tokenizer.vocabulary.end
  (source, lengths), (target, counts) = (
    map(jnp.asarray, padded(ids, len(ids), max(map(len, ids)), end))
    for ids in (sources, targets)
  )
  output = run.model.apply({'params': run.parameters}, source, lengths, target)
  found = token_log_probabilities(output, target, 'arithmetic')
  rows = zip(np.asarray(found), counts, strict=True)
  return np.concatenate([row[:count] for row, count in rows])


def translated(run, lines, limit: int, beam: int) -> list[list[int]]:
  """Ids of the best translations."""
  options = dataclasses.replace(
    run.config.decoding,
    beam_size=beam,
    max_length_ratio=0.0,
    max_length_extra=limit,
  )
  found = Translator(run, options, devices=1).translate_n_best(lines)
  return [each[0].pairs[0].target for each in found]


def check_parity(workdir: Path, expected: dict) -> None:
  """Compares an imported run with what was recorded."""
  run = load_run(workdir)
  tokenizer = run.source_tokenizer
  unknown, end = tokenizer.vocabulary.unknown, tokenizer.vocabulary.end
  # Pieces that the other program does not know stand after the others.
  known = {n for ids in expected['source'] for n in ids}
  encoded = [
    [*(n if n in known else unknown for n in tokenizer.encode(line)), end]
    for line in expected['lines']
  ]
  assert encoded == expected['source']
  found = log_probabilities(run, expected['source'], expected['beam'])
  np.testing.assert_allclose(
    found, np.concatenate(expected['log_probabilities']), atol=2e-5
  )
  greedy = translated(run, expected['lines'], expected['limit'], beam=1)
  assert greedy == expected['greedy']
  texts = [run.target_tokenizer.decode(ids[:-1]) for ids in expected['beam']]
  assert texts == expected['texts']
