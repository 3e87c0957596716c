"""Translate with a trained model: the same as `fusion-jax decode`."""

from fusion_jax.__main__ import command

if __name__ == '__main__':
  command('decode')
