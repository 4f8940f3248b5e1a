"""Writes a fine-tuned model as a transformers folder, which AutoModelFor... and pipeline() load as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from safetensors.torch import save
from torch import Tensor

from pipeline import storage
from pipeline.dataset import TOKENIZER_FILES
from pipeline.storage import Location, locate
from trainer.finetune.examples import Kind
from trainer.finetune.heads import TaskModel
from trainer.hf import CONFIG_FILE, WEIGHTS_FILE, to_transformers, transformers_config

MODEL_NAME = "model"
_ARCHITECTURES: dict[Kind, str] = {
    "classification": "BertForSequenceClassification",
    "pair": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "qa": "BertForQuestionAnswering",
    "choice": "BertForMultipleChoice",
}
_PROBLEMS: dict[Kind, str] = {
    "classification": "single_label_classification",
    "pair": "single_label_classification",
    "regression": "regression",
}


def name_head(kind: Kind) -> str:
    """Return transformers' name of the head of a kind of task."""
    return "qa_outputs" if kind == "qa" else "classifier"


def save_model(model: TaskModel, *, source: Location, target: Location, pad: int, labels: Sequence[str]) -> None:
    """Write weights, config and the tokenizer files of `source`, the pretrained model's folder, to `target`.

    `pad` is the id of [PAD]. `labels` are the classes in the order of their numbers; none for kinds without classes.
    """
    options: dict[str, Any] = {"vocabulary_size": model.bert.vocabulary_size}
    own = {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}
    bert = {name.removeprefix("bert."): value for name, value in own.items() if name.startswith("bert.")}
    tensors: dict[str, Tensor] = to_transformers(bert, norm=model.bert.config.norm, **options)
    head = name_head(model.kind)
    tensors |= {f"{head}.{leaf}": own[f"head.{leaf}"].contiguous() for leaf in ("weight", "bias")}
    settings = transformers_config(model.bert.config, pad=pad, **options)
    prefix = "Megatron" if model.bert.config.norm == "pre" else ""
    settings["architectures"] = [prefix + _ARCHITECTURES[model.kind]]
    names = labels or [f"LABEL_{number}" for number in range(model.head.out_features)]
    settings["id2label"] = {str(number): name for number, name in enumerate(names)}
    settings["label2id"] = {name: number for number, name in enumerate(names)}
    if model.kind in _PROBLEMS:
        settings["problem_type"] = _PROBLEMS[model.kind]
    for name in TOKENIZER_FILES:
        if storage.find_file(locate(source, name)) is not None:
            storage.write_bytes(storage.join(target, name), storage.read_bytes(locate(source, name)))
    storage.write_bytes(storage.join(target, WEIGHTS_FILE), save(tensors, metadata={"format": "pt"}))
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    storage.write_bytes(storage.join(target, CONFIG_FILE), text.encode("utf-8"))
