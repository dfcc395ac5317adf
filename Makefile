# The interpreter that .venv is made from: make PYTHON=python3.12 setup
PYTHON ?= python3
# Worker processes for pytest; each runs torch on one thread. Three keep two cores busy: tests of Ray and of servers wait.
WORKERS ?= 3

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# The stages of dvc.yaml call `python`, which must be the one of .venv.
PATHS := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
# All stages of one command share a Ray.
REPRO := $(PATHS) $(RUN) -m pipeline.shared_ray $(RUN) -m dvc repro
BANDIT := $(RUN) -m bandit --quiet --configfile pyproject.toml --recursive mnvi pipeline tools benchmarks
# Some images forbid Python to keep bytecode. Then every process that a test starts would compile the project anew.
TESTING := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
# The tests of a file share a cluster or a study that takes long to make, so they stay on one worker.
# tests/conftest.py puts files with slow tests first; xdist's own order would begin with the files that have the most
# tests.
BY_FILE := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup test fast soak lint audit format lock bench faults gpu-check lockfile docs docs-serve study uci images paper cifar photos walk experiments ui clean

help:  ## list the targets
	@grep -hE '^[a-z -]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*  ## /\1\t/' | expand -t 18

# The page of `dvc plots show`, so that it works without the internet; the image has no tools/ and no plots.
PLOTS := $(patsubst tools/offline_plots.py,.dvc/tmp/plots.html,$(wildcard tools/offline_plots.py))
.dvc/tmp/plots.html: tools/offline_plots.py | $(INSTALLED)
	$(RUN) -m tools.offline_plots

setup: $(INSTALLED) $(PLOTS)  ## create .venv and install the locked versions

test: lint  ## lint, type check and run every test except those of soak
	$(TESTING) $(RUN) -m pytest -n $(WORKERS) $(BY_FILE) --durations=25 --durations-min=10

fast: setup  ## run the tests that are not marked slow
	$(TESTING) $(RUN) -m pytest -n $(WORKERS) $(BY_FILE) -m "not slow and not soak"

soak: setup  ## run the tests that take minutes each: lost nodes, stages stopped in every way, containers, faults
	$(TESTING) $(RUN) -m pytest -m soak --durations=0 --durations-min=10

lint: setup  ## ruff, mypy and bandit
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(BANDIT)

audit: setup  ## look for unsafe code and for known vulnerabilities of the locked packages (needs the internet)
	$(BANDIT)
	$(RUN) -m pip_audit --requirement requirements.lock --no-deps --disable-pip --strict

format: setup  ## let ruff rewrite the source
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

lock: setup  ## write requirements.lock from pyproject.toml and the installed versions
	$(RUN) -m pip install --no-build-isolation --editable '.[vision,sklearn,export,pipeline,server,docs,dev]'
	$(RUN) tools/lock.py > requirements.lock.new
	mv requirements.lock.new requirements.lock
	touch $(INSTALLED)

study: setup lockfile  ## run the study that params.yaml selects (the default one: nine minutes on two cores)
	$(REPRO)
	@$(RUN) -m pipeline.params report

# In the image dvc.lock is a link into a volume. On a new volume its target is missing, and DVC refuses such a link.
lockfile:
	@[ -e dvc.lock ] || [ ! -L dvc.lock ] || echo "schema: '2.0'" > dvc.lock

uci images paper cifar: setup  ## run a whole table of the paper, both, or ResNet20 on CIFAR, into recorded/<name>
	$(RUN) -m pipeline.params select $@
	$(REPRO)
	$(RUN) -m pipeline.params select default

# Without the pattern there is a column with a digest for every dependency.
experiments: setup  ## dvc exp show: scores and a line of settings for each cell
	$(PATHS) $(RUN) -m dvc exp show \
		--drop '(data|mnvi|pipeline|params.yaml|study\.|(results|recorded/[^/]*)/(settings|ood|tune|models|evaluate$$))'

ui: setup  ## look at the runs in MLflow, on http://127.0.0.1:5000
	exec env MLFLOW_BACKEND_STORE_URI="$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}" \
		MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(RUN) -m mlflow ui \
		--host 127.0.0.1 --port 5000 --allowed-hosts 'localhost:5000,127.0.0.1:5000'

# The examples of the gallery, run again if one of them has changed.
GALLERY := build/gallery/.done
$(GALLERY): $(wildcard examples/*.py) | setup
	$(RUN) -m tools.website.gallery
	touch $@

docs: setup $(GALLERY)  ## run the examples and write the site to build/site
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build

docs-serve: setup $(GALLERY)  ## show the site on http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve --dev-addr 127.0.0.1:8000

photos: setup  ## uncertainty for a network trained on ImageNet, on photographs of Imagenette: docs/photos.md
	$(RUN) -m tools.photos

walk: setup  ## follow docs/walk.md in a new clone with new environments, and record the times: half an hour
	$(RUN) -m tools.follow_docs

bench: setup  ## what uncertainty costs, here and with other packages: docs/speed.md
	$(RUN) -m benchmarks
	$(RUN) -m benchmarks.growth

gpu-check: setup  ## try training, compiler, NCCL, export and speed on this machine's GPUs (ten minutes): docs/gpu.md
	$(RUN) -m tools.gpu_check

faults: setup  ## disturb a small study fifty times and check that it ends as if nothing had happened: docs/faults.md
	$(RUN) -m tools.faults --faults 50 --seed 0 --minutes 75

clean:  ## remove .venv, caches and build products
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find mnvi pipeline tests tools -name __pycache__ -type d -exec rm -rf {} +

# The project itself is installed without dependencies, since the lock names them all, and without build isolation,
# which would fetch an unpinned setuptools.
$(INSTALLED): requirements.lock pyproject.toml | $(RUN)
	$(RUN) -m pip install --requirement requirements.lock
	$(RUN) -m pip install --no-deps --no-build-isolation --editable .
	touch $@

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "mnvi needs Python 3.11 or newer, but PYTHON=$(PYTHON) is `$(PYTHON) --version 2>&1`;" \
			"choose another one: make PYTHON=python3.11 setup" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
