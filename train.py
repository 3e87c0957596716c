"""Train a translation model: the same as `fusion-jax train`."""

from fusion_jax.cli.train import main
from fusion_jax.startup import run_program

if __name__ == '__main__':
  run_program(main)
