"""Translation: sentences/s and output tokens/s, in batches and one by one.

    python -m benchmarks.decode_throughput [--workdir=RUN --input=FILE]
    python -m benchmarks.decode_throughput --size=base [--peers]

Without a run, a small model with random parameters translates lines of the
embedded corpus; it hardly ever ends a sentence, so outputs are as long as the
limit allows. Output tokens are the subwords of the translations, their end
symbols included. What is compiled in the first pass is not timed.

With --size, a model of that size translates random ids, side by side with
other programs (`benchmarks.decode_comparison`).
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import (
  RESULTS,
  circumstances,
  spread,
  table,
  write_results,
)
from benchmarks.decode_comparison import compare
from benchmarks.serving import peak_memory_mb
from benchmarks.sizes import SIZES
from fusion_jax.cli.text_io import open_input, read_lines
from fusion_jax.config import (
  PRESETS,
  DataConfig,
  DecodingConfig,
  ExperimentConfig,
  TokenizerConfig,
)
from fusion_jax.config.flags import parse_arguments
from fusion_jax.data import embedded
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.data.tokenizer import train as train_tokenizer
from fusion_jax.decoding.translate import Translator
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.loading import TrainedModel, load_run, make_model
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages


class CountingTokenizer(Tokenizer):
  """Counts the subwords that it decodes, and an end symbol for each line."""

  tokens = 0

  def decode(self, ids: np.ndarray) -> str:
    """As the tokenizer's."""
    self.tokens += len(ids) + 1
    return super().decode(ids)


class Setting:
  """One way to translate, with its times so far."""

  def __init__(
    self, run: TrainedModel, lines: Sequence[str], beam: int, batch: bool
  ):
    self.name = f'{"greedy" if beam == 1 else f"beam {beam}"}, ' + (
      'batches' if batch else 'one by one'
    )
    self._counter = CountingTokenizer(run.target_tokenizer.model)
    run = dataclasses.replace(run, target_tokenizer=self._counter)
    options = dataclasses.replace(run.config.decoding, beam_size=beam)
    self._translator = Translator(run, options)
    self._groups = [lines] if batch else [[line] for line in lines]
    self._sentences = len(lines)
    self.compile_seconds = self.run()
    self.seconds: list[float] = []

  def run(self) -> float:
    """Translates everything once; returns the seconds."""
    self._counter.tokens = 0
    begin = time.perf_counter()
    for group in self._groups:
      for _ in self._translator.translate(group):
        pass
    return time.perf_counter() - begin

  def results(self) -> dict[str, Any]:
    """Rates over the timed passes."""
    rates = [self._sentences / seconds for seconds in self.seconds]
    per_sentence = self._counter.tokens / self._sentences
    return {
      'sentences': self._sentences,
      'sentences_per_second': spread(rates),
      'output_tokens_per_sentence': per_sentence,
      'output_tokens_per_second': spread([r * per_sentence for r in rates]),
      'first_pass_seconds': self.compile_seconds,
    }


@one_line_errors
def main(argv: list[str]) -> None:
  """Measures all settings in turns and prints the table."""
  arguments = _parse(argv)
  if arguments.size:
    print(compare(arguments))
    return
  start_logging()
  results = _measure(arguments)
  write_results(arguments.output or RESULTS / 'decode_throughput.json', results)
  print(_report(results))


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
  """All settings in turns."""
  if arguments.workdir:
    run = load_run(arguments.workdir)
    with open_input(arguments.input) as file:
      all_lines = read_lines(file, arguments.input)
      lines = list(itertools.islice(all_lines, arguments.sentences))
  else:
    run = random_run()
    pairs = embedded.generate('en', 'de', 'test', arguments.sentences)
    lines = [source for source, _ in pairs]
  settings = [
    Setting(run, lines if batch else lines[: arguments.single], beam, batch)
    for batch in ((True, False) if arguments.single else (True,))
    for beam in arguments.beams
  ]
  for _ in range(arguments.rounds):
    for setting in settings:
      setting.seconds.append(setting.run())
  return circumstances() | {
    'run': Path(arguments.workdir).name or 'random parameters',
    'parameters': sum(x.size for x in jax.tree.leaves(run.parameters)),
    'settings': {setting.name: setting.results() for setting in settings},
    'peak_memory_mb': peak_memory_mb(),
  }


def random_run(pairs: int = 2_000, vocabulary: int = 1_000) -> TrainedModel:
  """A small model that has learnt nothing, with a tokenizer that has."""
  tokenizer_config = TokenizerConfig(vocabulary_size=vocabulary)
  lines = itertools.chain.from_iterable(
    embedded.generate('en', 'de', 'train', pairs)
  )
  tokenizer = Tokenizer(train_tokenizer(lines, tokenizer_config))
  config = ExperimentConfig(
    data=DataConfig(tokenizer=tokenizer_config),
    model=dataclasses.replace(PRESETS['small'], norm='pre'),
    decoding=DecodingConfig(max_source_length=64),
  )
  model = make_model(config, tokenizer, tokenizer)
  parameters = initial_parameters(model, seed=0)
  return TrainedModel(config, model, parameters, 0, tokenizer, tokenizer)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--workdir', default='')
  parser.add_argument('--input', default='')
  parser.add_argument('--sentences', type=int, default=1_000)
  parser.add_argument(
    '--beams', type=int, nargs='+', default=[1, 4], help='1: greedy'
  )
  parser.add_argument(
    '--single', type=int, default=50, help='one by one; 0: none'
  )
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--output', type=Path)
  parser.add_argument('--size', choices=SIZES, help='random ids instead')
  parser.add_argument('--peers', action='store_true', help='with --size')
  parser.add_argument('--steps', type=int, default=1, help='of a round')
  parser.add_argument('--fresh', action='store_true', help='start anew')
  arguments = parse_arguments(argv, parser)
  if bool(arguments.workdir) != bool(arguments.input):
    parser.error('--workdir and --input go together')
  if arguments.size and arguments.workdir:
    parser.error('--size has random parameters; give it without --workdir')
  if arguments.peers and not arguments.size:
    parser.error('--peers needs --size')
  return arguments


def _report(results: dict[str, Any]) -> str:
  rows = [
    (
      name,
      f'{own["sentences"]:,}',
      f'{own["sentences_per_second"]["median"]:.1f}',
      f'{own["output_tokens_per_second"]["median"]:,.0f}',
      f'{own["output_tokens_per_second"]["min"]:,.0f}',
      f'{own["output_tokens_per_second"]["max"]:,.0f}',
      f'{own["output_tokens_per_sentence"]:.1f}',
    )
    for name, own in results['settings'].items()
  ]
  header = ('', 'sentences', 'sentences/s', 'tokens/s', 'min', 'max')
  return table((*header, 'tokens/sentence'), rows)


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
