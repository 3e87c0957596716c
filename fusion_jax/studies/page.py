"""The plan of a study, and its page with tables, which grow while it runs."""

import json
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_jax import figures
from fusion_jax.data.corpora import open_corpus
from fusion_jax.evaluation import TextFile, Texts, buckets
from fusion_jax.files import write_whole
from fusion_jax.studies import statistics as numbers
from fusion_jax.studies.carry_out import Folder, shown
from fusion_jax.studies.plan import Study, deviations, operations, parameters
from fusion_jax.studies.statistics import Metric, Row
from fusion_jax.tables import Format, table, template

_HERE = Path(__file__).parent
NONE = '–'
# Tables as files, by the ends of their names.
_FORMS: dict[str, Format] = {'csv': 'csv', 'tex': 'latex'}


def plan_table(study: Study, folder: Folder) -> str:
  """Return the runs with sizes, state and, where one was timed, hours."""
  header = ['run', 'parameters', 'multiply-adds', 'updates', 'hours']
  header += ['apart', 'state']
  results = filter(None, map(folder.result, (*study.runs, study.timing)))
  timed = next(results, {'seconds_an_update': 0.0, 'operations': 1})
  speed = timed['seconds_an_update'] / timed['operations']
  rows, left = [], 0.0
  for run in study.runs:
    count, steps = operations(run.config), run.config.training.steps
    hours = count * steps * speed / 3_600
    state = 'finished' if folder.is_finished(run) else folder.failure(run)
    left += 0 if state == 'finished' else hours
    apart = deviations(study, run.contestant).items()
    row = [run.name, f'{parameters(run.config):,}', f'{count:,}', f'{steps:,}']
    row += [f'{hours:.2f}' if speed else '?']
    row += [' '.join(f'{what} {share:+.2%}' for what, share in apart)]
    rows.append([*row, state or 'open'])
  known = f'{left:.1f} hours are left'
  total = known if speed else 'hours are known after the first run'
  text = table('markdown', header, rows)
  return f'{text}\n{len(study.runs)} runs; {total}'


def write(study: Study, folder: Folder) -> Path:
  """Write the page, study.csv, study.tex and records.json."""
  rows = numbers.rows(study, folder)
  metrics = numbers.metrics(study, [row for row in rows if row.result])
  header, lines = summary(study, rows, metrics)
  tests = tuple(f', {shown(test)}' for test in study.tests)
  # Of several test sets the page first shows the mean.
  several = len(tests) > 1
  means = [x for x in metrics if not (several and x.name.endswith(tests))]
  for suffix, form in _FORMS.items():
    text = table(form, header, lines, numeric=True)
    write_whole(folder.workdir / f'study.{suffix}', f'{text}\n'.encode())
  records = json.dumps([row.record for row in rows], indent=1)
  write_whole(folder.workdir / 'records.json', f'{records}\n'.encode())
  page = folder.workdir / 'study.html'
  made = template(_HERE / 'page.html', _HERE.parent / 'analysis/report')
  command = ['fusion-jax', 'study', str(study.path)]
  html = made.render(
    study=study,
    shown=shown,
    rows=rows,
    summary=summary(study, rows, means),
    tests=[(metric.name, *_tests(metric)) for metric in metrics],
    needed=[numbers.cannot_tell(x, len(study.file.seeds)) for x in metrics],
    equal=list(_equal(study)),
    pictures=_pictures(study, rows, metrics, folder),
    paired=list(numbers.paired(study, rows, folder)),
    learned=list(_learned(rows)),
    command=shlex.join([*command, f'--workdir={folder.workdir}']),
    missing=[row for row in rows if not row.result],
  )
  write_whole(page, html.encode())
  return page


