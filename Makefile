# `make demo` and `make test` work from a fresh clone: Python 3.11, a C++ compiler, no GPU.
PYTHON ?= python3.11
BIN := .venv/bin
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -q --durations=25
PARALLEL = -n $(WORKERS) --dist worksteal
BY_FILE = -n $(WORKERS) --dist loadfile
E2E = $(shell find tests -name '*_e2e.py')
SITE = $(BIN)/zensical build --strict --clean
ifdef TORCH_INDEX
export TORCH_INDEX
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo watch-demo test test-full lint check docs package data format lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Both are instant when .venv already matches the locks.
setup:  ## .venv with whet and the CPU engine, from the hashed locks
	@$(PYTHON) scripts/setup_env.py run

setup-dev:  ## the same, and what the tests and checks need
	@$(PYTHON) scripts/setup_env.py dev

demo: setup  ## the whole story on the bundled model pair, on this machine's CPU
	$(BIN)/whet demo --resume

watch-demo: setup  ## deploy the demo, break it, and see the alarm (needs Prometheus and Alertmanager)
	$(BIN)/python scripts/watch_demo.py

# A real server takes half a minute to start, so files that start one run side by side; a test whose
# speed counts runs alone, on an otherwise idle machine.
test: setup-dev  ## the tests of a change, real vLLM included: 15 minutes on two cores
	$(PYTEST) $(PARALLEL) -m "not e2e and not full"
	$(PYTEST) $(BY_FILE) -m "not alone and not full" $(E2E)
	$(PYTEST) -m "alone and not full" $(E2E)

test-full: setup-dev  ## every test, the long ones too
	$(PYTEST) $(PARALLEL) -m "not e2e"
	$(PYTEST) $(BY_FILE) -m "not alone" $(E2E)
	$(PYTEST) -m alone $(E2E)

lint: setup-dev  ## format, lint, words, types and the links of docs/
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/check_words.py
	$(BIN)/mypy
	$(SITE)

check: lint  ## the same, layering and the fast tests
	$(PYTEST) $(PARALLEL) -m "not e2e and not full"

docs: setup-dev  ## docs/reference/ and docs/models.md from the code, and the site of docs/ in site/
	$(BIN)/python scripts/docs_reference.py
	$(BIN)/python scripts/docs_models.py
	$(SITE)

package: setup  ## dist/, and the wheel tried in an empty environment: about a minute
	scripts/package.sh

data: setup  ## generate the built-in text in src/whet/data again
	$(BIN)/python -m lab.inputs
	$(BIN)/python -m lab.chat_log

format: setup-dev  ## rewrite the code as the formatter and linter want it
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

lock:  ## resolve the locks again (needs uv; TORCH_LINKS= names a folder of torch wheels)
	$(PYTHON) scripts/lock.py $(if $(TORCH_LINKS),--torch-links $(TORCH_LINKS))

clean:  ## remove .venv, caches and build outputs; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache build dist site
	find src tests lab benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
