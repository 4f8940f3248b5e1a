"""Does a run of transformers for bench/learning.py in this process, and writes its curve (its losses) to FILE.

Usage: python -m bench.learning_transformers TASK FILE BEGUN [MODEL]
For equal steps, transformers reads our product's rows in the same order, eagerly. The rows of a step are sorted by
length and divided into PARTS parts, so that padding is short. For equal time, transformers is compiled and reads the
rows padded to the maximum length, in passes of PASS_ROWS rows. It is evaluated on the held-out rows and masks that our
product uses. A model that is trained for equal time is saved to the folder MODEL, if that is given.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.learning_tasks import PASS_ROWS, Curve, Task
from bench.transformers_bert import (
    Padded,
    Row,
    autocast_of,
    build_model,
    initial_state,
    loss_sums,
    pad,
    prefetch,
    rows_of,
    send,
    with_places,
)
from pipeline.dataset import TOKENIZER_FOLDER, read_manifest
from trainer.config import TrainerConfig
from trainer.data import MicroBatchStream, OpenPhase, Step, open_phases, resolve_phases, validation_plan
from trainer.engine import learning_rate
from trainer.engine.optimizers import build_optimizer
from trainer.model import to_batch
from trainer.train import make_masks

PARTS, MULTIPLE = 4, 64
"""For equal steps: the parts of a step, and the multiple of tokens to which each part is padded."""
LOOK = 8
"""Steps between two readings of the clock. Each reading waits for the device."""


class Prepared(NamedTuple):
    """One step's data on the CPU, in padded parts, with the counts by which the losses are divided."""

    parts: list[Padded]
    num_masked: int
    num_labelled: int


class Trainer:
    """Holds transformers' model and an optimizer with our parameter groups, learning rates and clipping."""

    def __init__(self, task: Task, *, config: TrainerConfig) -> None:
        self._task, self._config = task, config
        manifest, begun = read_manifest(task.data), time.perf_counter()
        state = initial_state(config.model, manifest=manifest, seed=task.seed)
        self.spared_s = time.perf_counter() - begun
        """Seconds to draw our initial weights. They do not count, because transformers alone would not need them."""
        self.model: Any = build_model(config.model, manifest=manifest, state=state, device=task.device)
        self._optimizer = build_optimizer(self.model, config=config.optimizer)
        self.step = 0

    def update(self, *, hours: float = 0.0) -> None:
        """Clip the gradients, and update the weights with the learning rate of the next step.

        `hours` is the time used. Learning rates depend on it only with max_hours.
        """
        self.step += 1
        nn.utils.clip_grad_norm_(self.model.parameters(), self._config.optimizer.clip_norm, foreach=True)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self._config, hours=hours)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def sums(self, padded: Padded) -> tuple[Tensor, Tensor]:
        """Return the sums of the masked-LM and the next-sentence losses, from an eager forward pass."""
        autocast = autocast_of(self._task.precision, device=self._task.device)
        return loss_sums(self.model, send(padded, self._task.device), autocast=autocast)

    @torch.no_grad()
    def evaluate(self, parts: list[Padded]) -> dict[str, Any]:
        """Return the masked-LM loss on the held-out rows, without dropout, and how many pairs and masked positions
        there are."""
        self.model.eval()
        totals = torch.stack([torch.stack(self.sums(part)).double() for part in parts]).sum(0).tolist()
        self.model.train()
        masked = sum(len(part["targets"]) for part in parts)
        pairs = sum(len(part["input_ids"]) for part in parts)
        return {"step": self.step, "mlm_loss": totals[0] / masked, "pairs": pairs, "masked": masked}


def train_steps(task: Task) -> Curve:
    """Do a run of equal steps. Return the losses of every step, {"mlm", "nsp"}, and the seconds that it took."""
    config = task.config()
    trainer, sums = Trainer(task, config=config), []
    start = time.perf_counter()
    for prepared in prefetch(prepare_steps(task, config=config)):
        total = torch.zeros(2, device=task.device)
        for part in prepared.parts:
            masked, pairs = trainer.sums(part)
            losses = torch.stack([masked / prepared.num_masked, pairs / max(1, prepared.num_labelled)])
            losses.sum().backward()  # type: ignore[no-untyped-call]
            total += losses.detach()
        trainer.update()
        sums.append(total)
    mlm, nsp = torch.stack(sums).double().cpu().unbind(1)
    return {"mlm": mlm.tolist(), "nsp": nsp.tolist(), "took_s": time.perf_counter() - start}