def summary(
  study: Study, rows: Sequence[Row], metrics: Sequence[Metric]
) -> tuple[list[str], list[list[str]]]:
  """Return the table of all contestants: scores, differences and costs."""
  header = ['contestant', 'seeds']
  for metric in metrics:
    header += [metric.name, 'difference', 'p', 'p, Holm']
  header += ['parameters', 'multiply-adds', 'updates', 's an update']
  header += ['memory, MB', 'lines/s']
  lines = []
  for name in study.file.contestants:
    done = [x.result for x in rows if x.run.contestant == name and x.result]
    line = [f'`{name}`', str(len(done))]
    for metric in metrics:
      line += cells(metric, name)
    lines.append(line + _costs(done))
  return header, lines


def _costs(results: Sequence[Mapping[str, Any]]) -> list[str]:
  if not results:
    return [NONE] * 6
  first = results[0]
  seconds = statistics.median(x['seconds_an_update'] for x in results)
  tests = [test for x in results for test in x['tests'].values()]
  speeds = [test['lines'] / test['seconds'] for test in tests]
  return [
    f'{first["parameters"]:,}',
    f'{first["operations"]:,}',
    f'{first["updates"]:,}',
    f'{seconds:.3f}',
    f'{max(x["peak_memory"] for x in results) / 1e6:,.0f}',
    f'{statistics.median(speeds):.1f}' if speeds else NONE,
  ]


def cells(metric: Metric, name: str) -> list[str]:
  """Return mean ± deviation, difference, p and p by Holm of a contestant."""
  values = list(metric.values.get(name, {}).values())
  if not values:
    return [NONE] * 4
  shown = f'{statistics.fmean(values):.{metric.digits}f}'
  if len(values) > 1:
    shown += f' ± {statistics.stdev(values):.{metric.digits}f}'
  one = metric.differences.get(name)
  if one is None:
    return [shown, NONE, NONE, NONE]
  difference = signed(one.mean, metric.digits)
  return [shown, difference, p_value(one.p_value), p_value(one.holm)]


def signed(value: float, digits: int) -> str:
  """Return a difference with its sign; what rounds to 0 is +0."""
  return f'{round(value, digits) + 0.0:+.{digits}f}'


def p_value(value: float | None) -> str:
  if value is None:
    return NONE
  return '<0.001' if value < 0.001 else f'{value:.3f}'


def _tests(metric: Metric) -> tuple[list[str], list[list[str]]]:
  """Return every test of a metric, with Welch's beside the pooled one."""
  lines = [
    [
      f'`{name}`',
      ', '.join(map(str, one.seeds)),
      signed(one.mean, metric.digits),
      f'± {one.interval:.{metric.digits}f}' if one.interval else NONE,
      *map(p_value, (one.p_value, one.holm, one.welch)),
    ]
    for name, one in metric.differences.items()
  ]
  header = ['contestant', 'seeds', 'difference', '95 % interval']
  return [*header, 'p, pooled', 'p, Holm', 'p, Welch'], lines


def _equal(study: Study) -> Iterator[str]:
  """Say by what a contestant is equal to another, and how nearly."""
  for name, contestant in study.file.contestants.items():
    apart = deviations(study, name)
    for what, like in contestant.match.items():
      near = f', within {apart[what]:+.2%}' if what in apart else ''
      yield f'{name} has as many {what} as {like}{near}'


def _pictures(
  study: Study, rows: Sequence[Row], metrics: Sequence[Metric], folder: Folder
) -> dict[str, str]:
  pictures = {'curves': _curves(rows)}
  for metric in metrics:
    if metric.differences and metric.pooled:
      size = (6.4, 1.2 + 0.3 * len(metric.differences))
      figure, (axes,) = figures.panels(1, 1, size)
      draw_differences(axes, metric)
      axes.set_xlabel(f'{metric.name}: difference (seeds), 95 % interval')
      pictures[metric.name] = figure
  done = [row for row in rows if row.result]
  for test in study.tests if done else ():
    name = f'{shown(test)}: means over the finished seeds'
    pictures[name] = _buckets(done, test, folder)
  texts = {
    name: figures.encoded(figure, 'svg').decode()
    for name, figure in pictures.items()
  }
  return {name: text[text.index('<svg') :] for name, text in texts.items()}


