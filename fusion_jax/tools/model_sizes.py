"""Print the parameter table of a config's model.

    fusion-jax sizes --config=NAME[:VARIANT]

The vocabularies have the size that `data.tokenizer` requests.
"""

import math
from collections.abc import Iterator

import jax
from flax import linen as nn

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import command_parser, parse_experiment
from fusion_jax.models.transformer import Transformer, boxed_parameters
from fusion_jax.startup import one_line_errors, run_program

_START = 2


def parameter_rows(
  config: ExperimentConfig,
) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
  """Yield name, shape and logical axes of every parameter; allocate nothing."""
  size = config.data.tokenizer.vocabulary_size
  model = Transformer(config.model, size, size, _START)
  boxes = jax.eval_shape(lambda: boxed_parameters(model, 0))
  leaves = jax.tree_util.tree_leaves_with_path(
    boxes, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
  )
  for path, box in leaves:
    name = '/'.join(part.key for part in path)
    yield name, box.value.shape, box.names


@one_line_errors
def main(argv: list[str]) -> None:
  config, _ = parse_experiment(argv, command_parser(__doc__, 'sizes'))
  total = 0
  for name, shape, axes in parameter_rows(config):
    size = math.prod(shape)
    total += size
    sides = map('{} {}'.format, axes, shape)
    print(f'{size:>14,}  {name:<56}  {" x ".join(sides)}')
  print(f'{total:>14,}  all')


if __name__ == '__main__':
  run_program(main)
