"""Package the configs of the repository as `fusion_jax.configs`."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=['fusion_jax*']), 'fusion_jax.configs'])
