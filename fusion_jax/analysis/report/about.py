"""Sections of a report on the model, the data and the environment."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from fusion_jax.analysis.report.html import (
  details,
  download,
  element,
  section,
  table,
)
from fusion_jax.analysis.report.run import RunReport
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.fusion import Side, SideConfig
from fusion_jax.config.serialization import flatten, to_json
from fusion_jax.fusion import SCHEMES

_ABSENT = '(not there)'


def overview(runs: Sequence[RunReport]) -> Element:
  """Show the runs with their schemes, sizes and scores."""
  rows = [
    ('encoder', [scheme(run.config, 'encoder') for run in runs]),
    ('decoder', [scheme(run.config, 'decoder') for run in runs]),
    ('direction', ['-'.join(run.languages) for run in runs]),
    ('parameters', [f'{sum(run.parameters.values()):,}' for run in runs]),
    ('BLEU', [f'{run.scores.bleu:.2f}' for run in runs]),
    ('chrF', [f'{run.scores.chrf:.2f}' for run in runs]),
    ('checkpoint', [_checkpoint(run) for run in runs]),
    ('trained', [_trained(run.last) for run in runs]),
    ('directory', [run.workdir for run in runs]),
  ]
  shown = _by_run('', rows, runs, 'the runs')
  return section('runs', 'What was trained', shown)


def options(runs: Sequence[RunReport]) -> Element:
  """Show the options that are not at their defaults, differing ones first."""
  default = flatten(ExperimentConfig())
  flat = [flatten(run.config) for run in runs]
  names = sorted(
    name
    for name in set().union(default, *flat) - {'name'}
    if any(each.get(name, _ABSENT) != default.get(name) for each in flat)
  )
  differing = [
    name
    for name in names
    if len({repr(each.get(name, _ABSENT)) for each in flat}) > 1
  ]
  parts = [element('p', 'Every option that is not at its default.')]
  if len(runs) > 1:
    rows = _option_rows(differing, flat, default)
    shown = _by_run('option', rows, runs, 'options that differ', ('default',))
    parts = [element('h3', 'Where the runs differ'), shown]
    parts.append(element('h3', 'Alike in all, and not at the default'))
  alike = [name for name in names if name not in differing]
  rows = [(name, cells[:-1]) for name, cells in _option_rows(alike, flat, {})]
  parts.append(_alike(rows, default))
  return section('options', 'Options', *parts)


def data(runs: Sequence[RunReport]) -> Element:
  """Show corpora, languages, pairs and tokenizers."""
  rows = [
    (split, [_corpora(run.config, split) for run in runs])
    for split in ('train', 'valid', 'test')
  ]
  rows += [
    ('training pairs', [_pairs(run.corpus) for run in runs]),
    ('tokenizer', [_tokenizer(run) for run in runs]),
    ('longest line', [_longest(run.config) for run in runs]),
  ]
  return section('data', 'Data', _by_run('', rows, runs, 'the data'))


def parameters(runs: Sequence[RunReport]) -> Element:
  """Show the number of parameters of each part."""
  names = sorted({name for run in runs for name in run.parameters})
  rows = [
    (name, [_share(run.parameters, name) for run in runs]) for name in names
  ]
  rows.append(('all', [f'{sum(r.parameters.values()):,}' for r in runs]))
  shown = _by_run('part', rows, runs, 'parameters of each part')
  return section('parameters', 'Parameters', shown)


def environment(
  runs: Sequence[RunReport], versions: Mapping[str, str]
) -> Element:
  """Show versions, and the whole config of every run."""
  shown = table(('', 'here'), list(versions.items()), 'versions')
  configs = (
    details(f'The config of {run.name}', element('pre', to_json(run.config)))
    for run in runs
  )
  return section(
    'environment',
    'Environment',
    element('p', 'Where this page was made and its text was translated.'),
    shown,
    *configs,
    element('p', download('versions.json', dict(versions))),
  )


def scheme(config: ExperimentConfig, side: Side) -> str:
  """Describe the fusion of a stack in words, with its paper."""
  own: SideConfig = config.model.side(side)
  found = SCHEMES.get(own.fusion)
  parts = [f'{own.fusion} ({found.source})'] if found else []
  if own.shortcut.source != 'none':
    words = own.shortcut.source.replace('_', '-')
    parts.append(f'{words} shortcuts into {own.shortcut.where} attention')
  if own.multi_layer.layers > 1:
    parts.append(f'attention over {own.multi_layer.layers} layers')
  layers = f'{config.model.layers(side)} layers'
  return f'{layers}, {" and ".join(parts) or "no fusion"}'


def _by_run(
  corner: str,
  rows: Sequence[tuple[str, Sequence[str]]],
  runs: Sequence[RunReport],
  label: str,
  more: Sequence[str] = (),
) -> Element:
  """Make a table with one column per run."""
  heads = (corner, *(run.name for run in runs), *more)
  return table(heads, [(name, *cells) for name, cells in rows], label)


def _option_rows(
  names: Sequence[str],
  flat: Sequence[Mapping[str, Any]],
  default: Mapping[str, Any],
) -> list[tuple[str, list[str]]]:
  """Return the value of each option in every run, and its default."""
  return [
    (
      name,
      [_value(each.get(name, _ABSENT)) for each in (*flat, default)],
    )
    for name in names
  ]


def _alike(
  rows: Sequence[tuple[str, Sequence[str]]], default: Mapping[str, Any]
) -> Element:
  cells = [
    (name, values[0], _value(default.get(name, _ABSENT)))
    for name, values in rows
  ]
  return table(('option', 'value', 'default'), cells, 'options')


def _value(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(str, value)) or '(none)'
  return str(value) if value != '' else '(empty)'


def _checkpoint(run: RunReport) -> str:
  steps = [f'{step:,}' for step in run.steps]
  if len(steps) > 1:
    return f'the mean of updates {", ".join(steps)}'
  return f'update {steps[0]}'


def _trained(last: Mapping[str, Any]) -> str:
  parts = [f'{last["step"]:,} updates']
  if last.get('epoch') is not None:
    parts.append(f'{last["epoch"]:.1f} epochs')
  if last.get('seconds') is not None:
    parts.append(f'{last["seconds"] / 60:,.1f} min')
  return ', '.join(parts)


def _corpora(config: ExperimentConfig, split: str) -> str:
  every = config.data.all_directions
  return '; '.join(
    f'{each.name}: {", ".join(getattr(each, split)) or "none"}'
    for each in every
  )


def _pairs(corpus: Mapping[str, int]) -> str:
  if not corpus:
    return 'not known: the run directory does not say it'
  return f'{corpus["pairs"]:,}, {corpus["kept"]:,} after filtering'


def _tokenizer(run: RunReport) -> str:
  own = run.config.data.tokenizer
  source, target = run.vocabularies
  if own.joint:
    return f'{own.algorithm}, {source:,} pieces for both sides'
  return f'{own.algorithm}, {source:,} and {target:,} pieces'


def _longest(config: ExperimentConfig) -> str:
  return f'{config.data.filter.max_length} subwords'


def _share(counts: Mapping[str, int], name: str) -> str:
  if name not in counts:
    return '-'
  return f'{counts[name]:,} ({counts[name] / sum(counts.values()):.1%})'
