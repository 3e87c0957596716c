"""What the finished runs of a study say: rows, differences and tests."""

import functools
import statistics
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fusion_jax.data.corpora import open_corpus
from fusion_jax.evaluation import significance
from fusion_jax.metrics import words_of
from fusion_jax.studies.carry_out import Folder, file_name, shown
from fusion_jax.studies.plan import Run, Study

_LOSS = 'validation loss'
# Of the bootstrap.
_SAMPLES = 1_000
# A difference is clear below this p.
_CLEAR = 0.05
# The results of finished runs, and a number of each, by contestant and seed.
Results = Mapping[str, Mapping[int, Mapping[str, Any]]]
Values = Mapping[str, Mapping[int, float]]
Number = Callable[[Mapping[str, Any]], float]
# Scores of a test set by their keys in a result.
SCORES = types.MappingProxyType({'bleu': 'BLEU', 'chrf': 'chrF2'})


class Row(NamedTuple):
  """A run with its result, if it is finished, or why it failed."""

  run: Run
  result: Mapping[str, Any] | None
  failure: str

  @property
  def record(self) -> dict[str, Any]:
    """Plain numbers by name, for a data frame."""
    state = 'finished' if self.result else 'failed' if self.failure else 'open'
    record: dict[str, Any] = {
      'contestant': self.run.contestant,
      'seed': self.run.seed,
      'state': state,
      'reason': self.failure,
    }
    result = self.result or {}
    for name, value in result.items():
      if isinstance(value, int | float | str):
        record[name] = value
    for test, scores in result.get('tests', {}).items():
      record |= {f'{file_name(test)}/{x}': y for x, y in scores.items()}
    return record


def rows(study: Study, folder: Folder) -> list[Row]:
  """Return the runs of the contestants, without the trials."""
  return [
    Row(run, folder.result(run), folder.failure(run))
    for run in study.runs
    if not run.choice
  ]


class Difference(NamedTuple):
  """A contestant beside the baseline, over the seeds that both have.

  Attributes:
    interval: Half of its 95 % interval, by the pooled deviation; None if no
      contestant has several seeds.
    p_value: Of a t-test with the pooled deviation.
    holm: The same, corrected for the number of contestants.
    welch: Of Welch's t-test, which takes the two contestants alone.
  """

  mean: float
  interval: float | None
  p_value: float | None
  holm: float | None
  welch: float | None
  seeds: tuple[int, ...]


class Metric(NamedTuple):
  """A number of all contestants, and their differences to the baseline.

  Attributes:
    pooled: Deviation over seeds of all contestants together.
    differences: By contestant; the baseline has none.
    digits: That are shown.
    is_loss: Whether less is better.
  """

  name: str
  values: Values
  pooled: significance.Pooled | None
  differences: Mapping[str, Difference]
  digits: int
  is_loss: bool

  def gain(self, difference: Difference) -> int:
    """Return 1 for a clear gain, -1 for a clear loss, 0 for what is neither."""
    if difference.p_value is None or difference.p_value >= _CLEAR:
      return 0
    return 1 if (difference.mean < 0) == self.is_loss else -1


def metrics(study: Study, finished: Sequence[Row]) -> list[Metric]:
  """Compare the contestants of a study by what the page shows."""
  results: dict[str, dict[int, Mapping[str, Any]]] = {}
  for row in finished:
    if row.result:
      of_contestant = results.setdefault(row.run.contestant, {})
      of_contestant[row.run.seed] = row.result
  scores = dict(SCORES) | ({'comet': 'COMET'} if study.file.comet else {})
  return compared(results, study.baseline, study.tests, scores)


def compared(
  results: Results,
  baseline: str,
  tests: Sequence[str],
  scores: Mapping[str, str] = SCORES,
  settings: Sequence[Results] = (),
) -> list[Metric]:
  """Compare contestants by loss and scores.

  The seeds of all `settings`, if there are any, tell the deviation together.
  """
  columns: dict[str, Number] = {_LOSS: lambda result: result['validation_nll']}
  for key, name in scores.items():
    if len(tests) > 1:
      columns[f'{name}, mean'] = functools.partial(_mean, key)
    columns |= {
      f'{name}, {shown(test)}': functools.partial(_score, test, key)
      for test in tests
    }
  return [
    _metric(name, number, results, baseline, settings or [results])
    for name, number in columns.items()
  ]


