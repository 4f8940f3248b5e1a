# Every target documents itself: `make help`.
# Variables: CONFIG=file.yaml (estimate, preprocess, vocabulary, train, pretrain), ARGS="key.sub=value ..." (passed on), PYTHON.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?=
ARGS ?=
RUN ?= runs/sample
OUT ?= $(RUN)/export
OUTSIDE_CONFIG := $(if $(CONFIG),--config $(CONFIG),)

export DS_ACCELERATOR ?= $(if $(wildcard /dev/nvidia0),cuda,cpu)
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup sample vocabulary estimate preprocess train export pretrain test test-gpu chaos check fix bench bench-trainer clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.ready  ## Make .venv with everything, exact versions of constraints.txt

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else f"Python 3.11 or 3.12 is needed, this is {v[0]}.{v[1]}; name another with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pipeline,trainer,test]'
	touch $@

sample: setup  ## Fetch the sample corpus (real Wikipedia pages and public-domain books) into data/sample
	$(BIN)/python -m pipeline.download sample data/sample

vocabulary: $(if $(CONFIG),setup,sample)  ## Train the config's vocabulary where it is not there yet
	$(BIN)/python -m pipeline.vocabulary $(OUTSIDE_CONFIG) $(ARGS)

preprocess: $(if $(CONFIG),setup,sample)  ## Text to sentence-pair Parquet (CONFIG=my.yaml for your own text)
	$(BIN)/python pipeline/run.py $(OUTSIDE_CONFIG) $(ARGS)

estimate: $(if $(CONFIG),setup,sample)  ## What `preprocess` will cost: rows, bytes, time, memory, from a sample of the text
	$(BIN)/python -m pipeline.estimate $(OUTSIDE_CONFIG) $(ARGS)

train: setup  ## Pretrain BERT on a data set (CONFIG=my.yaml, ARGS="workers=8 ...")
	$(BIN)/python trainer/run.py $(OUTSIDE_CONFIG) $(ARGS)

export: setup  ## Write RUN's newest checkpoint as a transformers model into OUT
	$(BIN)/python -m trainer.export $(RUN) $(OUT)

pretrain: sample  ## The main job on the sample: fetch, preprocess, train, evaluate, export, show
	$(BIN)/python pipeline/run.py
	$(BIN)/python trainer/run.py
	$(BIN)/python -m trainer.export runs/sample runs/sample/export
	$(BIN)/python -m trainer.demonstrate runs/sample/export

test: setup  ## Run the tests (no GPU, no network beyond the package registries)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-gpu:  ## Run the tests that need a GPU, with the python on the path
	python -m pytest -m gpu $$(grep -l "mark.gpu" tests/test_*.py) $(ARGS)

chaos: setup  ## Kill, freeze, fill and damage real runs; all must be as uninterrupted (docs/RELIABILITY.md)
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests $(BIN)/python -m chaos $(ARGS)

check: setup  ## Format, lint, types and import contracts; never changes a file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: setup  ## Format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## Run the benchmarks; tables go to bench/
	$(BIN)/python -m bench.run $(ARGS)

bench-trainer:  ## On a GPU host: transformers, our model, engine and product on the rows of DATA; table in bench/trainer.md
	python -m bench.trainer $(DATA) $(ARGS)

clean:  ## Remove caches and the sample's products; your own data/ and runs/ stay
	rm -rf data/sample data/sample-set runs/sample build .pytest_cache .mypy_cache .ruff_cache .hypothesis
