"""Opening of a run for a view, and writing of the view's result."""

import argparse
import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText, TextChoice
from fusion_jax.analysis.view_result import View, ViewResult
from fusion_jax.decoding.direction import load_chosen
from fusion_jax.errors import InputError
from fusion_jax.files import write_whole


def open_subject(arguments: argparse.Namespace) -> RunWithText:
  """Open the run and the text that the flags name.

  Args:
    arguments: Flags workdir, source, target, lines, tags and tags_side, and
      those of `add_checkpoint_flags` and `add_direction_flags`.

  Raises:
    InputError: As for `load_chosen`.
  """
  choice = TextChoice(
    arguments.source,
    arguments.target,
    arguments.lines,
    arguments.tags,
    arguments.tags_side,
  )
  return RunWithText(arguments.workdir, load_chosen(arguments), choice)


def check_finite(subject: RunWithText) -> None:
  """Refuse a run that has diverged; views of its metrics remain possible.

  Raises:
    InputError: A parameter is NaN or infinite.
  """
  run = subject.run
  for path, leaf in jax.tree.leaves_with_path(run.parameters):
    if not jnp.isfinite(leaf).all():
      name = '/'.join(part.key for part in path)
      raise InputError(
        f'{subject.workdir}: its parameters of step {run.step} are not finite, '
        f'{name} among them; choose an earlier --step'
      )


def look_at(view: View, subject: RunWithText, folder: Path) -> ViewResult:
  """Apply a view to a run, and write VIEW.json, VIEW.png and VIEW.svg.

  Args:
    view: View to apply.
    subject: Run and text to look at.
    folder: Folder to write to; it is created if it does not exist.

  Raises:
    InputError: The folder cannot be written, the parameters are not finite, or
      the view refuses its input.
  """
  if view.reads != 'metrics':
    check_finite(subject)
  finding = view.look(subject)
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise InputError(f'{folder}: {error.strerror}') from error
  written = {
    'view': view.name,
    'source': view.source,
    'run': str(subject.workdir),
    'step': subject.run.step,
    'steps': list(subject.run.steps),
    'text': dataclasses.asdict(subject.choice),
    'summary': finding.summary,
    'numbers': finding.numbers,
  }
  text = json.dumps(written, ensure_ascii=False, indent=1, allow_nan=False)
  write_whole(folder / f'{view.name}.json', text.encode() + b'\n')
  figures.save(finding.draw(), folder / view.name)
  return finding
