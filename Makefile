# `make demo` and `make test` work from a fresh clone: Python 3.11 to 3.13 or uv, a C++ compiler, no GPU.
# scripts/python.sh chooses the Python; PYTHON=… names one.
SETUP = @python=$$(scripts/python.sh) && exec "$$python" scripts/setup_env.py
BIN := .venv/bin
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -q --durations=25
PARALLEL = -n $(WORKERS) --dist worksteal
BY_FILE = -n $(WORKERS) --dist loadfile
E2E = $(shell find tests -name '*_e2e.py')
SITE = zensical build --strict --clean
ifdef TORCH_INDEX
export TORCH_INDEX
endif

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo watch-demo prometheus test test-fast test-full lint check docs reference package \
	data format lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Both are instant when .venv already matches the locks.
setup:  ## .venv with whet and the CPU engine, from the hashed locks
	$(SETUP) run

setup-dev:  ## the same, and what the tests and checks need
	$(SETUP) dev

demo: setup  ## a whole run on this machine's CPU, with the bundled model: 5 to 9 minutes
	$(BIN)/whet demo --resume

watch-demo: prometheus setup  ## deploy the demo, break it, and see the alarm; needs Prometheus and Alertmanager
	$(BIN)/python scripts/watch_demo.py

prometheus:
	@for program in prometheus prometheus-alertmanager; do command -v $$program >/dev/null || { \
	    echo "watch-demo: Prometheus and Alertmanager are needed:" \
	        "apt-get install prometheus prometheus-alertmanager" >&2; exit 1; }; done

# A real server takes half a minute to start, so files that start one run side by side; a test whose
# speed counts runs alone, on an otherwise idle machine.
test: test-fast  ## the tests of a change, real vLLM included: 15 minutes on two cores
	$(PYTEST) $(BY_FILE) -m "not alone and not full" $(E2E)
	$(PYTEST) -m "alone and not full" $(E2E)

test-fast: setup-dev  ## those that start no server
	$(PYTEST) $(PARALLEL) -m "not e2e and not full"

test-full: setup-dev  ## every test, the long ones too
	$(PYTEST) $(PARALLEL) -m "not e2e"
	$(PYTEST) $(BY_FILE) -m "not alone" $(E2E)
	$(PYTEST) -m alone $(E2E)

lint: setup-dev  ## format, lint, words, types and the links of docs/
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python scripts/check_words.py
	$(BIN)/mypy
	$(BIN)/$(SITE)

check: lint test-fast  ## lint, layering and the fast tests

docs:  ## the site of docs/ in site/, without whet, torch or vLLM: under 30 seconds
	$(SETUP) docs
	.venv-docs/bin/$(SITE)

reference: setup-dev  ## docs/reference/ and docs/models.md again, from the code
	$(BIN)/python scripts/docs_reference.py
	$(BIN)/python scripts/docs_models.py

package: setup  ## dist/, and the wheel tried in an empty environment: about a minute
	scripts/package.sh

data: setup  ## generate the built-in text in src/whet/data again
	$(BIN)/python -m lab.inputs
	$(BIN)/python -m lab.chat_log

format: setup-dev  ## rewrite the code as the formatter and linter want it
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

lock:  ## resolve the locks again (needs uv; TORCH_LINKS= names a folder of torch wheels)
	@python=$$(scripts/python.sh) && exec "$$python" scripts/lock.py $(if $(TORCH_LINKS),--torch-links $(TORCH_LINKS))

clean:  ## remove .venv, caches and build outputs; runs/ stays
	rm -rf .venv .venv-docs .venv-canary .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache build dist site
	find src tests lab benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
