# Two commands: `make quickstart` and `make test`. PYTHON names the interpreter;
# ACCELERATOR=cuda12, cuda13 or tpu installs what JAX needs for it.
PYTHON ?= python3
ACCELERATOR ?=
VENV := .venv/bin
INSTALLED := .venv/installed$(ACCELERATOR:%=-%)
RUN := runs/quickstart
QUICKSTART := --config=configs/quickstart.py --workdir=$(RUN) \
  --config.model.encoder.fusion=linear --config.model.decoder.fusion=linear
PYTEST := $(VENV)/python -m pytest -n auto --maxprocesses=4 --dist worksteal

# Other product kernels: without YNNPACK; without AVX; one thread.
KERNELS := --xla_cpu_experimental_ynn_fusion_type= \
  --xla_cpu_max_isa=SSE4_2 \
  --xla_cpu_multi_thread_eigen=false
NUMERICAL := tests/layers tests/models tests/fusion tests/search \
  tests/decoding tests/parallel tests/training tests/tools

.PHONY: quickstart test test-all test-kernels lint docs bench

$(INSTALLED): requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(VENV)/pip install --quiet --editable '.[plots$(ACCELERATOR:%=,%)]'
	touch $@

.venv/installed-dev: $(INSTALLED) requirements-dev.txt requirements-docs.txt
	$(VENV)/pip install --quiet -r requirements-dev.txt
	touch $@

quickstart: $(INSTALLED)
	$(VENV)/python train.py $(QUICKSTART)
	$(VENV)/python -m fusion_jax.tools.quickstart --workdir=$(RUN)

test: .venv/installed-dev
	$(PYTEST)

# The short run, then all that it leaves out: processes, kills, exports, options.
test-all: test
	$(PYTEST) -m 'extended and not slow'

test-kernels: .venv/installed-dev
	XLA_FLAGS='$(KERNELS)' ONEDNN_MAX_CPU_ISA=SSE41 \
	  $(VENV)/python -m pytest -n auto --maxprocesses=4 $(NUMERICAL)

lint: .venv/installed-dev
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	PYTHONPATH=. $(VENV)/lint-imports
	$(VENV)/mypy

.venv/installed-docs: $(INSTALLED) requirements-docs.txt
	$(VENV)/pip install --quiet -r requirements-docs.txt
	touch $@

# The guide as a site: site/index.html opens in a browser without a server.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/python -m mkdocs build --strict

bench: $(INSTALLED)
	$(VENV)/python -m benchmarks.train_throughput --size=small
