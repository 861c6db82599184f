# One verb each, the same here and in CI. `make verify` is all that CI checks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install run test search lint fmt bench docs e2e verify lock stubs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv from the lock file, with uv if it is there, else with pip

$(STAMP): requirements.lock pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock && \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . ; \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock && \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . ; \
	fi
	@touch $@

run: install ## the main job: replay the trace (a synthetic one where the real one is absent) with every policy
	$(BIN)/cardwise replay

test: install ## all tests but e2e
	$(BIN)/python -m pytest --ignore tests/e2e --ignore tests/charts

search: install ## the property tests with cases never tried before, ROUNDS times (5)
	@for round in $$(seq $(or $(ROUNDS),5)); do \
	  $(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile search --ignore tests/e2e --ignore tests/charts || exit 1; \
	done

lint: install ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: install ## rewrite to the project's style
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: install ## performance, as ratios in one run; prints tables, asserts nothing
	$(BIN)/python -m benchmarks

docs: install ## build the documentation into docs/_build
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build

# The files that take longest go first, so that none is left for the end when one of the workers has nothing more to do.
LONG := $(patsubst %,tests/e2e/test_%.py,docs_cluster_commands scheduler rescue compare docs_commands preemption \
  agent_process cpu_trap service_policy quota)

e2e: install ## the docs' commands as typed; the scheduler on a control plane built once with Go, or on KUBECONFIG's
	$(BIN)/python -m tests.controlplane.binaries
	$(BIN)/python -m pytest -n $(if $(KUBECONFIG),0,2) --dist loadfile --no-loadscope-reorder $(LONG) tests/e2e tests/charts

verify: lint test e2e docs ## all that CI checks

lock: ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --all-extras \
	  --group dev --group docs --output-file requirements.lock pyproject.toml

stubs: install ## generate the kubelet's gRPC stubs anew from their .proto files
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. \
	  cardwise/adapters/kubelet/proto/*.proto

clean: ## remove what can be made again
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis out
