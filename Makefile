# `make help` lists the targets.
# Variables: CONFIG=file.yaml (download, estimate, preprocess, vocabulary, train, submit), ARGS="key.sub=value ..." (passed on), PYTHON,
# LANGUAGE=ko (sample, pretrain: the Korean sample).
# A variable that the target does not take is refused; otherwise `make preprocess CONFG=my.yaml` would build the sample.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?=
ARGS ?=
RUN ?= runs/sample
OUT ?= $(RUN)/export
KIND ?= train
JOB ?=
SET ?=
DATA ?=
MODEL ?=
REPO ?=
LDDL_PYTHON ?=
# Not taken from the environment, where LANGUAGE belongs to gettext.
LANGUAGE := en

TAKES_CONFIG := download estimate preprocess vocabulary train submit pretrain
TAKES_ARGS := $(TAKES_CONFIG) export push evaluate test test-gpu chaos bench bench-pipeline bench-trainer bench-learning bench-evaluation bench-finetuning cluster check-cluster images test-images
TAKES_JOB := submit status logs stop
TAKES_SET := cluster check-cluster images
TAKES_RAY_ADDRESS := $(TAKES_JOB)
TAKES_KIND := submit
TAKES_RUN := export push
TAKES_REPO := push
TAKES_OUT := export evaluate
TAKES_DATA := bench-trainer bench-learning bench-evaluation bench-finetuning evaluate
TAKES_MODEL := evaluate bench-finetuning
TAKES_LDDL_PYTHON := bench-pipeline
TAKES_LANGUAGE := sample pretrain
ANYWHERE := PYTHON VENV BIN DS_ACCELERATOR TOKENIZERS_PARALLELISM
GIVEN := $(foreach name,$(filter-out $(ANYWHERE),$(.VARIABLES)),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
IGNORED := $(strip $(foreach name,$(GIVEN),$(if $(filter $(TAKES_$(name)),$(MAKECMDGOALS)),,$(name)=$($(name)))))
TAKEN := $(patsubst TAKES_%,%=,$(foreach list,$(filter TAKES_%,$(.VARIABLES)),$(if $(filter $($(list)),$(MAKECMDGOALS)),$(list))))
ifneq ($(IGNORED),)
$(error make $(MAKECMDGOALS) does not take $(IGNORED)$(if $(TAKEN),; it takes $(sort $(TAKEN)))$(if $(filter ARGS=,$(TAKEN)),; \
give settings as ARGS="$(IGNORED)"); put environment variables before make)
endif

quote = '$(subst ','\'',$1)'
OF_LANGUAGE := $(if $(filter-out en,$(LANGUAGE)),-$(LANGUAGE))
OUTSIDE_CONFIG := $(if $(CONFIG),--config $(call quote,$(CONFIG)),)

export DS_ACCELERATOR ?= $(if $(wildcard /dev/nvidia0),cuda,cpu)
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup sample download vocabulary estimate preprocess train export push evaluate pretrain test test-gpu chaos check fix bench \
	bench-pipeline bench-trainer bench-learning bench-evaluation bench-finetuning clean cluster check-cluster images test-images submit status logs stop local-cluster \
	local-cluster-stop of-the-sample of-a-language

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(VENV)/.ready  ## Make .venv with all packages, in the versions of constraints.txt

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else f"Python 3.11 or 3.12 is needed, this is {v[0]}.{v[1]}; name another with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pipeline,trainer,test]'
	touch $@

sample: setup of-a-language  ## Fetch the sample corpus (Wikipedia pages and books; LANGUAGE=ko: Korean law texts) into data/sample
	$(BIN)/python -m pipeline.download sample data/sample$(OF_LANGUAGE) $(filter-out en,$(LANGUAGE))

download: setup  ## Fetch the dumps that CONFIG names; list the files that you must bring yourself
	$(BIN)/python -m pipeline.download config $(OUTSIDE_CONFIG) $(ARGS)

