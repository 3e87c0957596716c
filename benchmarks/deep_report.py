"""The table and the figure of benchmarks/deep_stacks.py."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common import table
from benchmarks.deep_recipes import SCHEMES, layers_of
from benchmarks.deep_verdict import RULE, verdict
from fusion_jax import figures

_HEADER = (
  *('', 'train NLL', 'valid NLL', 'source', 'gradient', 'layer 1', 'layer L'),
  *('last 1', 'last L', 'skipped', ''),
)
_Run = Mapping[str, Any]


def report(results: _Run) -> str:
  """The table and what its columns and verdicts are."""
  settings, unigram = results['settings'], results['unigram']
  free = f'{unigram["train"]:.3f}', f'{unigram["valid"]:.3f}'
  rows = [('unigram', *free, *[''] * 8)]
  rows += [
    (name, *_cells(run, unigram['valid']))
    for name, run in sorted(results['rounds'].items(), key=_place)
  ]
  return '\n'.join([_caption(settings), table(_HEADER, rows), RULE])


def draw(results: _Run) -> Figure:
  """The training NLL over the updates, a panel a depth.

  Post-norm schemes are solid lines, the others dashed.
  """
  rounds = results['rounds']
  depths = sorted({name.partition('/')[0] for name in rounds}, key=layers_of)
  figure, axes = figures.panels(len(depths), columns=3)
  for panel, stacks in zip(axes, depths, strict=True):
    _draw_depth(panel, stacks, results)
  axes = sorted(axes, key=lambda panel: -len(panel.lines))
  figures.share_legend(figure, axes)
  return figure


def _draw_depth(panel: Axes, stacks: str, results: _Run) -> None:
  for scheme, look in zip(SCHEMES, figures.styles(), strict=False):
    run = results['rounds'].get(f'{stacks}/{scheme}')
    if run is not None:
      dash = '--' if 'model.norm' in run['changes'] else '-'
      values = list(map(figures.drawn, run['train']))
      panel.plot(run['steps'], values, dash, label=scheme, **look)
  free = results['unigram']['train']
  panel.axhline(free, color='grey', linestyle=':', label='unigram')
  panel.set_title(f'{stacks} layers')
  panel.set_xlabel('update')
  panel.set_ylabel('training NLL (nats per target token)')


def _caption(settings: Mapping[str, Any]) -> str:
  """The recipe, and what the columns are."""
  every = settings['training.log_every']
  return (
    f'{settings["training.steps"]:,} updates of '
    f'{settings["data.batch.tokens"]:,} slots, width '
    f'{settings["model.width"]}, rate {settings["optimizer.peak"]:g} after '
    f'{settings["optimizer.warmup_steps"]:,} updates; NLL: nats a target '
    f'token, of the training text over the last {every} updates; source: what '
    'the sources of other sentences add to the NLL of validation; gradient: '
    'norm of the whole and of the first and last encoder layer, mean of the '
    f'first {every} updates; last 1 and last L: of these layers in the last '
    f'{every}'
  )


def _cells(run: _Run, unigram: float) -> tuple[str, ...]:
  valid, other = run['valid'], run['other_source']
  source = None if None in (valid, other) else other - valid
  losses = run['train'][-1] if run['train'] else None, valid, source
  # Of the lowest and of the highest layer.
  ends = (_ends(run['first_norms']), _ends(run['last_norms']))
  norms = run['gradient_norm'], *ends[0], *ends[1]
  return (
    *(_number(value, '.3f') for value in losses),
    *(_number(value, '.2g') for value in norms),
    str(run['skipped']),
    verdict(run, unigram),
  )


def _ends(norms: Sequence[float | None]) -> tuple[float | None, float | None]:
  return (norms[0], norms[-1]) if norms else (None, None)


def _number(value: float | None, form: str) -> str:
  return 'nan' if value is None else format(value, form)


def _place(item: tuple[str, Any]) -> tuple[tuple[int, int], int]:
  """Sorts by depth, then as the schemes are listed."""
  stacks, _, scheme = item[0].partition('/')
  return layers_of(stacks), list(SCHEMES).index(scheme)
