# gpushare: what to type. `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EVENTS ?= 200000
ROUNDS ?= 2000
SEED   ?= 1
CALLS  ?= 1000000
SECONDS ?= 600
SAMPLE ?= 100
ENGINES ?= tests/engines

C_FILES = $(shell git ls-files 'shim/*.c' 'shim/*.h' 'tests/*.c' 'benchmarks/*.c' 'gpushare/*.c')

.PHONY: help demo demo-queue test test-engines check pytest property crash chaos audit conformance switches differential fuzz mutants bench bench-cluster bench-time docs web test-browser gpu-day gpu-day-bundle man build dist dist-try clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/installed-demo ## make a virtual environment, install, and see two programs share a GPU
	$(BIN)/gpushare demo

demo-queue: $(VENV)/installed-demo ## the same, and see two queues share two GPUs, half each
	$(BIN)/gpushare demo --queue

test: check pytest ## install everything and pass all tests

check: $(VENV)/installed-test ## lint, formats, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

pytest: $(VENV)/installed-test
	$(BIN)/pytest -n 2 --dist loadfile -q

test-engines: $(VENV)/installed-test ## the engines on real servers: Slurm (root, Debian's packages of it) [SLURM_ROOT=FOLDER]
	GPUSHARE_TEST_ENGINES=1 GPUSHARE_TEST_SLURM_ROOT=$(SLURM_ROOT) \
		$(BIN)/pytest $(ENGINES) -k slurm -n 2 --dist loadfile -q

slurm-root: ## a newer Slurm for these tests, from Debian 13, in a folder: make slurm-root SLURM_ROOT=/var/tmp/slurm
	tests/engines/make_slurm_root.sh $(SLURM_ROOT)

property: $(VENV)/installed-test ## random events against both cores: make property EVENTS=200000 SEED=1
	GPUSHARE_TEST_EVENTS=$(EVENTS) GPUSHARE_TEST_SEED=$(SEED) $(BIN)/pytest \
		tests/property tests/cluster/test_properties_random.py tests/cluster/test_oracle_liveness.py -q -s --timeout 0

crash: $(VENV)/installed-test ## 1,000 programs, 100 daemons and 2,000 writers of a cluster's log killed at random
	GPUSHARE_TEST_KILLS=1000 GPUSHARE_TEST_RESTARTS=100 $(BIN)/pytest \
		tests/integration/test_crash.py tests/cluster/test_store.py -q -s --timeout 0

chaos: $(VENV)/installed-test ## real programs and daemons under random attacks: make chaos ROUNDS=2000 SEED=1
	PYTHONPATH=.:daemon:tests $(BIN)/python -m chaos --rounds $(ROUNDS) --seed $(SEED)

audit: $(VENV)/installed-test ## judge the promises from outside, by programs' results and NVML: make audit SECONDS=600 SEED=1
	PYTHONPATH=.:tests $(BIN)/python -m audit --seconds $(SECONDS) --seed $(SEED)

conformance: $(VENV)/installed-test ## the software driver beside the real one of this machine, if it has one
	$(BIN)/python tests/driver/compare.py

differential: $(VENV)/installed-test ## random calls against the account: make differential CALLS=1000000 [SWITCHES=blocks=packed]
	GPUSHARE_TEST_CALLS=$(CALLS) GPUSHARE_TEST_SEED=$(SEED) GPUSHARE_TEST_SWITCHES=$(SWITCHES) \
		$(BIN)/pytest tests/shim/test_shim_differential.py -q -s --timeout 0

switches: $(VENV)/installed-test ## the library's tests under each switch of the software driver (docs/switches.md)
	for setting in $(if $(SWITCHES),$(SWITCHES),$$($(BIN)/python tests/switches.py)); do \
		echo "== $$setting" && GPUSHARE_TEST_SWITCHES=$$setting $(BIN)/pytest tests/shim -q -n 2 --dist loadfile || exit 1; \
	done

fuzz: $(VENV)/installed-test ## the C parsers under libFuzzer: make fuzz SECONDS=600
	GPUSHARE_TEST_SECONDS=$(SECONDS) $(BIN)/pytest tests/fuzz -q -s --timeout 0

