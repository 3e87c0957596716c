"""How far a stack still tells the tokens of a sentence apart.

    python -m benchmarks.token_share [--layers=6]
    python -m benchmarks.token_share --source=FILE --target=FILE RUN ...

The token share of states h[1..T] is 1 - |mean h|^2 / mean |h|^2: 1 where the
positions of a sentence have nothing in common, 0 where all have one state, from
which a decoder cannot learn what the source says (rank collapse, Dong et al.
2021). Without run directories it is that of the last layers on random tokens,
as the parameters are drawn, with models of the width of the comparison of the
schemes; with them, that of all layers of the runs on the first 200 lines of a
text. Prints a table.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import fusion_jax
from benchmarks.common import make_parser, markdown
from fusion_jax.config import ModelConfig
from fusion_jax.config.presets import Row
from fusion_jax.evaluation.systems import read_file
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.startup import one_line_errors

_VOCABULARY, _SENTENCES, _LENGTH = 4_000, 16, 24
_LINES = 200
_MODELS: tuple[Row, ...] = (
  {'norm': 'post'},
  {'norm': 'post', 'initialization': 'mlrf'},
  {'norm': 'post', 'residual': 'b2t'},
  {'norm': 'post', 'residual': 'deepnorm'},
  {'norm': 'pre'},
  {'norm': 'pre', 'initialization': 'mlrf'},
)


def token_share(
  sentences: Iterable[Float[Array | np.ndarray, '*L _ D']],
) -> Float[np.ndarray, '*L']:
  """Return the share of all sentences together, each position counting once."""
  common, total = 0.0, 0.0
  for states in (np.asarray(each, np.float64) for each in sentences):
    common += states.shape[-2] * np.square(states.mean(-2)).sum(-1)
    total += np.square(states).sum((-2, -1))
  return 1 - common / total


def shares(config: ModelConfig, seed: int = 0) -> tuple[float, float]:
  """Return the shares of the last layer of the encoder and the decoder."""
  model = Transformer(config, _VOCABULARY, _VOCABULARY, start_id=2)
  size = _SENTENCES, _LENGTH
  source, target = (
    jax.random.randint(key, size, 4, _VOCABULARY)
    for key in jax.random.split(jax.random.key(seed))
  )
  lengths = jnp.full(_SENTENCES, _LENGTH)
  parameters = {'params': initial_parameters(model, seed)}
  output = jax.jit(model.apply)(parameters, source, lengths, target)
  last = output.encoder_layers[-1], output.decoder_layers[-1]
  return float(token_share(last[0])), float(token_share(last[1]))


def shares_of_run(
  workdir: str, sources: Sequence[str], targets: Sequence[str]
) -> tuple[Float[np.ndarray, ' L'], Float[np.ndarray, ' L']]:
  """Return the shares of H[0..L] of both stacks of a trained run."""
  model = fusion_jax.load(workdir, step='last')
  states = model.encode(sources, targets)
  return (
    token_share(own.encoder for own in states),
    token_share(own.decoder for own in states),
  )


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--layers', type=int, default=6, help='of each untrained stack')
  add('--source', type=Path, help='text for the runs')
  add('--target', type=Path, help='its translation')
  add('runs', nargs='*', metavar='RUN', help='run directories')
  arguments = parser.parse_args(argv)
  if arguments.runs:
    if not (arguments.source and arguments.target):
      parser.error('run directories need --source and --target')
    texts = (
      read_file(str(path)).lines[:_LINES]
      for path in (arguments.source, arguments.target)
    )
    print(_trained(arguments.runs, *texts))
  else:
    print(_untrained(arguments.layers))


def _trained(
  runs: Sequence[str], sources: Sequence[str], targets: Sequence[str]
) -> str:
  rows = []
  for run in runs:
    found = shares_of_run(run, sources, targets)
    for side, own in zip(('encoder', 'decoder'), found, strict=True):
      rows.append([f'`{run}`', side, ', '.join(f'{each:.2f}' for each in own)])
  return markdown(['run', 'stack', 'H[0..L]'], rows)


def _untrained(layers: int) -> str:
  rows = []
  for own in _MODELS:
    depth = {'encoder_layers': layers, 'decoder_layers': layers}
    sizes = {'width': 128, 'filter': 512, 'heads': 4}
    encoder, decoder = shares(ModelConfig(**depth, **sizes, **own))
    name = ', '.join(f'`{field}={value}`' for field, value in own.items())
    rows.append([name, f'{encoder:.2f}', f'{decoder:.2f}'])
  return markdown(['model', 'encoder', 'decoder'], rows)


if __name__ == '__main__':
  main(sys.argv[1:])
