"""The plan of a study as a table, with the time that it takes."""

from fusion_jax.studies.carry_out import Folder
from fusion_jax.studies.plan import Study, deviations, operations, parameters
from fusion_jax.tables import table


def plan_table(study: Study, folder: Folder) -> str:
  """Return the runs with sizes, state and, where one was timed, hours."""
  speed = _seconds_an_operation(study, folder)
  rows, left = [], 0.0
  for run in study.runs:
    config = run.config
    seconds = operations(config) * config.training.steps * speed
    state = 'finished' if folder.is_finished(run) else folder.failure(run)
    left += 0 if state == 'finished' else seconds
    match = ' '.join(
      f'{what} {share:+.2%}'
      for what, share in deviations(study, run.contestant).items()
    )
    rows.append(
      [
        run.name,
        f'{parameters(config):,}',
        f'{operations(config):,}',
        f'{config.training.steps:,}',
        f'{seconds / 3_600:.2f}' if speed else '?',
        match,
        state or 'open',
      ]
    )
  header = ['run', 'parameters', 'multiply-adds', 'updates', 'hours']
  header += ['apart', 'state']
  text = table('markdown', header, rows)
  total = (
    f'{left / 3_600:.1f} hours are left'
    if speed
    else ('hours are known after the first run')
  )
  return f'{text}\n{len(study.runs)} runs; {total}'


def _seconds_an_operation(study: Study, folder: Folder) -> float:
  """Return seconds of an update over its multiply-adds, from finished runs."""
  for run in (*study.runs, study.timing):
    if result := folder.result(run):
      return result['seconds_an_update'] / result['operations']
  return 0.0
