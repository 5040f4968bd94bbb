# Everything here sets itself up in .venv and needs the package registry only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A file is one process's, so that what its tests share is made once; tests/conftest.py says which files come first.
SHARED := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test fast-test oldest-test mutations lint types docs wheel-check bench clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /'

# pip 26 and uv read the dependency group; torch and torchvision are resolved together.
$(READY): pyproject.toml
	@echo "Setting up $(VENV) (torch and friends: about 6 GB, a few minutes) ..."
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python $(PYTHON) $(VENV) && \
	  uv pip install --quiet --python $(BIN)/python -e '.[compare]' --group test --group lint; \
	else \
	  $(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 10) else None' && \
	  $(PYTHON) -m venv $(VENV) && \
	  $(BIN)/python -m pip install --quiet --upgrade "pip>=25.1" && \
	  $(BIN)/python -m pip install --quiet -e '.[compare]' --group test --group lint; \
	fi
	@touch $(READY)

# The site's tools come into the same environment when they are first asked for.
$(VENV)/.docs: $(READY) pyproject.toml
	@if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --group docs; \
	  else $(BIN)/python -m pip install --quiet --group docs; fi
	@touch $@

demo: $(READY)  ## train a small ViT on real images from several initializations and report the difference (under 4 minutes)
	@$(BIN)/structured-init compare -c vit_digits --inits default,sincos,mimetic_host --seeds 0,1,2 --parallel 2 \
	  --output demo --trainer.max_epochs 40

# Shapes and types are checked in the tests of the library itself; all others call it as users do, at half the time.
PARTS := "tests/structured_init" "tests --ignore=tests/structured_init --jaxtyping-packages="

test: $(READY)  ## run all tests
	@failed=0; for part in $(PARTS); do OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHARED) --durations 10 -q $$part $(ARGS) \
	  || [ $$? = 5 ] || failed=1; done; exit $$failed

fast-test: $(READY)  ## run the tests that take seconds
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHARED) -q -m "not slow and not distributed" $(ARGS)

# The first environment with the oldest torch, transformers, timm and lightning that pyproject.toml admits over it: what
# else they need is there, CUDA's libraries too, but for cuRAND, which torch 2.15 does without. 1.4 GB, half a minute of a processor.
OLDEST := build/oldest
OLD = $(shell sed -nE 's/^ *"(torch|torchvision|timm|lightning)>=([0-9.]+).*/\1==\2/p' pyproject.toml)
OLD_TRANSFORMERS = $(shell sed -nE 's/^ *"(transformers)>=([0-9.]+).*/\1==\2/p' pyproject.toml)
$(OLDEST)/.ready: $(READY) pyproject.toml
	@rm -rf $(OLDEST) && $(BIN)/python -m venv --without-pip $(OLDEST)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(OLDEST)/bin/python -c \
	  'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth"
	@$(BIN)/python -m pip --python $(OLDEST)/bin/python install --quiet --no-deps --ignore-installed $(OLD) nvidia-curand
	@$(BIN)/python -m pip --python $(OLDEST)/bin/python install --quiet $(OLD_TRANSFORMERS)
	@touch $@

oldest-test: $(OLDEST)/.ready  ## run the tests of host libraries on the oldest versions of them that are admitted
	@PYTHONPATH=$(CURDIR) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(OLDEST)/bin/python -m pytest $(SHARED) -q \
	  tests/structured_init/hosts/watching/test_watched_sites.py tests/structured_init/hosts/test_t*.py $(ARGS)

mutations: $(READY)  ## put 107 bugs into copies of the tree, one at a time, and see that the tests catch them (25 minutes of a processor)
	@$(BIN)/python -W ignore -m benchmarks.mutations --output benchmarks/results

lint: $(READY)  ## check style
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)  ## check what users write against the types of the public names (mypy, strict; about a minute)
	@$(BIN)/python -m mypy --cache-dir build/mypy

wheel-check: $(READY)  ## build the wheel, install it into an empty environment, and use it outside of the clone
	@$(BIN)/python -m benchmarks.wheel_check

docs: $(VENV)/.docs  ## build the documentation into build/site; DOCS_NOTEBOOKS=off leaves the notebooks' pictures out
	@$(BIN)/python -m sphinx -W --keep-going -q -c docs -d build/doctrees . build/site
	@echo "file://$(CURDIR)/build/site/index.html"

bench: $(READY)  ## run the benchmarks that fit on 2 cores into runs/bench
	@for run in "capture_speed --repeats 5" finding_speed; do \
	  set -- $$run; echo "$$run ..."; $(BIN)/python -W ignore -m benchmarks.$$run --output runs/bench >/dev/null 2>runs.log \
	    && cat runs/bench/$$1.md || { cat runs.log; rm -f runs.log; exit 1; }; rm -f runs.log; done
	@$(BIN)/python -W ignore -m benchmarks.init_time --parts memory svd --repeats 1 --output runs/bench

clean:  ## remove what make demo and make test wrote, but not .venv
	@rm -rf demo runs build lightning_logs .pytest_cache .ruff_cache
