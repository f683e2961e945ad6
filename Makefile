# `make` sets up .venv, `make demo` runs the library on example data, `make test` checks it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN_STAMP := $(VENV)/.installed-to-run
PIP_FLAGS := -qq --disable-pip-version-check
EXTRAS := federation,frames,onnx,plot,ray,report
# The pip that comes with an older Python does not know --group.
PIP_WITH_GROUPS := "pip>=25.1"
# Three processes on two cores: many tests wait for the processes of a cluster or a federation.
PYTEST_FLAGS := -q -n 3 --dist loadscope --no-loadscope-reorder
# The markers are described in pyproject.toml; tests/support/started.py checks that they are true.
FAST := not (slow or faults or ray or federation or browser or subprocess)

.DEFAULT_GOAL := setup
.DELETE_ON_ERROR:
.PHONY: setup demo federation-demo browser warm test test-fast test-faults test-durations test-busy test-portable \
  test-minimum soak soak-federation docs dist lint format lock clean help

setup: $(STAMP)  ## create .venv with everything for work on the library (default; instant the second time)

# Debian splits venv, the compiler and the headers off python3. As root we fetch what is missing; without
# venv nothing can go on, while compiler and headers matter only if a package has no ready-made wheel.
define CHECK_MACHINE
command -v $(PYTHON) >/dev/null \
  || { echo "dmtrl needs Python 3.11 or newer, and '$(PYTHON)' was not found: install it or run 'make PYTHON=/path/to/python3'." >&2; exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "dmtrl needs Python 3.11 or newer, and '$(PYTHON)' is older: run 'make PYTHON=/path/to/newer/python3'." >&2; exit 1; }; \
missing=""; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
command -v gcc >/dev/null || command -v cc >/dev/null || missing="$$missing gcc"; \
$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
  || missing="$$missing python3-dev"; \
if [ -n "$$missing" ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
  echo "Installing system packages:$$missing"; \
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing; } >/dev/null \
    || echo "apt-get could not install:$$missing; going on without." >&2; \
elif [ -n "$$missing" ]; then \
  echo "These system packages are missing:$$missing (on Debian or Ubuntu: sudo apt-get install$$missing)." >&2; \
fi; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
  || { echo "'$(PYTHON)' cannot create virtual environments: install its venv module (python3-venv), then run make again." >&2; exit 1; }
endef

define MAKE_VENV
$(CHECK_MACHINE); \
if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
  echo "Creating $(VENV) ..."; rm -rf $(VENV); $(PYTHON) -m venv $(VENV); \
fi
endef

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@$(MAKE_VENV)
	@echo "Installing dmtrl and its tools into $(VENV) (a minute or two the first time) ..."
	@$(BIN)/python -m pip install $(PIP_FLAGS) $(PIP_WITH_GROUPS)
	@$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[$(EXTRAS)]" -e lab --group dev -c constraints.txt
	@touch $(RUN_STAMP) $@
	@echo "Ready. Next: 'make demo' or 'make test'; 'source $(BIN)/activate' puts dmtrl on your path."

# What people need who use the library; the tools for work on it are left for `make setup`.
$(RUN_STAMP): pyproject.toml constraints.txt
	@$(MAKE_VENV)
	@echo "Installing dmtrl into $(VENV) ..."
	@$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[frames,report]" -c constraints.txt
	@touch $@

demo: $(RUN_STAMP)  ## run the main job on built-in data, and say where its page lies
	@$(BIN)/dmtrl demo

federation-demo: setup  ## a study between four hospitals over NVIDIA FLARE, as processes on this machine
	@rm -rf federation-demo && $(BIN)/python examples/federation_demo.py federation-demo

