# On a fresh checkout `make demo` and `make test` need only Python 3.11 or newer: they build .venv first.
# Another interpreter: make test PYTHON=/path/to/python3

VENV := .venv
STAMP := $(VENV)/.stamp
EVERY := $(VENV)/.stamp-every
RUN := $(VENV)/bin/python -m

.PHONY: help demo flower-demo test test-slow lint bench stale clean

help:
	@echo "make demo       four ways to train MNIST, attacked and compared, in about a minute"
	@echo "make flower-demo  a Flower SuperLink and four SuperNodes on this machine, in about two minutes"
	@echo "make test       ruff, mypy and every test that is not slow"
	@echo "make test-slow  the slow tests: crashes, deployments, whole commands"
	@echo "make lint       ruff and mypy alone"
	@echo "make bench      the scripts in benchmarks/"
	@echo "make stale      which committed results are older than what they were made from, and how to make them again"
	@echo "make clean      remove caches and build products; keeps .venv and results"

demo: $(STAMP)
	$(VENV)/bin/equipoise demo

flower-demo: $(EVERY)
	$(VENV)/bin/equipoise flower demo

test: lint
	$(RUN) pytest -m "not slow" -q -n 2

test-slow: $(EVERY)
	$(RUN) pytest -m slow -q

lint: $(EVERY)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

bench: $(EVERY)
	@set -e; found=no; \
	for script in $$(grep -l '^if __name__ == "__main__":' benchmarks/*.py); do \
		found=yes; echo "== $$script"; \
		$(VENV)/bin/python "$$script"; \
	done; \
	[ $$found = yes ] || { echo "There is no script in benchmarks/." >&2; exit 1; }

stale: $(STAMP)
	$(VENV)/bin/python scripts/stale.py

# The stamp comes last, so an interrupted installation is taken up again. A .venv without a working pip is built anew.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(RUN) pip --version >/dev/null 2>&1; then \
		usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; chosen=; \
		for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3.14 python3 python); do \
			if "$$candidate" -c "$$usable" >/dev/null 2>&1; then chosen=$$candidate; break; fi; \
		done; \
		if [ -z "$$chosen" ]; then \
			echo "Expected $(or $(PYTHON),a python on PATH) to be Python 3.11 or newer with venv and ensurepip." >&2; \
			echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; \
			exit 1; \
		fi; \
		echo "Building $(VENV) with $$("$$chosen" --version)"; \
		"$$chosen" -m venv --clear $(VENV); \
	fi
	$(RUN) pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Flower, for the tests, the benchmarks and the deployment demo.
$(EVERY): $(STAMP)
	$(RUN) pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,flower]'
	@touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks src/*.egg-info
	find src tests benchmarks examples reproduction -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
