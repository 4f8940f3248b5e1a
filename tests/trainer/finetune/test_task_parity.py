"""From the weights of a transformers BERT with the same head: the same losses and gradients, for every head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packed import padded_rows
from task_models import WORDS, write_model
from trainer.data import NO_LABEL
from trainer.finetune.batches import TaskBatch, pack
from trainer.finetune.features import Feature, Tokens
from trainer.finetune.heads import TaskModel, mean_loss
from trainer.finetune.save import save_model
from trainer.hf import read_model
from trainer.hf.weight_names import transformers_names

transformers = pytest.importorskip("transformers")

VOCABULARY, CLASSES, STEPS = 200, 3, 3
KINDS = {
    "classification": "BertForSequenceClassification",
    "pair": "BertForSequenceClassification",
    "regression": "BertForSequenceClassification",
    "tagging": "BertForTokenClassification",
    "qa": "BertForQuestionAnswering",
    "choice": "BertForMultipleChoice",
}
HEADS = {"qa": "qa_outputs"}


def make_features(kind: str, *, vocabulary: int = VOCABULARY) -> list[Feature]:
    """Four examples; of answers all of one length, since transformers' softmax runs over [PAD] too."""
    generator = torch.Generator().manual_seed(1)
    lengths = [12] * 4 if kind == "qa" else [5, 12, 9, 20]

    def row(length: int) -> Tokens:
        ids = torch.randint(5, vocabulary, (length,), generator=generator).tolist()
        return Tokens(tuple(ids), length if kind in ("classification", "tagging") else length // 2)

    features = []
    for number, length in enumerate(lengths):
        rows = tuple(row(length + extra) for extra in range(4)) if kind == "choice" else (row(length),)
        target: Any = number % CLASSES
        if kind == "regression":
            target = 0.5 * number
        elif kind == "tagging":
            target = tuple(NO_LABEL if place % 3 == 0 else place % CLASSES for place in range(length))
        elif kind == "qa":
            target = (number, number + 3)
        features.append(Feature(number, rows, target))
    return features


def expected_loss(other: Any, *, kind: str, batch: TaskBatch) -> Tensor:
    rows = padded_rows(batch.tokens)
    if kind == "choice":
        rows = {name: value.view(batch.num_features, -1, value.shape[-1]) for name, value in rows.items()}
    if kind == "qa":
        labels = {"start_positions": batch.targets[:, 0], "end_positions": batch.targets[:, 1]}
    elif kind == "tagging":
        padded = torch.full_like(rows["input_ids"], -100)
        padded[rows["attention_mask"].bool()] = batch.targets.where(batch.targets != NO_LABEL, -100)
        labels = {"labels": padded}
    else:
        labels = {"labels": batch.targets}
    loss: Tensor = other(**rows, **labels).loss
    return loss


def load_both(kind: str, folder: Path) -> tuple[TaskModel, Any]:
    torch.manual_seed(0)
    classes = {"regression": 1, "choice": 1, "qa": 2}.get(kind, CLASSES)
    settings = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.06, num_labels=classes,
    )  # fmt: skip
    transformers.BertForPreTraining(settings).save_pretrained(folder)
    model = TaskModel(read_model(folder)[0], kind=kind, num_outputs=classes, seed=5)
    other = getattr(transformers, KINDS[kind]).from_pretrained(folder, num_labels=classes).train()
    with torch.no_grad():
        head = getattr(other, HEADS.get(kind, "classifier"))
        head.weight.copy_(model.head.weight.mul_(5.0))
        head.bias.copy_(model.head.bias.normal_(std=0.1))
    return model.train(), other


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_steps_are_those_of_transformers(kind: Any, tmp_path: Path) -> None:
    """fp32, dropout off, plain descent at a rate that moves the loss; measured: below 1e-6."""
    model, other = load_both(kind, tmp_path)
    batch = pack(make_features(kind), kind=kind, device=torch.device("cpu"))
    head = HEADS.get(kind, "classifier")
    theirs = dict(other.named_parameters())
    mine = {
        name: [f"{head}.{name.partition('.')[2]}"]
        if name.startswith("head.")
        else list(transformers_names(name.removeprefix("bert."), norm="post"))
        for name, _ in model.named_parameters()
    }
    assert sorted(name for names in mine.values() for name in names) == sorted(theirs)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (model, other)]
    losses = []
    for _ in range(STEPS):
        loss = mean_loss(model(batch), kind=kind, batch=batch)
        expected = expected_loss(other, kind=kind, batch=batch)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
        for optimizer, value in zip(optimizers, (loss, expected), strict=True):
            optimizer.zero_grad()
            value.backward()
        for name, parameter in model.named_parameters():
            wanted = torch.cat([theirs[target].grad for target in mine[name]])
            assert parameter.grad is not None, name
            found = parameter.grad[: wanted.shape[0]]
            assert (found - wanted).norm() <= 1e-5 * wanted.norm() + 1e-6, name
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert abs(losses[-1] - losses[0]) > 1e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_what_was_saved(kind: Any, norm: str, tmp_path: Path) -> None:
    """The class that config.json names, with no missing key, and the same loss; pre-LN is megatron-bert."""
    source = write_model(tmp_path / "source", norm=norm)
    labels = (
        tuple(f"class {number}" for number in range(CLASSES)) if kind in ("classification", "pair", "tagging") else ()
    )
    outputs = {"regression": 1, "choice": 1, "qa": 2}.get(kind, CLASSES)
    model = TaskModel(read_model(source)[0], kind=kind, num_outputs=outputs, seed=5).eval()
    save_model(model, source=source, target=tmp_path / "saved", pad=0, labels=labels)
    settings = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    cls = getattr(transformers, settings.architectures[0])
    assert cls.__name__ == ("Megatron" if norm == "pre" else "") + KINDS[kind]
    other, report = cls.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    if labels:
        assert other.config.id2label == dict(enumerate(labels))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved").tokenize("goodly") == ["good", "##ly"]
    batch = pack(make_features(kind, vocabulary=len(WORDS)), kind=kind, device=torch.device("cpu"))
    found = mean_loss(model(batch), kind=kind, batch=batch)
    torch.testing.assert_close(found, expected_loss(other.eval(), kind=kind, batch=batch), rtol=1e-5, atol=1e-5)
