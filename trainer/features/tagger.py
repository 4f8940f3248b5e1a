"""Tags by frozen vectors: `python -m trainer.features.tagger --task T --model EXPORT --data DIR --output DIR`.

A BiLSTM and a dense layer are trained on the vectors of a model that stays as it is, once for each choice of layers, as
in table 7 of Devlin et al. 2019 (F1 on CoNLL-2003: 96.1 on the last four layers concatenated, 96.4 fine-tuned). Every
epoch computes the vectors anew, since those of a training set would take gigabytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from pipeline import draws, storage
from pipeline.console import Say, command, exit_with, say_at_once
from pipeline.settings import ConfigError, Settings, describe, load_settings, refuse_flags, split_arguments
from pipeline.storage import expand_path, locate
from trainer.data import NO_LABEL
from trainer.features.layers import hidden_states
from trainer.finetune import (
    Columns,
    Feature,
    FinetuneConfig,
    TaskBatch,
    TextEncoder,
    check_libraries,
    draw_order,
    find_labels,
    find_task,
    guess_majority,
    make_features,
    pack,
    pick_device,
    read_splits,
    score,
    slice_evenly,
    to_tags,
)
from trainer.hf import read_longest, read_model
from trainer.model import BertForPretraining, initialize_weights

PROGRAM = "python -m trainer.features.tagger"
HELP = f"""usage: {PROGRAM} --task TASK --model EXPORT --data DIR --output DIR [--config FILE] [key.sub=value ...]

Trains a BiLSTM on vectors of a model that is not trained, once for each choice of layers, and prints a table.
The tasks are the tagging tasks of `python -m trainer.finetune --help`.

Settings:
"""
_KEYS = ("task", "model", "data", "output")
CHOICES = ("embeddings", "second to last", "last", "last four summed", "last four concatenated", "all, weighted")
"""Rows of the paper's table; in `all, weighted` the weights of the layers are learned."""
REPORT_NAME, JSON_NAME = "layers.md", "layers.json"

Positive = Annotated[int, Field(ge=1, lt=2**31)]


class TaggerConfig(Settings):
    """The settings of a table of layers."""

    task: str
    """A tagging task: conll2003, wnut17, ud-pos, klue-ner, or tagging with `columns`."""
    model: str
    """Folder of an export, or of a BERT saved by transformers; a path or URL."""
    data: str
    """Folder of the task's files; a path or URL."""
    output: str
    """Folder for layers.md and layers.json."""
    columns: Columns = Columns()
    """Of a task of your own."""
    width: Positive = 768
    """Width of the BiLSTM, both directions together."""
    num_layers: Positive = 2
    """Layers of the BiLSTM."""
    epochs: Positive = 10
    """Passes over the training examples."""
    batch_size: Positive = 32
    """Sentences of a step."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    """Adam's rate, which falls to zero linearly."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Longest row in tokens; longer sentences go on in another row."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 12_345
    """Seed of the BiLSTM and the order."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""


class Tagger(nn.Module):
    """A BiLSTM and a dense layer on the vectors of chosen layers of a frozen model."""

    def __init__(self, bert: BertForPretraining, *, choice: str, num_labels: int, config: TaggerConfig) -> None:
        super().__init__()
        self._bert = [bert]  # in a list, so that it is no part of this module
        self.choice = choice
        count = bert.config.num_layers + 1
        width = bert.config.width * (min(4, count - 1) if choice == "last four concatenated" else 1)
        self.mix = nn.Parameter(torch.zeros(count), requires_grad=choice == "all, weighted")
        self.lstm = nn.LSTM(width, config.width // 2, config.num_layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * (config.width // 2), num_labels)
        initialize_weights(self.head, seed=config.seed)

    def forward(self, batch: TaskBatch) -> Tensor:
        """Return logits, [T, labels]."""
        with torch.no_grad():
            states = hidden_states(self._bert[0], batch.tokens)
        lengths = batch.tokens.offsets.diff().tolist()
        rows = nn.utils.rnn.pack_sequence(list(torch.split(self._choose(states), lengths)), enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(rows)[0], batch_first=True)
        kept = [row[:length] for row, length in zip(padded, lengths, strict=True)]
        return self.head(torch.cat(kept))  # type: ignore[no-any-return]

    def _choose(self, states: list[Tensor]) -> Tensor:
        if self.choice == "embeddings":
            return states[0]
        if self.choice == "second to last":
            return states[-2]
        if self.choice == "last":
            return states[-1]
        if self.choice == "all, weighted":
            return torch.einsum("l,ltw->tw", torch.softmax(self.mix, 0), torch.stack(states))
        four = states[1:][-4:]
        return torch.stack(four).sum(0) if self.choice == "last four summed" else torch.cat(four, -1)


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 done, 2 refused."""
    words = split_arguments(sys.argv[1:] if arguments is None else arguments, program=PROGRAM, keys=_KEYS)
    refuse_flags(words.flags, program=PROGRAM, known=[f"--{key}=" for key in _KEYS])
    if "--help" in words.flags:
        print(HELP + describe(TaggerConfig))
        return 0
    config = load_settings(TaggerConfig, file=words.file, overrides=words.overrides)
    paths = {key: expand_path(getattr(config, key), key=key) for key in ("model", "data", "output")}
    compare_layers(config.model_copy(update=paths), say=say_at_once)
    return 0


