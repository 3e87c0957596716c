"""Studies: contestants compared over seeds, as a study file says."""

from pathlib import Path
from typing import Any


def study(
  file: str | Path, workdir: str | Path, jobs: int = 1
) -> list[dict[str, Any]]:
  """Carry out what is left of a study, and return its runs as records.

  The same as `fusion-jax study FILE --workdir=WORKDIR --jobs=JOBS`.

  Args:
    file: Study file.
    workdir: Folder of the study.
    jobs: Runs at a time, each with its part of the devices and cores.

  Returns:
    A record for each run: 'contestant', 'seed', 'state' ('finished', 'failed'
    or 'open'), 'reason', and of a finished run its sizes, times in seconds,
    losses in nats, and scores from 0 to 100 as 'TEST/bleu'.

  Raises:
    InputError: Something is wrong with the study file.
  """
  from fusion_jax.studies import page, plan, statistics, workers
  from fusion_jax.studies.carry_out import Folder

  read, folder = plan.read(Path(file).absolute()), Folder(Path(workdir))
  team = workers.Workers(read, folder, jobs)
  team.carry_out(lambda run: page.write(read, folder))
  page.write(read, folder)
  return [row.record for row in statistics.rows(read, folder)]
