"""Eight CPU devices for all tests; most of them use one."""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax

jax.config.update('jax_num_cpu_devices', 8)