def prepare_steps(task: Task, *, config: TrainerConfig) -> Iterator[Prepared]:
    """Yield the steps that our product takes with this config, each in parts of rows of similar length."""
    pin = task.device == "cuda"
    for step, pairs in islice(read_rows(config), task.steps):
        rows = sorted(pairs, key=lambda row: len(row.input_ids))
        bounds = [len(rows) * part // PARTS for part in range(PARTS + 1)]
        parts = [rows[first:stop] for first, stop in pairwise(bounds) if first < stop]
        padded = [pad(part, length=_round_up(len(part[-1].input_ids))) for part in parts]
        yield Prepared([with_places(part, pin=pin) for part in padded], step.num_masked, step.num_labelled)


def train_for(task: Task, *, begun: float, model: str = "") -> Curve:
    """Do a run of equal time. Return "loss" (the sum of both losses, for each step), "evaluations" and times.

    Times are in seconds and count from the end of the first step. `begun` is the time at which the process was started,
    in seconds since the epoch. If `model` is given, the trained model is saved to this folder.
    """
    config = task.config()
    trainer, sums, evaluations = Trainer(task, config=config), [], []
    held_out = read_held_out(task, config=config)
    if task.device == "cuda":
        trainer.model.compile(dynamic=False)
    steps = prefetch(prepare_passes(task, config=config))
    start_up_s, start = time.time() - begun - trainer.spared_s, time.perf_counter()
    first = next(steps)
    tokens = count_tokens(first)
    sums.append(take_step(trainer, first, task=task, hours=0.0))
    synchronize(task.device)
    first_step_s = time.perf_counter() - start
    clock, due_s, start = 0.0, task.every_s, time.perf_counter()
    for parts in steps:
        hours = (clock + time.perf_counter() - start) / 3600
        sums.append(take_step(trainer, parts, task=task, hours=hours))
        tokens += count_tokens(parts)
        if trainer.step % LOOK and trainer.step < task.max_steps:
            continue
        synchronize(task.device)
        now = clock + time.perf_counter() - start
        is_over = now >= task.seconds or trainer.step >= task.max_steps
        if is_over or now >= due_s:
            evaluations.append({**trainer.evaluate(held_out), "time_s": now})
            print(evaluations[-1], flush=True)
            if is_over:
                break
            clock, due_s, start = now, task.every_s * (now // task.every_s + 1), time.perf_counter()
    steps.close()  # type: ignore[attr-defined]
    losses = torch.stack(sums).double().cpu().tolist()
    if model:
        save_model(trainer.model, data=task.data, folder=Path(model))
    costs = {"start_up_s": start_up_s, "first_step_s": first_step_s, "took_s": now, "tokens": tokens}
    return {"loss": losses, "evaluations": evaluations, **costs}


def save_model(model: Any, *, data: str, folder: Path) -> None:
    """Save a model of transformers with the tokenizer of a data set."""
    shutil.copytree(Path(data) / TOKENIZER_FOLDER, folder, dirs_exist_ok=True)
    model.save_pretrained(folder)


def count_tokens(parts: Sequence[Padded]) -> int:
    """Return the number of tokens of a step, without padding."""
    return sum(int(part["attention_mask"].sum()) for part in parts)


def take_step(trainer: Trainer, parts: list[Padded], *, task: Task, hours: float) -> Tensor:
    """Make one update, with the loss that transformers itself computes from the labels.

    `hours` is the time used. Return the loss, a tensor on the device.
    """
    total = torch.zeros((), device=task.device)
    for part in parts:
        with autocast_of(task.precision, device=task.device):
            output = trainer.model(**send(part, task.device))
        (output.loss / len(parts)).backward()
        total += output.loss.detach() / len(parts)
    trainer.update(hours=hours)
    return total


def prepare_passes(task: Task, *, config: TrainerConfig) -> Iterator[list[Padded]]:
    """Yield steps of `task.pairs` rows, in the order in which our product reads them. A step is a list of passes of
    PASS_ROWS rows."""
    rows = chain.from_iterable(rows for _, rows in read_rows(config))
    length = read_manifest(task.data).max_seq_length
    while True:
        taken = list(islice(rows, task.pairs))
        yield [
            pad(taken[first : first + PASS_ROWS], length=length, pin=task.device == "cuda")
            for first in range(0, task.pairs, PASS_ROWS)
        ]


def read_held_out(task: Task, *, config: TrainerConfig) -> list[Padded]:
    """Return the held-out rows that our product evaluates, in passes of PASS_ROWS rows."""
    opened = open_phase(config)
    plan = validation_plan(opened.manifest, shape=opened.shape.micro_batch, lanes=opened.shape.lanes)
    stream = MicroBatchStream(plan, task.data)
    rows = [row for step in stream.one_epoch() for row in lay_out(step, opened=opened)]
    stream.close()
    passes = [rows[first : first + PASS_ROWS] for first in range(0, len(rows), PASS_ROWS)]
    length = opened.manifest.max_seq_length
    return [with_places(pad(part, length=length), pin=task.device == "cuda") for part in passes]


def read_rows(config: TrainerConfig) -> Iterator[tuple[Step, list[Row]]]:
    """Yield our product's steps without end, each with its rows in order."""
    opened = open_phase(config)
    stream = MicroBatchStream(opened.plan, config.data, masks=make_masks(opened))
    try:
        while True:
            step = stream.next_step()
            yield step, lay_out(step, opened=opened)
    finally:
        stream.close()


def lay_out(step: Step, *, opened: OpenPhase) -> list[Row]:
    """Return the rows of a step."""
    shape, special = opened.shape.micro_batch, opened.manifest.special
    batches = (
        to_batch(micro_batch, shape=shape, special=special, constant_shapes=False)
        for micro_batch in step.micro_batches
        if micro_batch
    )
    return [row for batch in batches for row in rows_of(batch)]


def open_phase(config: TrainerConfig) -> OpenPhase:
    """Return the config's only phase (part of a run), with its data set opened."""
    (phase,) = open_phases(resolve_phases(config), manifests=[read_manifest(config.data)])
    return phase


def synchronize(device: str) -> None:
    """Wait until the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def main(text: str, path: str, begun: str, model: str = "") -> None:
    """Do the run that `text` describes (the result of Task.dump), and write its curve to `path`.

    `begun` is the time at which the process was started, in seconds since the epoch.
    """
    task = Task.load(text)
    torch.manual_seed(task.seed)
    curve = train_steps(task) if task.part == "steps" else train_for(task, begun=float(begun), model=model)
    Path(path).write_text(json.dumps(curve))


def _round_up(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE


if __name__ == "__main__":
    main(*sys.argv[1:])
