"""Eight CPU devices for all tests; most of them use one."""

import gc
import importlib.metadata
import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
import pytest
from hypothesis import HealthCheck, settings

# Small models take longer to compile than to run: compile them quickly, also in
# the programs that tests start. Flags of the caller come last and win.
_FLAGS = (
  '--xla_backend_optimization_level=0',
  '--xla_llvm_disable_expensive_passes=true',
  # XLA ends the process on a flag that it does not know any more.
  '--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
  if importlib.metadata.version('jaxlib') < '0.11'
  else '',
  os.environ.get('XLA_FLAGS', ''),
)

# The same examples in every run, and no clock.
settings.register_profile(
  'tests',
  deadline=None,
  derandomize=True,
  suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile('tests')
jax.config.update('jax_num_cpu_devices', 8)
os.environ['XLA_FLAGS'] = ' '.join(_FLAGS)


def pytest_configure(config):
  """Keeps what is compiled for the next file, worker or run."""
  if not config.pluginmanager.hasplugin('cacheprovider'):
    return
  kept = {
    'jax_compilation_cache_dir': str(config.cache.mkdir('xla')),
    'jax_persistent_cache_min_compile_time_secs': 0,
  }
  for name, value in kept.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


def pytest_collection_finish():
  """Leaves what was imported out of every collection of garbage."""
  gc.collect()
  gc.freeze()
  # Tracing makes many small objects and few cycles.
  gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope='module', autouse=True)
def _bounded_memory():
  """Forgets what a file compiled: thousands of programs take gigabytes."""
  yield
  jax.clear_caches()
