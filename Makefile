# Everything runs in virtual environments that are made here, under .venv/ and .demo/.
# tools/check.py and examples/demo hold what the targets do; this file only names it.

PYTHON ?= python3
ARCH ?= $(shell uname -m)
HOSTS ?= 3.6.0 3.7.0 3.7.1 3.8.0 3.9.0
MINUTES ?= 10
SEED ?=
SHUFFLED = $(if $(SEED),--shuffle $(SEED))

.PHONY: help quick test test-hosts test-utlx nightly fuzz lint docs c-test demo wheel try-wheel clean

help:
	@echo "make quick       lint, and tests of the compiler's side and of each kernel, in a minute"
	@echo "make test        all checks over the installed package, with Triton 3.9.0"
	@echo "make test-hosts  pytest and lit with each Triton of HOSTS ($(HOSTS))"
	@echo "make test-utlx   the tests beside triton-utlx, a C++ extension of Triton 3.8"
	@echo "make nightly     the slow tests, with more and larger cases than make test has; all of 3.7.0"
	@echo "make fuzz        mutated modules, command lines, tables, descriptors, C calls (MINUTES=$(MINUTES))"
	@echo "make lint        ruff, mypy and the checks of regular expressions and prose only"
	@echo "make docs        the documentation as a site: build/site/index.html"
	@echo "make c-test      the C tests only (needs a C compiler, nothing else)"
	@echo "make demo        filter a photograph, compare, compile for sm_90 and sm_100"
	@echo "make wheel       dist/: wheel and sdist, built twice and compared (ARCH=$(ARCH))"
	@echo "make try-wheel   that wheel beside each Triton of HOSTS, selftest, uninstall; ARCH=aarch64 in qemu"
	@echo "make clean       remove all that the targets made"
	@echo "SEED=...         quick, test: run the tests in the order that a seed draws"
	@echo "PYTHON=...       the Python to make the environments with ($(PYTHON))"

quick:
	@$(PYTHON) tools/check.py --quick $(SHUFFLED)

test:
	@$(PYTHON) tools/check.py $(SHUFFLED)

test-hosts:
	@$(PYTHON) tools/check.py --every-host-only $(addprefix --host ,$(HOSTS))

test-utlx:
	@$(PYTHON) tools/check.py --host 3.8.0 --beside 'triton-utlx~=3.8.0' --only pytest-beside

# test-hosts runs a part of the tests with 3.7.0, which differs little from 3.7.1.
nightly:
	@status=0; $(PYTHON) tools/check.py --nightly || status=1; \
	$(PYTHON) tools/check.py --every-host-only --all --host 3.7.0 || status=1; exit $$status

fuzz:
	@$(PYTHON) tools/check.py --only fuzz --minutes $(MINUTES)

lint:
	@$(PYTHON) tools/check.py --only ruff-check --only ruff-format --only mypy --only mypy-tools \
		--only regexes --only prose

docs:
	@$(PYTHON) tools/check.py --only docs

c-test:
	@$(MAKE) --no-print-directory -C unittest/nvidia/c test

demo:
	@$(PYTHON) tools/run_demo.py

wheel:
	@$(PYTHON) tools/build_wheel.py --arch $(ARCH)

try-wheel:
	@$(PYTHON) tools/try_wheel.py --arch $(ARCH) $(addprefix --host ,$(HOSTS))

clean:
	rm -rf .venv .demo build dist python/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -f unittest/nvidia/c/Makefile ]; then $(MAKE) --no-print-directory -C unittest/nvidia/c clean; fi
