"""How much a run and its export to CTranslate2 are alike on text.

    python -m benchmarks.ctranslate2_agreement --workdir=RUN --input=FILE \
        --reference=FILE

Greedily and with beam 4, both with the score divided by the length, and with
patience 2: CTranslate2 lets hypotheses end that are among the best `beam`
extensions, the run among the best 2 `beam`; both stop after patience * beam of
them, the run also where nothing better can come. At the run's limit of length
it ends every hypothesis, and scores that end; CTranslate2 leaves it open, and
is given one token less.
"""

import argparse
import dataclasses
import importlib.metadata
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from benchmarks.common import RESULTS, circumstances, table, write_results
from fusion_jax.cli.text_io import open_input, read_lines
from fusion_jax.config import DecodingConfig
from fusion_jax.config.flags import parse_arguments
from fusion_jax.data.normalise import normalise
from fusion_jax.decoding.score import Scorer
from fusion_jax.decoding.shapes import target_limit
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.metrics import check_line_counts, corpus_scores
from fusion_jax.runs.loading import TrainedModel, load_run
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages
from fusion_jax.tools.export.ctranslate2 import export

_BATCH = 64


class Exported:
  """The exported model, from text to text and to log-probabilities."""

  def __init__(self, run: TrainedModel, folder: Path):
    self._run = run
    self._translator = ctranslate2.Translator(
      str(folder),
      compute_type='float32',
      inter_threads=os.cpu_count() or 1,
      intra_threads=1,
    )
    self._pieces = [
      run.source_tokenizer.pieces(),
      run.target_tokenizer.pieces(),
    ]

  def encode(self, lines: Sequence[str], side: int = 0) -> list[list[str]]:
    """The pieces of every line, without an end symbol."""
    run, pieces = self._run, self._pieces[side]
    tokenizer = (run.source_tokenizer, run.target_tokenizer)[side]
    return [
      [pieces[token] for token in tokenizer.encode(normalise(line))]
      for line in lines
    ]

  def translate(
    self, lines: Sequence[str], options: DecodingConfig, longest: int | None
  ) -> list[tuple[str, bool]]:
    """The best translation of every line, in the run's limits of length.

    Args:
      lines: to translate.
      options: of the search and the limits.
      longest: what the model can do at most, if it has a limit.

    Returns:
      For each line the text, and whether it ends by itself.
    """
    found: dict[int, tuple[str, bool]] = {}
    sources = self.encode(lines)
    limits = [target_limit(len(s) + 1, options, longest) for s in sources]
    for limit in sorted(set(limits)):
      numbers = [n for n, own in enumerate(limits) if own == limit]
      chosen = [sources[number] for number in numbers]
      translated = self._translate(chosen, options, limit - 1)
      found |= dict(zip(numbers, translated, strict=True))
    return [found[number] for number in range(len(lines))]

  def _translate(
    self, sources: list[list[str]], options: DecodingConfig, longest: int
  ) -> list[tuple[str, bool]]:
    results = self._translator.translate_batch(
      sources,
      max_batch_size=_BATCH,
      beam_size=options.beam_size,
      patience=options.patience,
      length_penalty=options.alpha,
      # The default, 1, removes the end symbol from the first softmax.
      min_decoding_length=0,
      max_decoding_length=longest,
      max_input_length=0,
    )
    tokenizer = self._run.target_tokenizer
    return [
      (
        tokenizer.decode([tokenizer.id_of(piece) for piece in pieces]),
        len(pieces) < longest,
      )
      for pieces in (result.hypotheses[0] for result in results)
    ]

  def score(
    self, sources: Sequence[str], targets: Sequence[str]
  ) -> list[np.ndarray]:
    """log p of every target token, the end symbol last."""
    results = self._translator.score_batch(
      self.encode(sources),
      self.encode(targets, side=1),
      max_batch_size=_BATCH,
      max_input_length=0,
    )
    return [np.asarray(result.log_probs) for result in results]


