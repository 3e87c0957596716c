"""How far an untrained stack still tells the tokens of a sentence apart.

    python -m benchmarks.token_share [--layers=6]

The token share of states h[1..T] is 1 - |mean h|^2 / mean |h|^2: 1 where the
positions of a sentence have nothing in common, 0 where all have one state, from
which a decoder cannot learn what the source says (rank collapse, Dong et al.
2021). Measured on random tokens, as the parameters are drawn, with models of
the width of the comparison of the schemes. Prints a table.
"""

import sys

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from benchmarks.common import make_parser, markdown
from fusion_jax.config import ModelConfig
from fusion_jax.config.presets import Row
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.startup import one_line_errors

_VOCABULARY, _SENTENCES, _LENGTH = 4_000, 16, 24
_MODELS: tuple[Row, ...] = (
  {'norm': 'post'},
  {'norm': 'post', 'initialization': 'mlrf'},
  {'norm': 'post', 'residual': 'b2t'},
  {'norm': 'post', 'residual': 'deepnorm'},
  {'norm': 'pre'},
  {'norm': 'pre', 'initialization': 'mlrf'},
)


def token_share(states: Float[Array, 'B T D']) -> float:
  """Return the share of all sentences together."""
  common = jnp.square(states.mean(axis=1)).sum(axis=-1).mean()
  return float(1 - common / jnp.square(states).sum(axis=-1).mean())


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
  return token_share(last[0]), token_share(last[1])


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__)
  parser.add_argument('--layers', type=int, default=6, help='of each stack')
  layers = parser.parse_args(argv).layers
  rows = []
  for own in _MODELS:
    depth = {'encoder_layers': layers, 'decoder_layers': layers}
    sizes = {'width': 128, 'filter': 512, 'heads': 4}
    encoder, decoder = shares(ModelConfig(**depth, **sizes, **own))
    name = ', '.join(f'`{field}={value}`' for field, value in own.items())
    rows.append([name, f'{encoder:.2f}', f'{decoder:.2f}'])
  print(markdown(['model', 'encoder', 'decoder'], rows))


if __name__ == '__main__':
  main(sys.argv[1:])