def draw_differences(axes: figures.Axes, metric: Metric) -> None:
  """Draw the differences of a metric, the best on top; the clear in colour."""
  every, less = metric.differences.items(), metric.is_loss
  ordered = sorted(every, key=lambda item: item[1].mean, reverse=less)
  colours = {0: '#888888', 1: figures.COLOURS[0], -1: figures.COLOURS[1]}
  for height, (_, one) in enumerate(ordered):
    colour = colours[metric.gain(one)]
    axes.errorbar(
      one.mean, height, xerr=one.interval, fmt='o', color=colour, capsize=2
    )
  labels = [f'{name} ({len(one.seeds)})' for name, one in ordered]
  axes.set_yticks(range(len(ordered)), labels)
  axes.axvline(0, color='#888888', linewidth=0.8)


def _curves(rows: Sequence[Row]) -> figures.Figure:
  """Draw the validation losses, seeds of a contestant in one colour."""
  figure, (axes,) = figures.panels(1, 1, (6.4, 3.6))
  names = dict.fromkeys(row.run.contestant for row in rows)
  looks = dict(zip(names, figures.styles(), strict=False))
  seen = set[str]()
  for row in rows:
    name = row.run.contestant
    if row.result:
      steps, losses = zip(*row.result['curve'], strict=True)
      label = None if name in seen else name
      axes.plot(steps, losses, label=label, **looks[name])
    seen.add(name)
  axes.set_xlabel('update')
  axes.set_ylabel('validation loss, nats')
  if any(row.result for row in rows):
    axes.legend(fontsize='small', frameon=False)
  return figure


def _buckets(done: Sequence[Row], test: str, folder: Folder) -> figures.Figure:
  """Draw BLEU by source length and F1 by frequency, means over the seeds."""
  texts = _texts(done, test, folder)
  lengths = buckets.line_lengths(texts.source.lines, texts.languages[0])
  bounds = buckets.quantile_bounds(lengths)
  counted = buckets.counted(texts, names=['BLEU'])
  rows = buckets.bleu_by_length(lengths, bounds, counted)
  frequencies = buckets.f1_of_texts(texts)['buckets']
  figure, axes = figures.panels(2, 1, (6.4, 3.4))
  titled = {'by source length, as many lines each': rows}
  buckets.draw(figure, axes, titled, frequencies)
  return figure


def _texts(done: Sequence[Row], test: str, folder: Folder) -> Texts:
  """Return a test set and the translations of every seed."""
  config = done[0].run.config
  pairs = open_corpus(test, config.data).read()
  source, reference = (
    TextFile(test, lines) for lines in zip(*pairs, strict=True)
  )
  systems: dict[str, tuple[TextFile, ...]] = {}
  for row in done:
    made = TextFile(test, tuple(folder.translations(row.run, test)))
    seeds = systems.get(row.run.contestant, ())
    systems[row.run.contestant] = (*seeds, made)
  languages = config.data.source_language, config.data.target_language
  tokenizer = config.decoding.bleu_tokenizer
  return Texts(source, (reference,), systems, languages, None, tokenizer)


def _learned(
  rows: Sequence[Row],
) -> Iterator[tuple[str, list[str], list[list[str]]]]:
  """Yield what the fusions of a contestant report, by seed."""
  by_name: dict[str, dict[int, Mapping[str, float]]] = {}
  for row in rows:
    if row.result and row.result['fusion']:
      seeds = by_name.setdefault(row.run.contestant, {})
      seeds[row.run.seed] = row.result['fusion']
  for name, seeds in by_name.items():
    keys = dict.fromkeys(key for of_seed in seeds.values() for key in of_seed)
    lines = [
      [key, *(f'{x[key]:.3f}' if key in x else NONE for x in seeds.values())]
      for key in keys
    ]
    yield name, [''] + [f'seed {seed}' for seed in seeds], lines
