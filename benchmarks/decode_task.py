"""What the contestants of the decoding comparison translate.

Only the standard library: peers in other environments import this too.
"""

import argparse
import random
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.serving import Contestant, contestant_parser, serve
from benchmarks.sizes import SIZES, Size

# Subwords of every source and of every translation, end symbols included.
LENGTH = 32
_SENTENCES = 64
_SINGLE_SENTENCES = 8
# The ids 0 to 3 are special symbols; 3 ends a sentence.
_SPECIAL_SYMBOLS, END = 4, 3


class Task(NamedTuple):
  """Sentences to translate in batches of `rows`; beam 1 is greedy search."""

  beam: int
  rows: int
  sentences: int

  @property
  def name(self) -> str:
    """As the table has it."""
    search = 'greedy' if self.beam == 1 else f'beam {self.beam}'
    return f'{search}, ' + ('one by one' if self.rows == 1 else 'batch')

  @property
  def flags(self) -> tuple[str, ...]:
    """For `task_parser`."""
    return tuple(f'--{name}={value}' for name, value in self._asdict().items())

  @property
  def output_tokens(self) -> int:
    """Of all translations."""
    return self.sentences * LENGTH


TASKS = tuple(
  Task(beam, rows, sentences)
  for rows, sentences in ((_SENTENCES, _SENTENCES), (1, _SINGLE_SENTENCES))
  for beam in (1, 4)
)


def task_parser() -> argparse.ArgumentParser:
  """The flags that all contestants have."""
  parser = contestant_parser()
  for name in Task._fields:
    parser.add_argument(f'--{name}', type=int, default=1)
  return parser


def serve_task(
  make: Callable[[Size, Task], Contestant], arguments: argparse.Namespace
) -> None:
  """Makes a contestant for the task that the flags name, and serves."""
  task = Task(*(getattr(arguments, name) for name in Task._fields))
  size = SIZES[arguments.size]
  serve(lambda size: make(size, task), size, warm_up_steps=1)


def batches(task: Task, size: Size) -> list[list[list[int]]]:
  """The sources: random ids, the same for every contestant."""
  rng = random.Random(0)
  sentences = [
    [
      *(
        rng.randrange(_SPECIAL_SYMBOLS, size.vocabulary)
        for _ in range(LENGTH - 1)
      ),
      END,
    ]
    for _ in range(task.sentences)
  ]
  return [
    sentences[first : first + task.rows]
    for first in range(0, task.sentences, task.rows)
  ]
