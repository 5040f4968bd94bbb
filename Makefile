# Everything here sets itself up in .venv and needs the package registry only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := demo
# Without the variable CI, pytest shortens what it prints of a failing comparison.
OFFLINE := env -u CI OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
PYTEST := $(OFFLINE) $(BIN)/python -m pytest -q -n 2
# A file is one process's, so that what its tests share is made once; tests/conftest.py says which files come first.
BY_FILE := --dist loadfile --no-loadscope-reorder
# The versions that the tests are run on; `LOCK=` takes the newest that pyproject.toml admits.
LOCK := --constraint constraints.txt
INSTALL = $(BIN)/python -m pip install --quiet $(LOCK)

.PHONY: help demo test full-test typed-test newest-test oldest-test mutations lock lint types docs notebooks pictures wheel-check bench clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /'

# pip 26 reads the dependency groups; torch and torchvision are resolved together.
$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (torch and friends: about 6 GB, a few minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 10) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(INSTALL) -e '.[compare]' --group test --group lint
	@touch $@

# The site's tools come into the same environment when they are first asked for.
$(VENV)/.docs: $(READY)
	@$(INSTALL) --group docs
	@touch $@

# The layouts of mamba-ssm are tested on its real classes, which need no CUDA to be built; without them the tests skip.
$(VENV)/.mamba: $(READY)
	@MAMBA_FORCE_BUILD=TRUE MAMBA_SKIP_CUDA_BUILD=TRUE $(INSTALL) --no-build-isolation --no-deps mamba-ssm einops
	@touch $@

demo: $(READY)  ## train a small ViT on real images from several initializations and report the difference (4 minutes); FRESH=1 begins anew
	@$(if $(FRESH),rm -rf $(RUNS),if [ -d $(RUNS) ]; then echo "Runs in $(RUNS)/ are kept; make demo FRESH=1 trains them anew."; fi)
	@$(BIN)/structured-init compare -c vit_digits --inits default,sincos,mimetic --seeds 0,1,2 --parallel 2 \
	  --output $(RUNS) --trainer.max_epochs 40

# The contract is run with shapes and types checked, all else as users run it, in half the time. Where ARGS names paths, they
# are run and nothing else. pytest's 5 says that no test was selected: of one part that is no failure, of all it is.
QUICK := -m "not slow and not distributed"
PLAIN := --jaxtyping-packages=
test: $(READY)  ## run every promise once (8 minutes on two cores); ARGS="-k word" or ARGS=tests/callbacks narrows
ifneq ($(filter tests/%,$(ARGS)),)
	@$(PYTEST) $(BY_FILE) $(QUICK) $(PLAIN) $(ARGS)
else
	@$(PYTEST) $(QUICK) tests/contract $(ARGS); contract=$$?; \
	$(PYTEST) $(BY_FILE) $(QUICK) $(PLAIN) tests --ignore=tests/contract $(ARGS); others=$$?; \
	case "$$contract $$others" in "0 0" | "0 5" | "5 0") ;; *) exit 1 ;; esac
endif

full-test: typed-test newest-test oldest-test mutations wheel-check  ## run everything, before a release (about an hour)

typed-test: $(READY)  ## run all tests, slow and distributed ones too, with shapes and types checked
	@$(PYTEST) $(BY_FILE) tests $(ARGS)

# The newest versions that are admitted, in an environment of their own: the one that the lock is made of.
NEWEST := $(MAKE) VENV=build/newest LOCK=
newest-test:  ## run every promise once on the newest versions that are admitted
	@$(NEWEST) test

lock:  ## make constraints.txt again, of the newest versions that are admitted
	@rm -rf build/newest
	@$(NEWEST) build/newest/.docs build/newest/.mamba
	@on=$$(build/newest/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	build/newest/bin/python -m pip freeze --exclude-editable | sed "s/$$/ ; python_version >= \"$$on\"/" > constraints.txt
	@touch $(READY)

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
	@PYTHONPATH=$(CURDIR) $(OFFLINE) $(OLDEST)/bin/python -m pytest -q -n 2 $(BY_FILE) \
	  tests/structured_init/hosts/watching/test_watched_sites.py tests/structured_init/hosts/test_t*.py

mutations: $(READY)  ## put bugs into copies of the tree, one at a time, and see that make test catches them
	@$(BIN)/python -W ignore -m benchmarks.mutations --output benchmarks/results

lint: $(READY)  ## check style
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)  ## check what users write against the types of the public names (mypy, strict; about a minute)
	@$(BIN)/python -m mypy --cache-dir build/mypy

wheel-check: $(READY)  ## build the wheel, install it into an empty environment, and use it outside of the clone
	@$(BIN)/python -m benchmarks.wheel_check

docs: $(VENV)/.docs  ## build the documentation into build/site
	@$(BIN)/python -m sphinx -W --keep-going -q -c docs -d build/doctrees . build/site
	@echo "file://$(CURDIR)/build/site/index.html"

notebooks: $(READY)  ## run the notebooks, and keep what they show
	@PYTHONPATH=$(CURDIR) PYTHONWARNINGS=ignore $(OFFLINE) $(BIN)/python tests/test_notebooks.py

pictures: $(READY)  ## draw the pictures of docs/gallery again
	@$(OFFLINE) $(BIN)/python -W ignore docs/gallery/pictures.py

bench: $(READY)  ## run the benchmarks that fit on 2 cores into runs/bench
	@for run in "capture_speed --repeats 5" finding_speed; do \
	  set -- $$run; echo "$$run ..."; $(BIN)/python -W ignore -m benchmarks.$$run --output runs/bench >/dev/null 2>runs.log \
	    && cat runs/bench/$$1.md || { cat runs.log; rm -f runs.log; exit 1; }; rm -f runs.log; done
	@$(BIN)/python -W ignore -m benchmarks.init_time --parts memory svd --repeats 1 --output runs/bench

clean:  ## remove what make demo and make test wrote, but not .venv
	@rm -rf $(RUNS) runs build lightning_logs .pytest_cache .ruff_cache