def compare_translations(
  run: TrainedModel,
  exported: Exported,
  lines: Sequence[str],
  references: Sequence[str],
  beam: int,
) -> dict[str, Any]:
  """Share of equal translations, and BLEU of both.

  Args:
    run: the run.
    exported: the same as a model of CTranslate2.
    lines: to translate.
    references: their translations.
    beam: 1: greedy.

  Returns:
    Counts, of those too that end below the limit of length; the lines that
    differ, counted from 1; and BLEU.
  """
  options = dataclasses.replace(
    run.config.decoding,
    beam_size=beam,
    length_penalty='length',
    alpha=1.0,
    patience=2.0,
  )
  model = run.config.model
  limit = model.max_positions if model.positions == 'learned' else None
  ours = list(Translator(run, options).translate(lines))
  texts, ended = zip(*exported.translate(lines, options, limit), strict=True)
  equal = [own == other for own, other in zip(ours, texts, strict=True)]
  language = run.config.data.target_language
  return {
    'translations': len(lines),
    'equal': sum(equal),
    'differing_lines': [n for n, same in enumerate(equal, 1) if not same],
    'ended': sum(ended),
    'ended_and_equal': sum(itertools.compress(equal, ended)),
    'bleu': corpus_scores(ours, references, language).bleu,
    'bleu_ctranslate2': corpus_scores(texts, references, language).bleu,
  }


def compare_scores(
  run: TrainedModel,
  exported: Exported,
  lines: Sequence[str],
  references: Sequence[str],
) -> dict[str, Any]:
  """Differences of the log-probabilities of the references' tokens."""
  pairs = list(zip(lines, references, strict=True))
  scorer = Scorer(run, run.config.decoding)
  ours = [np.asarray(scored.tokens) for scored in scorer.score(pairs)]
  theirs = exported.score(lines, references)
  differences = np.abs(np.concatenate(ours) - np.concatenate(theirs))
  return {
    'tokens': differences.size,
    'largest_difference': float(differences.max()),
    'mean_difference': float(differences.mean()),
  }


@one_line_errors
def main(argv: list[str]) -> None:
  """Exports the run and compares."""
  arguments = _parse(argv)
  start_logging()
  run = load_run(arguments.workdir, 'best')
  lines, references = _read_pairs(run, arguments.input, arguments.reference)
  with tempfile.TemporaryDirectory() as folder:
    export(run, Path(folder) / 'model')
    exported = Exported(run, Path(folder) / 'model')
    results = circumstances() | {
      'ctranslate2': importlib.metadata.version('ctranslate2'),
      'run': Path(arguments.workdir).name,
      'scores': compare_scores(run, exported, lines, references),
    }
    for name, beam in (('greedy', 1), ('beam 4', 4)):
      results[name] = compare_translations(
        run, exported, lines, references, beam
      )
  write_results(arguments.output, results)
  print(_report(results))


def _read_pairs(
  run: TrainedModel, source: str, reference: str
) -> tuple[list[str], list[str]]:
  """The lines of both files that can be translated and scored at once."""
  sides = []
  for path in (source, reference):
    with open_input(path) as file:
      sides.append(list(read_lines(file, path)))
  check_line_counts(*map(len, sides))
  tokenizers = run.source_tokenizer, run.target_tokenizer
  longest = run.config.decoding.max_source_length
  kept = [
    pair
    for pair in zip(*sides, strict=True)
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


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for name in ('workdir', 'input', 'reference'):
    parser.add_argument(f'--{name}', required=True)
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'ctranslate2_agreement.json'
  )
  return parse_arguments(argv, parser)


def _report(results: dict[str, Any]) -> str:
  rows = [
    (
      name,
      f'{own["translations"]:,}',
      f'{own["equal"] / own["translations"]:.2%}',
      f'{own["ended"]:,}',
      f'{own["ended_and_equal"] / max(own["ended"], 1):.2%}',
      f'{own["bleu"]:.2f}',
      f'{own["bleu_ctranslate2"]:.2f}',
    )
    for name, own in results.items()
    if name in ('greedy', 'beam 4')
  ]
  header = ('', 'translations', 'equal', 'that end', 'equal', 'BLEU')
  scores = results['scores']
  return '\n'.join(
    (
      table((*header, 'of CTranslate2'), rows),
      f'{scores["tokens"]:,} tokens of the references: log-probabilities '
      f'differ by at most {scores["largest_difference"]:.1e}, '
      f'{scores["mean_difference"]:.1e} in the mean',
    )
  )


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
