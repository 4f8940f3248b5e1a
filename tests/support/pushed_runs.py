"""Pushes of runs to hub_server: what is said of refused ones, and whether what the hub holds loads."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch

from hub_server import OWNER, Hub, refusal_of
from trainer import push
from trainer.export import export
from trainer.export.folder import MARKER

REPOSITORY = f"{OWNER}/bert"
fails = partial(refusal_of, push.main)


def check_loads(hub: Hub, folder: Path, *, revision: str, step: int, run: Path) -> None:
    """What the hub holds is a local export of the step, as transformers loads it."""
    pushed = hub.model().write_to(folder / revision, revision)
    export(run, out=folder / f"{revision}-local", step=step)
    import transformers

    ours, theirs = (
        transformers.AutoModelForPreTraining.from_pretrained(each) for each in (folder / f"{revision}-local", pushed)
    )
    for (name, first), (_, second) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.equal(first, second), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(pushed)
    assert tokenizer("t104")["input_ids"] == [101, 104, 102]
    assert json.loads((pushed / MARKER).read_text())["step"] == step


def report_of(folder: Path, *, model: Path) -> Path:
    """The report that trainer.finetune writes of two tasks."""
    from trainer.finetune.report import Row, write_report

    rows = [
        Row("sst2", "sst2", "classification", "batch 32", "accuracy", 0.91, 0.93, (0.9, 0.91, 0.93), {}, 0.51,
            {"train": 67_349, "dev": 872}, False),
        Row("cola-x|y", "cola", "classification", "batch 16", "matthews", 0.4, 0.4, (0.4,), {"accuracy": 0.8}, 0.0,
            {"train": 10, "dev": 5}, True),
        Row("cola-x|y", "cola", "classification", "batch 32", "matthews", 0.3, 0.3, (0.3,), {"accuracy": 0.7}, 0.0,
            {"train": 10, "dev": 5}, True),
    ]  # fmt: skip
    folder.mkdir()
    write_report(folder, rows=rows, model=str(model), left_out=())
    return folder
