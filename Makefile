# Everything that a developer, a user or CI runs. `make demo` first installs what serving needs into
# .venv, everything else the developer's tools on top; a second run finds them installed.
#
#   make demo       a cluster on this machine answers a few prompts and shows where the time went
#   make test       all checks and tests          make check      the checks alone
#   make test-fast  the tests for each change
#   make format     let ruff rewrite the code     make proto      regenerate twolane/v1 from proto/
#   make bench      measure this machine          make soak       the long tests
#   make test-gpu   the tests that need a GPU     make mutants    break each guard, expect a red test
#   make soak-routers   routers are killed under streams, 200 times
#   make test-hosts the tests on several hosts, which are namespaces of this machine
#   make chart      render, lint and check the Helm chart, for six sets of values
#   make docs       the pages of docs/ that are made from the code, and all of it as a site in build/site
#   make test-docs  run every command of the documents that can run here
#   make release-check  build wheel and sdist into dist/, and look whether they can be released
#   make clean      remove what these made

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell \
    $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
PIP_FLAGS ?= --quiet --disable-pip-version-check
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
PACKAGES := twolane benchmarks

# Tests and the processes that they start use compiled modules again, whatever the shell has set.
unexport PYTHONDONTWRITEBYTECODE

# Tests for each change: some of each package, without kernels. Those in SLOW start processes,
# Redis or whole clusters, or play many random schedules: all of that is in `make test`.
FAST := tests/checks tests/docs tests/twolane tests/router tests/worker tests/prefill_worker \
    tests/decode_worker tests/kvtransfer tests/engine/cpu tests/engine/model_files \
    $(wildcard tests/engine/test_*.py) tests/deploy/spec tests/deploy/process tests/deploy/launch \
    tests/deploy/controller tests/deploy/simulator tests/deploy/ray_cluster \
    tests/cluster/test_hand_over.py tests/cluster/test_tickets.py tests/benchmarks/load
SLOW := tests/checks/test_import_purity.py tests/twolane/test_cli.py tests/twolane/test_local.py \
    $(wildcard tests/router/shared/test_re*.py) tests/router/shared/test_routers_with_a_store.py \
    tests/router/test_random_schedules.py tests/worker/test_chaos.py \
    tests/router/operators/test_status_cost.py tests/router/doors/http/test_again.py \
    tests/router/test_text_at_doors.py tests/router/text/test_codec.py \
    tests/engine/model_files/test_shard.py tests/deploy/process/test_serving.py \
    tests/deploy/simulator/test_plan_command.py \
    tests/kvtransfer/test_far_senders.py tests/kvtransfer/test_nixl.py \
    tests/kvtransfer/test_nixl_checks.py \
    tests/kvtransfer/test_processes.py tests/kvtransfer/test_property.py \
    tests/engine/cpu/test_sampler.py tests/engine/test_exact.py tests/engine/test_families.py \
    tests/deploy/process/test_descriptors.py tests/deploy/process/test_fork.py \
    tests/deploy/process/test_loading.py tests/deploy/controller/test_budget.py \
    tests/deploy/simulator/test_agreement.py tests/deploy/simulator/test_cluster.py \
    tests/benchmarks/load/test_client_processes.py tests/benchmarks/load/test_run.py

# The stub generator wants protobuf < 6, the rest of us 7: it lives in a venv of its own.
PROTO_VENV := build/protovenv
PROTO_INSTALLED := $(PROTO_VENV)/.installed
PROTO_FILES := $(sort $(wildcard proto/twolane/v1/*.proto))
SERVICE_FILES := $(shell grep -l '^service' $(PROTO_FILES))
PROTOC := $(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto
STUBS_IN = $(PROTOC) --python_out=$(1) --pyi_out=$(1) $(PROTO_FILES) && \
    $(PROTOC) --grpc_python_out=$(1) $(SERVICE_FILES)

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast check lint format docs test-docs release-check proto proto-drift bench test-gpu test-hosts soak soak-routers chart mutants clean

help:
	@sed -n '/^#   make/s/^#  //p' Makefile

install: $(INSTALLED)

$(SERVING): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "twolane needs Python 3.11 or newer" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	    { echo "could not make $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV) (the first time takes minutes) ..."
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e '.[serve]'
	@touch $@

$(INSTALLED): $(SERVING)
	@echo "installing the developer's tools into $(VENV) ..."
	$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

$(PROTO_INSTALLED):
	@test -x $(PROTO_VENV)/bin/python || $(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install $(PIP_FLAGS) grpcio-tools==1.71.2 'setuptools<81'
	@touch $@

demo: $(SERVING)
	$(BIN)/python -m twolane.deploy.demo

check: lint
	$(BIN)/pytest -q tests/checks tests/docs

# Without triton the tests of kernels would skip. tests/dealing.py deals the files out.
test: lint
	@command -v redis-server >/dev/null || \
	    { echo "there is no redis-server; on Debian and Ubuntu: apt install redis-server" >&2; exit 1; }
	$(BIN)/python -c 'import triton'
	$(BIN)/pytest -n 3 --dist loadfile  # on two cores: tests of clusters wait a third of their time

test-fast: $(INSTALLED)
	$(BIN)/pytest -q -n 2 --dist loadfile $(filter-out $(SLOW),$(FAST)) $(addprefix --ignore=,$(SLOW))

lint: $(INSTALLED) proto-drift
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	cd proto && ../$(BIN)/buf lint
	$(BIN)/mypy -n 2 $(PACKAGES) tests

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)
	$(BIN)/python -m tests.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test-docs: $(INSTALLED)
	$(BIN)/pytest -q -m 'soak or not soak' tests/docs/test_blocks_run.py

release-check: $(INSTALLED)
	$(BIN)/python -m tests.release

proto: $(PROTO_INSTALLED)
	$(call STUBS_IN,.)

proto-drift: $(PROTO_INSTALLED)
	@rm -rf build/stubs && mkdir -p build/stubs
	$(call STUBS_IN,build/stubs)
	@diff -r -x __init__.py -x __pycache__ build/stubs/twolane/v1 twolane/v1 || \
	    { echo "twolane/v1 is not what proto/ says: run make proto" >&2; exit 1; }

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# With the Python that is active, whose torch fits the card: nothing is installed here. With xdist,
# four files at a time.
test-gpu:
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) -m pytest $(shell $(PYTHON) -c 'import xdist; print("-n 8 --dist loadfile")' 2>/dev/null) \
	    -c tests/gpu/pytest.ini --rootdir . tests/gpu

# Needs Debian's nftables and iproute2, and root or user namespaces.
test-hosts: $(INSTALLED)
	$(BIN)/python -m tests.hosts

chart: $(INSTALLED)
	$(BIN)/pytest -q tests/deploy/chart

soak: $(INSTALLED)
	$(BIN)/pytest -m soak
	$(BIN)/pytest -m hypothesis --hypothesis-profile fresh
	$(BIN)/python -m tests.hosts -m soak

soak-routers: $(INSTALLED)
	$(BIN)/python -m benchmarks.cluster.router_kills --kills 200

mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants
	$(BIN)/python -m tests.mutants.trials

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