def compare_layers(config: TaggerConfig, *, say: Say) -> dict[str, float]:
    """Train a tagger for each choice of layers, and write and return the metric on dev by choice.

    Raises ValueError (ConfigError, TaskDataError, PretrainedError) that names what is wrong.
    """
    check_libraries()
    task = find_task(config.task, columns=config.columns)
    if task.kind != "tagging":
        raise ConfigError(
            f"task={config.task}: is no tagging task; give conll2003, wnut17, ud-pos, klue-ner or tagging"
        )
    own = FinetuneConfig(task=config.task, model=config.model, data=config.data, output=config.output,
                         columns=config.columns)  # fmt: skip
    splits = read_splits(task, config=own, say=say)
    labels, dev = find_labels(task, examples=splits.train), splits.evaluated["dev"]
    encoder = TextEncoder(config.model, max_length=min(config.max_length, read_longest(locate(config.model))))
    train, held_out = (
        make_features(examples, encoder=encoder, labels=labels, stride=1) for examples in (splits.train, dev)
    )
    device = pick_device(config.device)
    bert = read_model(config.model)[0].to(device)
    metric, found = task.metrics[0], {}
    for choice in CHOICES:
        torch.manual_seed(draws.key(config.seed, "tagger") >> 1)
        tagger = Tagger(bert, choice=choice, num_labels=len(labels), config=config).to(device)
        _train(tagger, features=train, config=config)
        logits = _predict(tagger, features=held_out, batch_size=config.batch_size)
        tags = to_tags(logits, features=held_out, examples=dev, labels=labels)
        found[choice] = score(task, examples=dev, predictions=tags)[metric]
        say(f"{choice}: {metric} {found[choice]:.4f}")
    guessed = guess_majority(task, train=splits.train, examples=dev)
    assert guessed is not None
    guess = score(task, examples=dev, predictions=guessed)[metric]
    lines = [f"| layers | {metric} of dev, percent |", "|---|---|"]
    lines += [f"| {choice} | {100 * value:.1f} |" for choice, value in (*found.items(), ("guessing", guess))]
    storage.make_folder(config.output)
    storage.write_bytes(storage.join(config.output, REPORT_NAME), ("\n".join(lines) + "\n").encode())
    tree = {"task": config.task, "metric": metric, "layers": found, "guessing": guess}
    storage.write_bytes(storage.join(config.output, JSON_NAME), (json.dumps(tree, indent=1) + "\n").encode())
    best = max(found, key=lambda choice: found[choice])
    say(json.dumps({"task": config.task, "metric": metric, "value": found[best], "layers": best}))
    return found


def _train(tagger: Tagger, *, features: Sequence[Feature], config: TaggerConfig) -> None:
    optimizer = torch.optim.Adam([each for each in tagger.parameters() if each.requires_grad], lr=config.learning_rate)
    num_steps = config.epochs * -(-len(features) // config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / num_steps)
    tagger.train()
    for epoch in range(config.epochs):
        order = draw_order(len(features), seed=config.seed, epoch=epoch)
        for part in slice_evenly([features[number] for number in order], size=config.batch_size):
            batch = pack(part, kind="tagging", device=tagger.head.weight.device)
            loss = F.cross_entropy(tagger(batch), batch.targets, ignore_index=NO_LABEL)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


@torch.no_grad()
def _predict(tagger: Tagger, *, features: Sequence[Feature], batch_size: int) -> list[Any]:
    tagger.eval()
    found: list[Any] = []
    for part in slice_evenly(features, size=batch_size):
        logits = tagger(pack(part, kind="tagging", device=tagger.head.weight.device)).float().cpu()
        found.extend(each.numpy() for each in torch.split(logits, [len(feature.rows[0].ids) for feature in part]))
    return found


if __name__ == "__main__":
    exit_with(main())
