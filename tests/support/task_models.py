"""A small model folder with a tokenizer, as an export is, and files of tasks that it can learn in seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pipeline.tokenizer.tokenizer import WordTokenizer
from trainer.config import ModelConfig
from trainer.finetune import FinetuneConfig
from trainer.hf import to_transformers, transformers_config
from trainer.model import BertForPretraining

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD = ["good", "fine", "great"], ["bad", "poor", "awful"]
FILLER = ["the", "film", "was", "plot", "then", "and", "it", "so"]
NAMES = ["kim", "lee", "park"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["##ly", "##ed", "'", ".", "un", "##known", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
WORDS = [*SPECIAL, *GOOD, *BAD, *FILLER, *NAMES, *PIECES]


def write_model(
    folder: Path,
    *,
    words: Sequence[str] = WORDS,
    norm: str = "post",
    pooler: bool = True,
    lowercase: bool = True,
    dropout: float = 0.0,
    objective: str = "masked_next_sentence",
) -> Path:
    """Weights three times as large as at the start, so that a small head sees differences; max_positions 64."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    WordTokenizer.from_path(folder / "vocab.txt", lowercase=lowercase).save(folder)
    shape = {"size": "tiny", "norm": norm, "max_positions": 64, "objective": objective}
    config = ModelConfig.model_validate({**shape, "dropout": dropout, "attention_dropout": dropout})
    model = BertForPretraining(config, vocabulary_size=len(words), seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    options: dict[str, Any] = {"vocabulary_size": len(words), "pair_heads": pooler}
    tensors = to_transformers(dict(model.named_parameters()), norm=norm, **options)
    save_file({name: tensor.detach() for name, tensor in tensors.items()}, folder / "model.safetensors")
    settings = transformers_config(config, pad=0, **options)
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def make_config(task: str, *, model: Path, data: Path, output: Path, **settings: Any) -> FinetuneConfig:
    """A run of a few steps at a high rate."""
    tree = {"optimizer": {"learning_rate": 5e-4}, "batch_size": 8, "epochs": 8.0, **settings}
    return FinetuneConfig.model_validate(
        {"task": task, "model": str(model), "data": str(data), "output": str(output), **tree}
    )


def assert_same_run(one: Path, other: Path) -> None:
    """The weights, records of steps and results of two outputs are the same, bit for bit."""
    for name in ("model/model.safetensors", "metrics.jsonl", "result.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def write_tsv(path: Path, *, names: Sequence[str] | None, rows: Sequence[Sequence[object]]) -> None:
    """A file as GLUE has them."""
    lines = [*([names] if names is not None else []), *rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")


def write_opinions(folder: Path, *, count: int = 48) -> None:
    """SST-2's files: a sentence is positive if it holds a word of GOOD."""
    rows = [
        (f"the film was {(GOOD if number % 2 else BAD)[number % 3]} {FILLER[number % 7]}", number % 2)
        for number in range(count)
    ]
    write_tsv(folder / "train.tsv", names=["sentence", "label"], rows=rows)
    write_tsv(folder / "dev.tsv", names=["sentence", "label"], rows=[(f"{text} .", label) for text, label in rows])
    write_tsv(folder / "test.tsv", names=["index", "sentence"], rows=[(n, text) for n, (text, _) in enumerate(rows)])