vocabulary: $(if $(CONFIG),download,sample)  ## Train the config's vocabulary if it does not exist yet
	$(BIN)/python -m pipeline.vocabulary $(OUTSIDE_CONFIG) $(ARGS)

preprocess: $(if $(CONFIG),download,sample)  ## Turn text into a data set (CONFIG=my.yaml for your own text)
	$(BIN)/python pipeline/run.py $(OUTSIDE_CONFIG) $(ARGS)

estimate: $(if $(CONFIG),setup,sample)  ## Estimate rows, bytes, time and memory of `preprocess` from a sample of the text
	$(BIN)/python -m pipeline.estimate $(OUTSIDE_CONFIG) $(ARGS)

train: setup  ## Pretrain BERT on a data set (CONFIG=my.yaml, ARGS="workers=8 ...")
	$(BIN)/python trainer/run.py $(OUTSIDE_CONFIG) $(ARGS)

export: setup  ## Write RUN's newest checkpoint as a transformers model into OUT
	$(BIN)/python -m trainer.export $(call quote,$(RUN)) $(call quote,$(OUT)) $(ARGS)

push: setup  ## Publish RUN on the Hugging Face Hub as REPO=OWNER/NAME, private unless ARGS has --public (ARGS="--dry-run --revisions")
	@[ -n $(call quote,$(REPO)) ] || { echo 'make push needs REPO=OWNER/NAME, a model repository on the hub; see docs/how-to/publish.md' >&2; exit 2; }
	$(BIN)/python -m trainer.push $(call quote,$(RUN)) $(call quote,$(REPO)) $(ARGS)

evaluate: setup  ## Fine-tune MODEL on every task whose files are in DATA; table and picture in OUT (ARGS="seeds=3 device=cuda")
	@[ -n $(call quote,$(MODEL)) ] && [ -n $(call quote,$(DATA)) ] || { echo 'make evaluate needs MODEL=EXPORT and DATA=FOLDER, the tasks to fine-tune on; see docs/how-to/finetune.md' >&2; exit 2; }
	$(BIN)/python -m trainer.finetune --task all --model $(call quote,$(MODEL)) --data $(call quote,$(DATA)) --output $(call quote,$(if $(filter command,$(firstword $(origin OUT))),$(OUT),$(patsubst %/,%,$(MODEL))-tasks)) $(ARGS)

pretrain: of-the-sample sample  ## Do everything on the sample (LANGUAGE=ko: Korean): fetch, preprocess, train, evaluate, export, show
	$(BIN)/python pipeline/run.py $(if $(OF_LANGUAGE),--config pipeline/configs/sample_$(LANGUAGE).yaml)
	$(BIN)/python trainer/run.py $(if $(OF_LANGUAGE),--config trainer/configs/sample_$(LANGUAGE).yaml)
	$(BIN)/python -m trainer.export runs/sample$(OF_LANGUAGE) runs/sample$(OF_LANGUAGE)/export
	$(BIN)/python -m trainer.demonstrate runs/sample$(OF_LANGUAGE)/export --held-out data/sample$(OF_LANGUAGE)-set

of-a-language:
	@[ $(call quote,$(LANGUAGE)) = en ] || [ $(call quote,$(LANGUAGE)) = ko ] || { echo 'LANGUAGE=... is the language of the sample: en or ko' >&2; exit 2; }

of-the-sample:
	@[ -z $(call quote,$(CONFIG)$(ARGS)) ] || { echo 'make pretrain takes no CONFIG and no ARGS, it is the sample; use make preprocess CONFIG=... and make train CONFIG=...' >&2; exit 2; }

test: setup  ## Run the tests (no GPU, no network except the package registries)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-gpu:  ## Run the tests that need a GPU, with the python on the path
	python -m pytest -m gpu $$(grep -rl --include="test_*.py" "mark.gpu" tests) $(ARGS)

chaos: setup  ## Kill, freeze and damage real runs; each must end like an undisturbed one (docs/RELIABILITY.md)
	PYTHONPATH=$(call quote,$(CURDIR):$(CURDIR)/tests:$(CURDIR)/tests/support) $(BIN)/python -m chaos $(ARGS)

