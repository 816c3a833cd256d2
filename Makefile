# The few commands a newcomer needs; everything else is `inv --list`.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin

.PHONY: install demo test benchmark clean

install: .venv/installed

# The stamp is written last, so an interrupted install is not mistaken for a finished one.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("python 3.11 or newer is needed, found " + sys.version.split()[0] + "; try: make install PYTHON=python3.11")'
	@echo "Installing PyTorch and the other packages into .venv: 1 to 2 minutes, 2 GB of disk (5 GB more if pip's torch brings CUDA; README: the CPU build)."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --constraint constraints.txt --editable '.[bench,dev]'
	@touch $@

# A worker per core, 4 at most: workers that share a core measure each other.
demo: export INVOKE_FLEET_SIZE ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores : 4)))
demo: install
	$(BIN)/inv model.demo bench --quick collect report

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses=2 --dist=loadfile # two at a time: most of what is slow waits; a file keeps its servers

benchmark: install
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf .venv .workers .buildvm build models data *.egg-info
