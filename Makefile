# Two commands: `make quickstart` and `make test`. PYTHON names the interpreter.
PYTHON ?= python3
VENV := .venv/bin
RUN := runs/quickstart
QUICKSTART := --config=configs/quickstart.py --workdir=$(RUN)

.PHONY: quickstart test lint bench

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	$(VENV)/pip install --quiet -r requirements.txt
	touch $@

.venv/installed-dev: .venv/installed requirements-dev.txt
	$(VENV)/pip install --quiet -r requirements-dev.txt
	touch $@

quickstart: .venv/installed
	$(VENV)/python train.py $(QUICKSTART)
	$(VENV)/python -m fusion_jax.quickstart --workdir=$(RUN)

test: .venv/installed-dev
	$(VENV)/python -m pytest -n auto --maxprocesses=4 --dist worksteal

lint: .venv/installed-dev
	$(VENV)/ruff check
	$(VENV)/ruff format --check

bench: .venv/installed
	$(VENV)/python -m benchmarks.train_throughput --size=small