# Debian's Chromium, for the tests of report pages. Without it they are skipped, except where CI=true: there they fail.
define CHECK_BROWSER
missing=""; \
command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
command -v chromedriver >/dev/null || missing="$$missing chromium-driver"; \
if [ -n "$$missing" ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
  echo "Installing a browser for the tests:$$missing"; \
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null 2>&1 \
    || echo "apt-get could not install:$$missing; going on without." >&2; \
elif [ -n "$$missing" ]; then \
  echo "The tests of report pages need:$$missing (on Debian: sudo apt-get install$$missing); going on without." >&2; \
fi
endef

browser:  ## install the browser that the tests of report pages need, if it is missing
	@$(CHECK_BROWSER)

warm: setup
	@echo "Compiling the kernels (once) ..."
	@cd tests && $(abspath $(BIN))/python -m support.warm_up

test-fast: warm  ## run the tests that need no other process: no cluster, federation, browser or compilation
	@$(BIN)/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder -m "$(FAST)"

test: setup lint browser warm  ## lint, then run all tests except those of make test-faults
	@echo "Running the tests ..."
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not faults"

test-faults: warm  ## run the tests that kill, suspend or cut off processes of a cluster or a federation
	@echo "Running the tests with faults ..."
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m faults

test-durations: warm browser  ## measure how long each test takes, for the order of the tests and the marker slow
	@$(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not faults" --record-durations

LOOPS ?= 4
TIMES ?= 3
test-busy: setup  ## run make test three times in a row beside four busy loops, and print the times (LOOPS=, TIMES=)
	@$(BIN)/python tests/support/busy.py --loops $(LOOPS) --times $(TIMES) -- $(MAKE) --no-print-directory test

# Each variant makes numpy, OpenBLAS and numba compute as another CPU does (tests/support/cpu.py). Left out: the tests
# with faults, which take minutes and do not depend on the CPU.
CPU ?= plain avx2 avx512
test-portable: setup browser  ## run the tests as on other CPUs: all three, or CPU=plain, CPU=avx2, CPU=avx512
	@failed=""; for cpu in $(CPU); do \
	  echo "Running the tests as on a CPU of kind $$cpu ..."; \
	  $(BIN)/python tests/support/cpu.py $$cpu $(PYTEST_FLAGS) -m "not faults" || failed="$$failed $$cpu"; \
	done; [ -z "$$failed" ] || { echo "Tests failed on:$$failed" >&2; exit 1; }

MINIMUM := .venv-minimum
MINIMUM_STAMP := $(MINIMUM)/.installed
MINIMUM_CACHE := NUMBA_CACHE_DIR=$(CURDIR)/build/numba/minimum

$(MINIMUM_STAMP): pyproject.toml lab/pyproject.toml tests/support/minimum_versions.py
	@$(CHECK_MACHINE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "The minimum versions need Python 3.11: run 'make test-minimum PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@echo "Installing the minimum versions into $(MINIMUM) (a minute or two) ..."
	@rm -rf $(MINIMUM); $(PYTHON) -m venv $(MINIMUM)
	@$(PYTHON) tests/support/minimum_versions.py > $(MINIMUM)/constraints.txt
	@$(MINIMUM)/bin/python -m pip install $(PIP_FLAGS) $(PIP_WITH_GROUPS)
	@$(MINIMUM)/bin/python -m pip install $(PIP_FLAGS) -e ".[$(EXTRAS)]" -e lab --group dev -c $(MINIMUM)/constraints.txt
	@touch $@

test-minimum: $(MINIMUM_STAMP) browser  ## run the tests with the minimum versions of pyproject.toml
	@echo "Compiling the kernels (once) ..."
	@cd tests && $(MINIMUM_CACHE) ../$(MINIMUM)/bin/python -m support.warm_up
	@echo "Running the tests with the minimum versions ..."
	@$(MINIMUM_CACHE) $(MINIMUM)/bin/python -m pytest $(PYTEST_FLAGS) -m "not faults"

SOAK_MINUTES ?= 15
FUZZ_MINUTES ?= 5
soak: setup  ## damaged inputs to the dmtrl commands for 5 minutes, then kill actors and nodes of a cluster for 15 and compare the bits
	@cd tests && ../$(BIN)/python -m support.fuzz --minutes $(FUZZ_MINUTES)
	@cd tests && ../$(BIN)/python -m support.soak --minutes $(SOAK_MINUTES)

soak-federation: setup  ## kill and suspend the server and sites of a study for 15 minutes and compare the bits
	@cd tests && ../$(BIN)/python -m support.soak_federation --minutes $(SOAK_MINUTES)

DOCS := .venv-docs
DOCS_STAMP := $(DOCS)/.installed

$(DOCS_STAMP): pyproject.toml constraints.txt
	@$(CHECK_MACHINE)
	@echo "Installing the tools of the documentation into $(DOCS) ..."
	@rm -rf $(DOCS); $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install $(PIP_FLAGS) $(PIP_WITH_GROUPS)
	@$(DOCS)/bin/python -m pip install $(PIP_FLAGS) -e . --group docs -c constraints.txt
	@touch $@

# No network after the installation: MathJax and the search are part of the site. Every warning is an error.
docs: $(DOCS_STAMP)  ## build the documentation site into build/docs/html
	@echo "Building the documentation ..."
	@rm -rf docs/api/generated build/docs
	@$(DOCS)/bin/python -m sphinx -q -W --keep-going -c docs -d build/docs/doctrees . build/docs/html
	@echo "Open build/docs/html/index.html"

BUILD_TOOLS := "build>=1.2" "hatchling>=1.27"

# The wheel is built from the sdist, so both are complete; the smoke test sees the installed wheel only.
dist:  ## build wheel and sdist, and try the wheel in an empty environment without extras
	@$(CHECK_MACHINE)
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	echo "Building into dist/ ..."; rm -rf dist; \
	$(PYTHON) -m venv "$$dir/build"; \
	"$$dir/build/bin/python" -m pip install $(PIP_FLAGS) $(BUILD_TOOLS) -c constraints.txt; \
	"$$dir/build/bin/python" -m build --no-isolation --outdir dist . >"$$dir/log" || { cat "$$dir/log" >&2; exit 1; }; \
	echo "Installing the wheel into an empty environment ..."; \
	$(PYTHON) -m venv "$$dir/empty"; \
	"$$dir/empty/bin/python" -m pip install $(PIP_FLAGS) dist/*.whl -c constraints.txt; \
	cp tests/support/smoke.py "$$dir/smoke.py"; \
	cd "$$dir" && "$$dir/empty/bin/python" -I smoke.py
	@ls -l dist

lint: setup  ## ruff, mypy and the import contract
	@echo "Checking style, types and imports ..."
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . \
	  || { echo "Some files are not formatted: run 'make format'." >&2; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

format: setup  ## put the source into the one format, and fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

lock:  ## write constraints.txt anew from the newest versions that fit together
	@$(CHECK_MACHINE)
	@echo "Installing the newest versions into a fresh environment ..."
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(PYTHON) -m venv "$$dir/venv"; \
	"$$dir/venv/bin/python" -m pip install $(PIP_FLAGS) $(PIP_WITH_GROUPS); \
	"$$dir/venv/bin/python" -m pip install $(PIP_FLAGS) ".[$(EXTRAS)]" ./lab --group dev --group docs $(BUILD_TOOLS); \
	{ echo '# The versions the tests run with: dmtrl with all extras, the lab, the groups dev and docs, the build tools.'; \
	  echo '# Written by `make lock`; do not edit by hand.'; \
	  "$$dir/venv/bin/python" -m pip freeze --disable-pip-version-check --exclude dmtrl --exclude dmtrl-lab; } > constraints.txt.new; \
	mv constraints.txt.new constraints.txt
	@echo "Wrote constraints.txt ($$(grep -c == constraints.txt) packages). Run 'make test' to try them."

clean:  ## remove the environments, caches and build output
	rm -rf $(VENV) $(MINIMUM) $(DOCS) build dist docs/api/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
	  printf '  make %-16s %s\n' "$$name" "$$text"; done
