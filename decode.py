"""Translate with a trained model: the same as `fusion-jax decode`."""

from fusion_jax.cli.decode import main
from fusion_jax.startup import run_program

if __name__ == '__main__':
  run_program(main)
