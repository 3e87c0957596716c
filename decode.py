"""Translate with a trained model: the same as `fusion-jax decode`."""

from fusion_jax.command import command

if __name__ == '__main__':
  command('decode')