mutants: $(VENV)/installed-test ## random one-line changes that a test should notice: make mutants SAMPLE=100 SEED=1 [GROUP=core]
	PYTHONPATH=tests $(BIN)/python -m mutation --sample $(SAMPLE) --seed $(SEED) \
		$(if $(GROUP),--group $(GROUP)) $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS))

bench: $(VENV)/installed-test ## the cost table, side by side in one run
	-$(BIN)/python benchmarks/cost.py # status 1: a bar is missed
	$(BIN)/python benchmarks/roundtrip.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/daemon_load.py
	$(BIN)/python benchmarks/reclaim.py
	-$(BIN)/python benchmarks/page.py # likewise

bench-cluster: $(VENV)/installed-test ## decisions of the cluster allocator, beside other schedulers' figures
	$(BIN)/python benchmarks/cluster.py --curve

bench-time: $(VENV)/installed-test ## weeks of jobs beside simple schedulers: useful GPU time, waits, evictions
	$(BIN)/python benchmarks/over_time.py --json build/over-time.json --svg build

gpu-day: $(VENV)/installed-test ## on a machine with a GPU: 29 checks and a report, in twice ten minutes: make gpu-day PART=1
	PYTHONPATH=.:daemon:tests $(BIN)/python -m gpuday $(if $(PART),--part $(PART)) $(if $(DRIVER),--driver $(DRIVER)) \
		$(if $(FRAMEWORKS),--python $(FRAMEWORKS))

gpu-day-bundle: $(VENV)/installed-test ## the same as a folder that runs where nothing can be installed: dist/gpu-day
	PYTHONPATH=.:daemon:tests $(BIN)/python -m gpuday.bundle dist/gpu-day

dist: $(VENV)/bin/python ## the source archive, and wheels for x86-64 and 64-bit ARM, in dist/
	$(BIN)/pip install -q 'setuptools>=77' 'cffi>=1.16'
	$(BIN)/python shim/make_dist.py dist

dist-try: dist ## install each wheel in a bare Debian without a compiler, and run it there (root, network)
	$(BIN)/python tests/packaging/try_wheels.py dist

web: ## build the dashboard's page again from web/ (needs node and npm): gpushare/dashboard/static
	cd web && npm ci --ignore-scripts --no-progress && npm run --silent check && npm run --silent build

test-browser: $(VENV)/installed-test ## the dashboard's page in a headless Chromium (needs it, node and npm)
	cd web && npm ci --ignore-scripts --no-progress
	$(BIN)/pytest tests/browser -q

man: $(VENV)/installed-test ## write again what is made from the code: man pages, docs/metrics.md, docs/api.md, names of variables
	$(BIN)/python docs/man/generate.py
	$(BIN)/python docs/man/generate_metrics.py
	$(BIN)/python docs/man/generate_api.py
	$(BIN)/python docs/man/generate_names.py

docs: $(VENV)/bin/python ## the documents as a site, links checked: build/site/index.html (network: mkdocs-material)
	$(BIN)/pip install -q 'mkdocs-material>=9.7,<10'
	$(PYTHON) docs/site/assemble.py build/site-pages
	$(BIN)/mkdocs build -f docs/site/mkdocs.yml

build: $(VENV)/bin/python ## compile the C parts into the source tree
	$(BIN)/pip install -q 'setuptools>=77' 'cffi>=1.16'
	$(BIN)/python setup.py -q build_ext --inplace

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The C sources are prerequisites because an installation holds what was compiled from them.
SOURCES = pyproject.toml setup.py gpushare_installation.py $(wildcard shim/* shim/*/*)

# Until November 2026 the distribution had this name. Two distributions must not own the same files.
EARLIER = gpushare

$(VENV)/installed-demo: $(BIN)/python $(SOURCES) $(wildcard gpushare/*.py gpushare/*/*.py daemon/*/*.py examples/*)
	$(BIN)/pip uninstall -qq -y $(EARLIER)
	$(BIN)/pip install -q '.[demo]'
	touch $@

$(VENV)/installed-test: $(BIN)/python $(SOURCES)
	$(BIN)/pip uninstall -qq -y $(EARLIER)
	$(BIN)/pip install -q -e '.[test]'
	touch $@ $(VENV)/installed-demo

clean: ## remove what was built and installed here
	rm -rf $(VENV) build dist *.egg-info gpushare/_layout*.so gpushare/lib gpushare/sim
