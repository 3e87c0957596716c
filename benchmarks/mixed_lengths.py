"""Short and long sentences mixed, against sentences of one length.

    python -m benchmarks.mixed_lengths --workdir=RUN --input=FILE

Output tokens/s of the lines of a file, and of as many lines of one length: the
line whose source and translation have the lengths nearest to the mean, again
and again. What is compiled in the first pass is not timed; the two take turns.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import (
  RESULTS,
  circumstances,
  spread,
  table,
  write_results,
)
from fusion_jax.cli.text_io import open_input, read_lines
from fusion_jax.config.flags import parse_arguments
from fusion_jax.decoding.translate import Translator
from fusion_jax.runs.loading import load_run
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages


class Text:
  """Lines to translate, with the rates so far."""

  def __init__(self, translator: Translator, lines: Sequence[str]):
    self._translator, self._lines = translator, lines
    self.lengths: list[tuple[int, int]] = []
    self.rates: list[float] = []
    self.translate()
    self.rates.clear()

  def translate(self) -> None:
    """Once more, all of them."""
    begin = time.perf_counter()
    best = [
      found[0] for found in self._translator.translate_n_best(self._lines)
    ]
    seconds = time.perf_counter() - begin
    self.lengths = [
      tuple(sum(map(len, side)) for side in zip(*each.pairs, strict=True))
      for each in best
      if each.pairs
    ]
    self.rates.append(sum(target for _, target in self.lengths) / seconds)


def typical(lines: Sequence[str], lengths: Sequence[tuple[int, int]]) -> str:
  """The line with the lengths nearest to the mean lengths."""
  each = np.asarray(lengths, float)
  return lines[int(np.abs(each - each.mean(0)).sum(1).argmin())]


@one_line_errors
def main(argv: list[str]) -> None:
  """Measures both in turns and prints the table."""
  arguments = _parse(argv)
  start_logging()
  run = load_run(arguments.workdir)
  with open_input(arguments.input) as file:
    every = (line for line in read_lines(file, arguments.input) if line.strip())
    lines = list(itertools.islice(every, arguments.sentences))
  options = dataclasses.replace(run.config.decoding, beam_size=arguments.beam)
  translator = Translator(run, options)
  mixed = Text(translator, lines)
  same = Text(translator, [typical(lines, mixed.lengths)] * len(lines))
  for _ in range(arguments.rounds):
    mixed.translate()
    same.translate()
  texts = {'mixed lengths': mixed, 'one length': same}
  results = {
    name: {
      'output_tokens_per_second': spread(text.rates),
      'mean_lengths': np.mean(text.lengths, axis=0).tolist(),
    }
    for name, text in texts.items()
  }
  ratio = np.median(mixed.rates) / np.median(same.rates)
  write_results(
    arguments.output,
    circumstances()
    | {'beam': arguments.beam, 'sentences': len(lines), 'ratio': ratio}
    | results,
  )
  rows = [
    (
      name,
      f'{own["output_tokens_per_second"]["median"]:,.0f}',
      *(f'{length:.1f}' for length in own['mean_lengths']),
    )
    for name, own in results.items()
  ]
  print(table(('', 'output tokens/s', 'source', 'translation'), rows))
  print(f'ratio {ratio:.2f}')


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--workdir', required=True)
  parser.add_argument('--input', required=True)
  parser.add_argument('--sentences', type=int, default=1_000)
  parser.add_argument('--beam', type=int, default=4)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'mixed_lengths.json'
  )
  return parse_arguments(argv, parser)


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
