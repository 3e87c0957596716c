"""The page of a study, which grows while it runs, and its tables as files."""

import functools
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from fusion_jax import figures
from fusion_jax.data.corpora import open_corpus
from fusion_jax.evaluation import TextFile, Texts, buckets
from fusion_jax.files import write_whole
from fusion_jax.studies import statistics as numbers
from fusion_jax.studies.carry_out import Folder, shown
from fusion_jax.studies.plan import Study, deviations
from fusion_jax.studies.statistics import Metric, Row
from fusion_jax.tables import Format, table

_HERE = Path(__file__).parent
NONE = '–'
# Buckets of lengths with as many lines each.
_BUCKETS = 4
# Tables as files, by the ends of their names.
_FORMS: dict[str, Format] = {'csv': 'csv', 'tex': 'latex'}


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
  html = _template().render(
    study=study,
    shown=shown,
    rows=rows,
    summary=summary(study, rows, means),
    metrics=metrics,
    tests=[_tests_table(metric) for metric in metrics],
    needed=[_needed(study, metric) for metric in metrics],
    equal=list(_equal(study)),
    pictures=_pictures(study, rows, metrics, folder),
    paired=list(numbers.paired(study, rows, folder)),
    learned=list(_learned(rows)),
    command=_command(study, folder),
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
  speeds = [
    test['lines'] / test['seconds']
    for result in results
    for test in result['tests'].values()
  ]
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


def _tests_table(metric: Metric) -> dict[str, Any]:
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
  header += ['p, pooled', 'p, Holm', 'p, Welch']
  return {'name': metric.name, 'header': header, 'lines': lines}


def _needed(study: Study, metric: Metric) -> str:
  return numbers.cannot_tell(metric, len(study.file.seeds))


def _equal(study: Study):
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
      pictures[metric.name] = forest(metric)
  done = [row for row in rows if row.result]
  for test in study.tests if done else ():
    name = f'{shown(test)}: means over the finished seeds'
    pictures[name] = _buckets(study, done, test, folder)
  return {name: _svg(figure) for name, figure in pictures.items()}


def _svg(figure: figures.Figure) -> str:
  text = figures.as_svg(figure).decode()
  return text[text.index('<svg') :]


def forest(metric: Metric) -> figures.Figure:
  """Draw each difference with its interval, the best on top."""
  size = (6.4, 1.2 + 0.3 * len(metric.differences))
  figure, (axes,) = figures.panels(1, 1, size)
  draw_differences(axes, metric)
  axes.set_xlabel(f'{metric.name}: difference (seeds), 95 % interval')
  return figure


def draw_differences(axes: figures.Axes, metric: Metric) -> None:
  """Draw the differences of a metric; those that are clear have a colour."""
  ordered = sorted(
    metric.differences.items(),
    key=lambda item: item[1].mean,
    reverse=metric.is_loss,
  )
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
  looks = figures.styles()
  colours: dict[str, Any] = {}
  for row in rows:
    name = row.run.contestant
    first = name not in colours
    look = colours.setdefault(name, None) or next(looks)
    colours[name] = look
    if row.result:
      steps, losses = zip(*row.result['curve'], strict=True)
      axes.plot(steps, losses, label=name if first else None, **look)
  axes.set_xlabel('update')
  axes.set_ylabel('validation loss, nats')
  if any(row.result for row in rows):
    axes.legend(fontsize='small', frameon=False)
  return figure


def _buckets(
  study: Study, done: Sequence[Row], test: str, folder: Folder
) -> figures.Figure:
  """Draw BLEU by source length and F1 by frequency, means over the seeds."""
  texts = _texts(study, done, test, folder)
  lengths = buckets.line_lengths(texts.source.lines, texts.languages[0])
  bounds = buckets.quantile_bounds(lengths, _BUCKETS)
  rows = buckets.bleu_by_length(
    lengths,
    buckets.buckets_between(bounds),
    buckets.counted(texts, names=['BLEU']),
  )
  frequencies = buckets.f1_of_texts(texts)['buckets']
  drawn = [
    buckets.by_length(rows, 'by source length, as many lines each'),
    buckets.by_frequency(frequencies),
  ]
  figure, axes = figures.panels(2, 1, (6.4, 3.4))
  buckets.draw(figure, axes, drawn)
  return figure


def _texts(
  study: Study, done: Sequence[Row], test: str, folder: Folder
) -> Texts:
  """Return a test set and the translations of every seed."""
  config = done[0].run.config
  pairs = open_corpus(test, config.data).read()
  source, reference = (
    TextFile(test, lines) for lines in zip(*pairs, strict=True)
  )
  systems: dict[str, tuple[TextFile, ...]] = {}
  for row in done:
    lines = tuple(folder.translations(row.run, test))
    seeds = systems.get(row.run.contestant, ())
    systems[row.run.contestant] = (*seeds, TextFile(test, lines))
  return Texts(
    source,
    (reference,),
    systems,
    (config.data.source_language, config.data.target_language),
    None,
    config.decoding.bleu_tokenizer,
  )


def _learned(rows: Sequence[Row]):
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


def _command(study: Study, folder: Folder) -> str:
  words = [
    'fusion-jax',
    'study',
    str(study.path),
    f'--workdir={folder.workdir}',
  ]
  return shlex.join(words)


@functools.cache
def _template() -> jinja2.Template:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([_HERE, _HERE.parent / 'analysis/report']),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  return environment.get_template('page.html')