def _mean(key: str, result: Mapping[str, Any]) -> float:
  return statistics.fmean(test[key] for test in result['tests'].values())


def _score(test: str, key: str, result: Mapping[str, Any]) -> float:
  return result['tests'][test][key]


def _metric(
  name: str,
  number: Number,
  results: Results,
  baseline: str,
  settings: Sequence[Results],
) -> Metric:
  values, *every = (
    {
      name: {seed: number(result) for seed, result in seeds.items()}
      for name, seeds in of_setting.items()
    }
    for of_setting in (results, *settings)
  )
  pooled = significance.Pooled.of(
    [[*x.values()] for y in every for x in y.values()]
  )
  made, is_loss = differences(values, baseline, pooled), name == _LOSS
  return Metric(name, values, pooled, made, 4 if is_loss else 2, is_loss)


def differences(
  values: Values, baseline: str, pooled: significance.Pooled | None
) -> dict[str, Difference]:
  """Compare contestants with the baseline by a deviation over seeds."""
  plain = values.get(baseline, {})
  made = {}
  for name, of_seeds in values.items():
    seeds = tuple(seed for seed in of_seeds if seed in plain)
    if name == baseline or not seeds:
      continue
    ours, theirs = ([x[seed] for seed in seeds] for x in (of_seeds, plain))
    mean = statistics.fmean(ours) - statistics.fmean(theirs)
    interval = p_value = None
    if pooled:
      interval = pooled.interval(len(seeds))
      p_value = pooled.p_value(mean, len(seeds))
    alone = significance.welch(theirs, ours)
    made[name] = Difference(mean, interval, p_value, None, alone, seeds)
  tested = [name for name, one in made.items() if one.p_value is not None]
  corrected = significance.holm([made[name].p_value or 0.0 for name in tested])
  for name, p_value in zip(tested, corrected, strict=True):
    made[name] = made[name]._replace(holm=p_value)
  return made


class Paired(NamedTuple):
  """Two runs of one seed on a test set, line by line."""

  contestant: str
  seed: int
  test: str
  bootstrap: float
  loss: significance.LossDifference


def paired(
  study: Study, finished: Sequence[Row], folder: Folder
) -> Iterator[Paired]:
  """Compare every run with the baseline of its seed, line by line."""
  done = {(x.run.contestant, x.run.seed): x.run for x in finished if x.result}
  for (name, seed), run in done.items():
    plain = done.get((study.baseline, seed))
    if name == study.baseline or plain is None:
      continue
    for test in study.tests:
      ours, theirs = (folder.losses(x)[test] for x in (run, plain))
      loss = significance.paired_losses(ours[0], theirs[0], ours[1])
      p_value = _bootstrap(study, test, (plain, run), folder)
      yield Paired(name, seed, test, p_value, loss)


def _bootstrap(
  study: Study, test: str, runs: tuple[Run, Run], folder: Folder
) -> float:
  """Return p of sacreBLEU's paired bootstrap."""
  config = runs[0].config
  words = words_of(config.data.target_language, config.decoding.bleu_tokenizer)
  references = [target for _, target in open_corpus(test, config.data).read()]
  lines = [folder.translations(run, test) for run in runs]
  counted = significance.statistics_of(
    lines, [references], words, names=('BLEU',)
  )
  counts = {str(n): one['BLEU'] for n, one in enumerate(counted)}
  _, tested = significance.paired_test('BLEU', words, 1, counts, 'bs', _SAMPLES)
  return float(tested['1'].p_value or 0.0)


def cannot_tell(metric: Metric, seeds: int) -> str:
  """Say how large a difference must be to be seen with so many seeds."""
  if metric.pooled is None:
    return (
      f'{metric.name}: every contestant has one seed, so that nothing says '
      'what a seed does; train two or three'
    )
  least = f'{metric.pooled.interval(seeds):.{metric.digits}f}'
  many = f'{seeds} seed{"s" if seeds > 1 else ""}'
  return f'{metric.name}: with {many} each, a difference of {least} is needed'
