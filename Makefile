# Everything here works from a clean clone. PYTHON: 3.11, 3.12 or 3.13.
PYTHON ?= python3
# The router runs a fifth faster on an interpreter that has no shared libpython: the distribution's, where it
# can build extensions, rather than pyenv's.
COMPILED_PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, os, sys, sysconfig; \
	sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
	2>/dev/null && echo /usr/bin/python3 || echo $(PYTHON))
TOOLKIT = .venv/bin/toolkit
FAST = not slurm and not engine and not slow and not aws and not browser
# Beside the vLLM of ami-setup/versions.yaml, the newest one that the connector is tested with.
NEWEST_VLLM = 0.32.0
NEWEST_TESTS = edits forged leases malformed proof readback restart streams versions
CONNECTOR_TEST_TOOLS = pytest pytest-timeout hypothesis
# Its figures are of interpreted objects.
INTERPRETED_ONLY = --deselect tests/router/memory/test_memory.py::test_bytes_are_what_is_allocated
PIP_QUIETLY = -m pip install --quiet --disable-pip-version-check

.PHONY: help install compiled engine engine-newest demo demo-aws test test-fast bench-router lint golden clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | column -t -s "$$(printf '\t')"

install: .venv/installed  ## .venv with the command toolkit in it

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

compiled: .venv-compiled/installed  ## .venv-compiled: the same, its router compiled; needs a C compiler

.venv-compiled/installed: pyproject.toml hatch_build.py $(shell find toolkit -name '*.py')
	test -x .venv-compiled/bin/pip || $(COMPILED_PYTHON) -m venv .venv-compiled
	HATCH_BUILD_HOOKS_ENABLE=1 .venv-compiled/bin/pip install --quiet --disable-pip-version-check '.[dev]'
	@touch $@

engine: install  ## .venv-engine: vLLM for CPU, NIXL and our connector
	.venv/bin/python -m toolkit.embedded.engine_env .venv-engine

engine-newest: install  ## .venv-engine-newest: the same with the newest vLLM that the connector is tested with
	.venv/bin/python -m toolkit.embedded.engine_env .venv-engine-newest --vllm $(NEWEST_VLLM)

demo: install  ## the whole path on this machine, from nothing to a verdict
	$(TOOLKIT) demo

demo-aws: install  ## provisioning from image to clean-up, against a simulated AWS
	.venv/bin/python -m toolkit.testing.aws.demo

test: compiled engine engine-newest  ## every test, with a real Slurm, real engines, the real pcluster
	.venv/bin/python -m pytest -n auto --dist loadfile -m "not slurm and not engine"
	.venv-compiled/bin/pytest --compiled -n auto --dist loadfile -m "not slow and not engine" tests/router $(INTERPRETED_ONLY)
	.venv/bin/python -m pytest -m "slurm or engine"
	.venv-engine-newest/bin/python $(PIP_QUIETLY) $(CONNECTOR_TEST_TOOLS)
	.venv-engine-newest/bin/python -m pytest $(NEWEST_TESTS:%=connector/tests/test_%.py)
	.venv-engine/bin/python $(PIP_QUIETLY) $(CONNECTOR_TEST_TOOLS)
	.venv-engine/bin/python -m pytest connector/tests

test-fast: install  ## the tests that need no Slurm, engine, browser or AWS stand-in, some minutes
	.venv/bin/python -m pytest -n auto --dist loadfile -m "$(FAST)"

bench-router: install compiled  ## our router against vllm-router; BENCH=--quick: under 2 minutes (docs/benchmarks.md)
	.venv/bin/python -m bench.router $(BENCH)

lint: install  ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

golden: install  ## write the golden files anew; look at the difference before you commit it
	.venv/bin/python -m pytest tests --golden -m "$(FAST)"

clean:  ## remove environments, the embedded cluster's folder and caches; keeps runs
	-$(TOOLKIT) cluster delete -f deployments/embedded.yaml --yes --purge
	rm -rf .venv .venv-compiled .venv-engine .venv-engine-newest .venv-bench .venv-clients .toolkit .pytest_cache .mypy_cache .ruff_cache
