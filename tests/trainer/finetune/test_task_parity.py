"""From the weights of a transformers BERT with the same head: the same losses and gradients, for every head."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packed import padded_rows
from task_models import WORDS, make_config, write_model
from trainer.data import NO_LABEL
from trainer.finetune.batches import TaskBatch, pack
from trainer.finetune.config import FinetuneConfig
from trainer.finetune.features import Feature, Tokens
from trainer.finetune.heads import TaskModel, mean_loss
from trainer.finetune.loop import take_step
from trainer.finetune.ranks import Ranks
from trainer.finetune.rates import build_optimizer, freeze
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


def make_features(kind: str, *, vocabulary: int = VOCABULARY, seed: int = 1) -> list[Feature]:
    """Four examples; of answers all of one length, since transformers' softmax runs over [PAD] too. One question has no
    answer."""
    generator = torch.Generator().manual_seed(seed)
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
            target = (number, number + 3) if number else (0, 0)
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


class OneOfSeveral(Ranks):
    """A rank in a process that takes the parts of all ranks one after another. The last rank makes the update."""

    def __init__(self, rank: int, world_size: int, grads: list[list[Tensor]]) -> None:
        super().__init__(rank, world_size)
        self._grads = grads

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        own = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        self._grads.append(own)
        if self.rank + 1 < self.world_size:
            raise InterruptedError
        for parameter, *parts in zip(parameters, *self._grads, strict=True):
            parameter.grad = torch.stack(parts).sum(0)

    def sum(self, values: Sequence[float], *, device: torch.device) -> list[float]:
        return list(values)


def take_steps(model: TaskModel, *, batches: Sequence[list[Feature]], config: FinetuneConfig, world: int) -> None:
    """The updates of the fine-tuning itself."""
    schedule = config.pretraining(num_steps=len(batches), model=model.bert.config)
    freeze(model, config=config.optimizer)
    optimizer = build_optimizer(model, config=config.optimizer)
    for step, features in enumerate(batches, 1):
        grads: list[list[Tensor]] = []
        for rank in range(world):
            with suppress(InterruptedError):
                take_step(
                    model, features=features, optimizer=optimizer, step=step, config=config, schedule=schedule,
                    ranks=OneOfSeveral(rank, world, grads) if world > 1 else Ranks(),
                )  # fmt: skip


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_transformers_and_torch(kind: Any, world: int, tmp_path: Path) -> None:
    """AdamW by the published formulas: rates by layer, a rate of the head, a frozen layer, decay of matrices, gradients
    clipped, warm-up and fall; the losses of all steps, and the weights after them."""
    model, other = load_both(kind, tmp_path)
    head = HEADS.get(kind, "classifier")
    rate, head_rate, layer_decay, weight_decay, clip = 2e-3, 8e-3, 0.5, 0.1, 0.2
    shares = [1.0, 1.0, 0.75, 0.5, 0.25]  # warm-up of one step of five, then to zero after the last
    optimizer = {
        "learning_rate": rate, "head_learning_rate": head_rate, "layer_decay": layer_decay, "frozen_layers": 1,
        "weight_decay": weight_decay, "clip_norm": clip, "epsilon": 1e-3,
    }  # fmt: skip
    config = make_config("sst2", model=tmp_path, data=tmp_path, output=tmp_path, optimizer=optimizer,
                         schedule={"warmup_steps": 1})  # fmt: skip
    batches = [make_features(kind, seed=step) for step in range(len(shares))]
    take_steps(model, batches=batches, config=config, world=world)

    groups = []
    for name, parameter in other.named_parameters():
        if name.startswith(("bert.embeddings.", "bert.encoder.layer.0.")):
            continue
        peak = rate * (layer_decay if name.startswith("bert.encoder.layer.1.") else 1.0)
        peak = head_rate if name.startswith(head) else peak
        decay = weight_decay if parameter.dim() > 1 else 0.0
        groups.append({"params": [parameter], "lr": peak, "weight_decay": decay, "peak": peak})
    theirs = torch.optim.AdamW(groups, betas=(0.9, config.optimizer.beta2), eps=1e-3)
    learning = [group["params"][0] for group in groups]
    for share, features in zip(shares, batches, strict=True):
        batch = pack(features, kind=kind, device=torch.device("cpu"))
        other.zero_grad()
        expected_loss(other, kind=kind, batch=batch).backward()  # type: ignore[no-untyped-call]
        assert torch.nn.utils.clip_grad_norm_(learning, clip) > clip
        for group in theirs.param_groups:
            group["lr"] = group["peak"] * share
        theirs.step()
    wanted = dict(other.named_parameters())
    start = dict(load_both(kind, tmp_path / "start")[0].named_parameters())
    for name, parameter in model.named_parameters():
        names = [f"{head}.{name.partition('.')[2]}"]
        if not name.startswith("head."):
            names = list(transformers_names(name.removeprefix("bert."), norm="post"))
        value = torch.cat([wanted[each] for each in names])
        torch.testing.assert_close(parameter[: value.shape[0]], value, rtol=1e-5, atol=1e-6, msg=name)
        if (kind, name) == ("choice", "head.bias"):
            continue  # it moves the logits of all choices alike, so its gradient is 0 or what rounding leaves
        frozen = name.startswith(("bert.embeddings.", "bert.encoder.layers.0."))
        assert torch.equal(parameter, start[name]) == frozen, name
    batch = pack(batches[0], kind=kind, device=torch.device("cpu"))
    torch.testing.assert_close(
        mean_loss(model(batch), kind=kind, batch=batch), expected_loss(other, kind=kind, batch=batch), rtol=1e-5,
        atol=1e-5,
    )  # fmt: skip


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
