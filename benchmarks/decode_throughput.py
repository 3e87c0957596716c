"""Translation: sentences/s and output tokens/s, in batches and one by one.

    python -m benchmarks.decode_throughput [--workdir=RUN --input=FILE]
    python -m benchmarks.decode_throughput --workdir=RUN --input=FILE --mixed
    python -m benchmarks.decode_throughput --size=base [--peers]

Without a run, a small model with random parameters translates lines of the
embedded corpus. What is compiled in the first pass is not timed. With --mixed,
the lines of the file take turns with as many lines of one length: the line
whose source and translation have the lengths nearest to the mean, again and
again, by the last of --beams. With --size, see `benchmarks.decode_comparison`.
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
  cells,
  circumstances,
  make_parser,
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


class Setting:
  """One way to translate lines, with its times so far.

  Attributes:
    lengths: subwords of each source and translation, end symbols included.
  """

  def __init__(
    self, run: TrainedModel, lines: Sequence[str], beam: int, batch: bool = True
  ):
    options = dataclasses.replace(run.config.decoding, beam_size=beam)
    self._translator = Translator(run, options)
    self._groups = [lines] if batch else [[line] for line in lines]
    self._sentences = len(lines)
    self.first, self.seconds = self._pass(), list[float]()

  def run(self) -> None:
    """Translates everything once more."""
    self.seconds.append(self._pass())

  def _pass(self) -> float:
    begin = time.perf_counter()
    found = [
      each[0]
      for group in self._groups
      for each in self._translator.translate_n_best(group)
    ]
    seconds = time.perf_counter() - begin
    self.lengths = [
      tuple(sum(map(len, side)) for side in zip(*each.pairs, strict=True))
      for each in found
      if each.pairs
    ]
    return seconds

  def results(self) -> dict[str, Any]:
    """Rates over the timed passes."""
    rates = [self._sentences / each for each in self.seconds]
    tokens = sum(target for _, target in self.lengths) / self._sentences
    return {
      'sentences': self._sentences,
      'sentences_per_second': spread(rates),
      'output_tokens_per_sentence': tokens,
      'output_tokens_per_second': spread([rate * tokens for rate in rates]),
      'mean_lengths': np.mean(self.lengths, axis=0).tolist(),
      'first_pass_seconds': self.first,
    }


def typical(lines: Sequence[str], lengths: Sequence[tuple[int, int]]) -> str:
  """The line with the lengths nearest to the mean lengths."""
  each = np.asarray(lengths, float)
  return lines[int(np.abs(each - each.mean(0)).sum(1).argmin())]


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  if arguments.size:
    print(compare(arguments))
    return
  start_logging()
  results = _measure(arguments)
  name = 'mixed_lengths' if arguments.mixed else 'decode_throughput'
  write_results(arguments.output or RESULTS / f'{name}.json', results)
  print(_report(results))


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
  """All settings in turns."""
  if arguments.workdir:
    run = load_run(arguments.workdir)
    with open_input(arguments.input) as file:
      every = (x for x in read_lines(file, arguments.input) if x.strip())
      lines = list(itertools.islice(every, arguments.sentences))
  else:
    run = _random_run()
    pairs = embedded.generate('en', 'de', 'test', arguments.sentences)
    lines = [source for source, _ in pairs]
  settings = (_mixed if arguments.mixed else _settings)(run, lines, arguments)
  for _ in range(arguments.rounds):
    for setting in settings.values():
      setting.run()
  return circumstances() | {
    'run': Path(arguments.workdir).name or 'random parameters',
    'parameters': sum(x.size for x in jax.tree.leaves(run.parameters)),
    'settings': {name: own.results() for name, own in settings.items()},
    'peak_memory_mb': peak_memory_mb(),
  }


def _settings(
  run: TrainedModel, lines: list[str], arguments: argparse.Namespace
) -> dict[str, Setting]:
  settings = {}
  for batch in (True, False) if arguments.single else (True,):
    for beam in arguments.beams:
      name = 'greedy' if beam == 1 else f'beam {beam}'
      own = lines if batch else lines[: arguments.single]
      name += ', batches' if batch else ', one by one'
      settings[name] = Setting(run, own, beam, batch)
  return settings


def _mixed(
  run: TrainedModel, lines: list[str], arguments: argparse.Namespace
) -> dict[str, Setting]:
  mixed = Setting(run, lines, arguments.beams[-1])
  same = [typical(lines, mixed.lengths)] * len(lines)
  alike = Setting(run, same, arguments.beams[-1])
  return {'mixed lengths': mixed, 'one length': alike}


def _random_run(pairs: int = 2_000, vocabulary: int = 1_000) -> TrainedModel:
  """A small model that has learnt nothing, with a tokenizer that has."""
  options = TokenizerConfig(vocabulary_size=vocabulary)
  text = embedded.generate('en', 'de', 'train', pairs)
  lines = itertools.chain.from_iterable(text)
  tokenizer = Tokenizer(train_tokenizer(lines, options))
  config = ExperimentConfig(
    data=DataConfig(tokenizer=options),
    model=dataclasses.replace(PRESETS['small'], norm='pre'),
    decoding=DecodingConfig(max_source_length=64),
  )
  model = make_model(config, tokenizer, tokenizer)
  parameters = initial_parameters(model, seed=0)
  return TrainedModel(config, model, parameters, 0, tokenizer, tokenizer)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--workdir', default='')
  add('--input', default='')
  add('--mixed', action='store_true', help='beside lines of one length')
  add('--sentences', type=int, default=1_000)
  add('--beams', type=int, nargs='+', default=[1, 4], help='1: greedy')
  add('--single', type=int, default=50, help='one by one; 0: none')
  add('--rounds', type=int, default=3)
  add('--output', type=Path)
  add('--size', choices=SIZES, help='random ids instead')
  add('--peers', action='store_true', help='with --size')
  add('--steps', type=int, default=1, help='of a round')
  add('--fresh', action='store_true', help='start anew')
  arguments = parse_arguments(argv, parser)
  if bool(arguments.workdir) != bool(arguments.input):
    parser.error('--workdir and --input go together')
  if arguments.size and arguments.workdir:
    parser.error('--size has random parameters; give it without --workdir')
  if arguments.peers and not arguments.size:
    parser.error('--peers needs --size')
  if arguments.mixed and not arguments.workdir:
    parser.error('--mixed needs --workdir')
  return arguments


def _report(results: dict[str, Any]) -> str:
  rows = [
    (
      name,
      f'{own["sentences"]:,}',
      f'{own["sentences_per_second"]["median"]:.1f}',
      *cells(own['output_tokens_per_second']),
      f'{own["output_tokens_per_sentence"]:.1f}',
    )
    for name, own in results['settings'].items()
  ]
  header = ('', 'sentences', 'sentences/s', 'tokens/s', 'min', 'max')
  text = table((*header, 'tokens/sentence'), rows)
  if 'mixed lengths' in results['settings']:
    mixed, alike = (
      own['output_tokens_per_second']['median']
      for own in results['settings'].values()
    )
    text += f'\nratio {mixed / alike:.2f}'
  return text


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
