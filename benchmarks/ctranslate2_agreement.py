r"""How much a run and its export to CTranslate2 are alike on text.

    python -m benchmarks.ctranslate2_agreement --workdir=RUN --input=FILE \
        --reference=FILE

Greedily and with beam 4, both with the score divided by the length, and with
patience 2: CTranslate2 lets hypotheses end that are among the best `beam`
extensions, the run among the best 2 `beam`; both stop after patience * beam of
them, the run also where nothing better can come. At the run's limit of length
it ends every hypothesis, and scores that end; CTranslate2 leaves it open, and
is given one token less.
"""

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from benchmarks.common import (
  RESULTS,
  circumstances,
  make_parser,
  table,
  write_results,
)
from fusion_jax import TranslationModel
from fusion_jax.config.flags import parse_arguments
from fusion_jax.data.normalise import normalise
from fusion_jax.decoding.batches import target_limit
from fusion_jax.errors import InputError
from fusion_jax.evaluation.systems import check_lines, read_file
from fusion_jax.metrics import corpus_scores
from fusion_jax.runs.loading import CheckpointSelection, TrainedModel, load_run
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages
from fusion_jax.tools.export.ctranslate2 import export

_BATCH = {'max_batch_size': 64, 'max_input_length': 0}
_SEARCHES = {'greedy': 1, 'beam 4': 4}
_ALPHA, _PATIENCE = 1.0, 2.0


class Exported:
  """The exported model, from text to text and to log-probabilities."""

  def __init__(self, run: TrainedModel, folder: Path):
    export(run, folder)
    self._run = run
    self._translator = ctranslate2.Translator(
      str(folder),
      compute_type='float32',
      inter_threads=os.cpu_count() or 1,
      intra_threads=1,
    )

  def _encode(self, lines: Sequence[str], side: str) -> list[list[str]]:
    """The pieces of every line, without an end symbol."""
    tokenizer = getattr(self._run, f'{side}_tokenizer')
    pieces = tokenizer.pieces()
    return [
      [pieces[token] for token in tokenizer.encode(normalise(line))]
      for line in lines
    ]

  def translate(self, lines: Sequence[str], beam: int) -> list[str]:
    """Best translations in the run's limits of length."""
    model, options = self._run.config.model, self._run.config.decoding
    longest = model.max_positions if model.positions == 'learned' else None
    sources = self._encode(lines, 'source')
    limits = [target_limit(len(s) + 1, options, longest) for s in sources]
    texts: dict[int, str] = {}
    for limit in sorted(set(limits)):
      numbers = [n for n, of_line in enumerate(limits) if of_line == limit]
      chosen = [sources[number] for number in numbers]
      translated = self._translate(chosen, beam, limit - 1)
      texts |= dict(zip(numbers, translated, strict=True))
    return [texts[number] for number in range(len(lines))]

  def _translate(
    self, sources: list[list[str]], beam: int, longest: int
  ) -> list[str]:
    results = self._translator.translate_batch(
      sources,
      **_BATCH,
      beam_size=beam,
      patience=_PATIENCE,
      length_penalty=_ALPHA,
      # The default, 1, removes the end symbol from the first softmax.
      min_decoding_length=0,
      max_decoding_length=longest,
    )
    tokenizer = self._run.target_tokenizer
    best = (result.hypotheses[0] for result in results)
    return [tokenizer.decode([*map(tokenizer.id_of, line)]) for line in best]

  def score(
    self, sources: Sequence[str], targets: Sequence[str]
  ) -> list[np.ndarray]:
    """log p of every target token, the end symbol last."""
    pieces = self._encode(sources, 'source'), self._encode(targets, 'target')
    results = self._translator.score_batch(*pieces, **_BATCH)
    return [np.asarray(result.log_probs) for result in results]


def compare_translations(
  run: TrainedModel,
  exported: Exported,
  lines: Sequence[str],
  references: Sequence[str],
  beam: int,
) -> dict[str, Any]:
  """Share of equal translations, and BLEU of both."""
  ours = TranslationModel(run).translate(
    lines,
    beam_size=beam,
    length_penalty='length',
    alpha=_ALPHA,
    patience=_PATIENCE,
  )
  theirs = exported.translate(lines, beam)
  equal = [own == other for own, other in zip(ours, theirs, strict=True)]
  language = run.config.data.target_language
  return {
    'translations': len(lines),
    'equal': sum(equal),
    'differing_lines': [n for n, same in enumerate(equal, 1) if not same],
    'bleu': corpus_scores(ours, references, language).bleu,
    'bleu_ctranslate2': corpus_scores(theirs, references, language).bleu,
  }


def compare_scores(
  run: TrainedModel,
  exported: Exported,
  lines: Sequence[str],
  references: Sequence[str],
) -> dict[str, Any]:
  """Differences of the log-probabilities of the references' tokens."""
  scored = TranslationModel(run).score(lines, references)
  ours = np.concatenate([np.asarray(line.tokens) for line in scored])
  theirs = np.concatenate(exported.score(lines, references))
  return {
    'tokens': ours.size,
    'largest_difference': float(np.abs(ours - theirs).max()),
  }


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__, RESULTS / 'ctranslate2_agreement.json')
  for name in ('workdir', 'input', 'reference'):
    parser.add_argument(f'--{name}', required=True)
  arguments = parse_arguments(argv, parser)
  start_logging()
  run = load_run(arguments.workdir, CheckpointSelection('best'))
  texts = _read_pairs(run, arguments.input, arguments.reference)
  with tempfile.TemporaryDirectory() as folder:
    exported = Exported(run, Path(folder) / 'model')
    results = circumstances() | {
      'ctranslate2': importlib.metadata.version('ctranslate2'),
      'run': Path(arguments.workdir).name,
      'scores': compare_scores(run, exported, *texts),
    }
    for name, beam in _SEARCHES.items():
      results[name] = compare_translations(run, exported, *texts, beam)
  write_results(arguments.output, results)
  print(_report(results))


def _read_pairs(
  run: TrainedModel, source: str, reference: str
) -> tuple[list[str], list[str]]:
  """The lines of both files that can be translated and scored at once."""
  texts = read_file(source), read_file(reference)
  check_lines(texts[0], texts[1:])
  tokenizers = run.source_tokenizer, run.target_tokenizer
  longest = run.config.decoding.max_source_length
  kept = [
    pair
    for pair in zip(*(text.lines for text in texts), strict=True)
    if all(
      0 < len(tokenizer.encode(normalise(line))) < longest
      for line, tokenizer in zip(pair, tokenizers, strict=True)
    )
  ]
  if not kept:
    raise InputError(
      f'{source}: no line has text and less than {longest} subwords'
    )
  return [pair[0] for pair in kept], [pair[1] for pair in kept]


def _report(results: dict[str, Any]) -> str:
  rows = [
    (
      name,
      f'{results[name]["translations"]:,}',
      f'{results[name]["equal"] / results[name]["translations"]:.2%}',
      f'{results[name]["bleu"]:.2f}',
      f'{results[name]["bleu_ctranslate2"]:.2f}',
    )
    for name in _SEARCHES
  ]
  header = ('', 'translations', 'equal', 'BLEU', 'of CTranslate2')
  scores = results['scores']
  return (
    f'{table(header, rows)}\n'
    f'{scores["tokens"]:,} tokens of the references: log-probabilities '
    f'differ by at most {scores["largest_difference"]:.1e}'
  )


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
