"""Train a translation model: the same as `fusion-jax train`."""

from fusion_jax.__main__ import command

if __name__ == '__main__':
  command('train')