check: setup  ## Check format, lint, types and import layers; change no file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: setup  ## Format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## Run the benchmarks; write their tables into bench/
	$(BIN)/python -m bench.run $(ARGS)

bench-pipeline: setup  ## Measure stages, whole builds, storage and plan; write bench/pipeline.md (ARGS="--memory-mb 100 1000", LDDL_PYTHON=...)
	LDDL_PYTHON=$(call quote,$(LDDL_PYTHON)) $(BIN)/python -m bench.pipeline $(ARGS)

bench-trainer:  ## On a GPU host: measure speed and loss of transformers, our engine and product on the rows of DATA; ARGS="--render FILE..." writes bench/trainer.md
	python -m bench.trainer $(if $(DATA),$(call quote,$(DATA))) $(ARGS)

bench-learning:  ## On a GPU host: compare learning with transformers on the rows of DATA; ARGS="--render FOLDER" writes docs/LEARNING.md
	python -m bench.learning $(if $(DATA),$(call quote,$(DATA))) $(ARGS)

bench-evaluation:  ## On a GPU host: fine-tune ours, transformers' and a random BERT on tasks after the same minutes on DATA; ARGS=TASKS, their folder
	python -m bench.evaluation $(if $(DATA),$(call quote,$(DATA))) $(ARGS)

bench-finetuning: setup  ## Fine-tune MODEL on the tasks in DATA by trainer.finetune and by transformers' Trainer, and compare (ARGS="--device cpu")
	$(BIN)/python -m bench.finetuning $(if $(MODEL),$(call quote,$(MODEL))) $(if $(DATA),$(call quote,$(DATA))) $(ARGS)

cluster: setup  ## Write the files of clusters from the values that you fill in: clusters/SET.yaml (without SET: all; cluster/README.md)
	$(BIN)/python -m cluster.render $(if $(SET),$(call quote,$(SET))) $(ARGS)

check-cluster: setup  ## Check values and the files made from them, and show greatest prices (SET=..., ARGS=--ready before you start it)
	$(BIN)/python -m cluster.check $(if $(SET),$(call quote,$(SET))) $(ARGS)

images: setup  ## Build the container images that clusters/SET.yaml names (SET=..., ARGS="--build-arg ...")
	$(BIN)/python -m cluster.build_images $(if $(SET),$(call quote,$(SET))) $(ARGS)

test-images: setup  ## Install each image's packages into a clean environment and try them (minutes, gigabytes)
	$(BIN)/python -m cluster.try_images $(ARGS)

submit: setup  ## Run a job on a Ray cluster (CONFIG=my.yaml, KIND=train or preprocess, RAY_ADDRESS=http://head:8265)
	$(BIN)/python -m cluster.submit $(if $(JOB),--id $(call quote,$(JOB)),) $(call quote,$(KIND)) $(OUTSIDE_CONFIG) $(ARGS)

status: setup  ## Show the state of the submitted job JOB (without JOB: all jobs)
	$(BIN)/python -m cluster.submit $(if $(JOB),status $(call quote,$(JOB)),list)

logs: setup  ## Show the log of the submitted job JOB, and follow it until the job ends
	$(BIN)/python -m cluster.submit logs $(if $(JOB),$(call quote,$(JOB)))

stop: setup  ## Stop the submitted job JOB; it writes a checkpoint first
	$(BIN)/python -m cluster.submit stop $(if $(JOB),$(call quote,$(JOB)))

local-cluster: setup  ## Start a Ray head and two nodes on this machine, to try `make submit`
	$(BIN)/python -m cluster.local start

local-cluster-stop:  ## End the processes that `make local-cluster` started, and no others
	$(BIN)/python -m cluster.local stop

clean:  ## Remove caches and the sample's products; your own data/ and runs/ stay
	rm -rf data/sample data/sample-set runs/sample data/sample-ko data/sample-ko-set runs/sample-ko build .pytest_cache .mypy_cache .ruff_cache .hypothesis
