"""The runs of bench/learning.py: what each trains, and the file that its curve is kept in.

Names are steps-ours-SEED, steps-transformers-SEED, whole-ours-SEED, resume-ours-SEED, time-SIZE-ours and
time-SIZE-transformers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from pipeline.dataset import read_manifest
from trainer.config import TrainerConfig

Curve: TypeAlias = dict[str, Any]
"""What a run leaves: `describe_run` and, for each step, "mlm" and "nsp" in nats. Runs by time have "loss" (the sum of
both), "evaluations" ([{"step", "time_s", "mlm_loss", "pairs", "masked"}]), "start_up_s" and "first_step_s"."""

SEEDS = (1, 2, 3)
STEPS, STEPS_RATE, STEPS_WARM_UP = 2_500, 1e-3, 0.05
"""Of equal steps: their number, the peak rate, and the share that warms up; then the rate falls linearly to 0."""
TOKENS = 32_768
"""A step's, at most."""
WARM_UP_STEPS = {"base": 200, "large": 400}
"""Of equal time, by size; then the rate stays. BERT-Large's loss jumps for single steps after 200."""
RATES = {"base": 2e-4, "large": 5e-5}
EVERY_STEPS = {"base": 90, "large": 35}
"""Steps of ours between evaluations, some five seconds of an H200 at 590,000 and 230,000 tokens/s."""
PASS_ROWS = 64
"""Of equal time: rows of a pass of transformers."""
NEVER = 1_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """One run."""

    part: Literal["steps", "whole", "resume", "time"]
    """resume is stopped halfway and goes on, whole is not; both with deterministic kernels."""
    who: Literal["ours", "transformers"]
    data: str
    seed: int
    size: str
    device: str = "cuda"
    precision: str = "bf16"
    launcher: str = "processes"
    tokens: int = TOKENS
    steps: int = STEPS
    """Of equal steps."""
    rate: float = STEPS_RATE
    seconds: float = 0.0
    """Of equal time: how long it trains."""
    every_steps: int = NEVER
    """Of equal time: steps of ours between evaluations."""
    every_s: float = 30.0
    """Of equal time: seconds between evaluations of transformers."""
    pairs: int = 128
    """Of equal time: pairs of a step of transformers."""
    dropout: float = 0.1

    @property
    def name(self) -> str:
        """Names its files."""
        return f"time-{self.size}-{self.who}" if self.part == "time" else f"{self.part}-{self.who}-{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Of trainer/run.py, all but the output. transformers' run takes rows, rate and optimizer from the same."""
        of_part: dict[str, Any] = {"schedule": {"name": "linear", "warmup_fraction": STEPS_WARM_UP}}
        if self.part == "time":
            of_part["schedule"] = {"name": "constant", "warmup_steps": WARM_UP_STEPS.get(self.size, 200)}
            of_part["evaluation"] = {"every_steps": self.every_steps, "max_pairs": None}
        return {
            "data": self.data,
            "model": {"size": self.size, "dropout": self.dropout, "attention_dropout": self.dropout},
            "batch": {"tokens": self.tokens, "lanes": 1, "tokens_per_slot": self.tokens},
            "max_steps": NEVER if self.part == "time" else self.steps,
            "device": self.device,
            "precision": self.precision,
            "launcher": self.launcher,
            "seed": self.seed,
            "optimizer": {"learning_rate": self.rate},
            "checkpoint": {"every_steps": NEVER},
            "logging": {"tracker": "none"},
            "deterministic": self.part in ("whole", "resume"),
            **of_part,
        }

    def config(self) -> TrainerConfig:
        """The settings, checked."""
        return TrainerConfig.model_validate({**self.settings(), "output": "unused"})

    def dump(self) -> str:
        """As `load` takes it."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Task:
        """The task that `dump` wrote."""
        return cls(**json.loads(text))


def list_tasks(
    data: str,
    *,
    sizes: Sequence[str],
    size: str = "small",
    minutes: float = 3.0,
    every_steps: int | None = None,
    launcher: str = "processes",
    **changes: Any,
) -> Iterator[Task]:
    """All runs, the longest first: equal steps, the resumed run and its like, equal time of each of `sizes`.

    `every_steps` and `launcher` are of equal time; `changes` of every task.
    """
    for seed in SEEDS:
        yield Task("steps", "transformers", data, seed, size, **changes)
    for seed in SEEDS:
        yield Task("steps", "ours", data, seed, size, **changes)
    yield Task("whole", "ours", data, SEEDS[0], size, **changes)
    yield Task("resume", "ours", data, SEEDS[0], size, **changes)
    for size in sizes:
        timed = Task(
            "time",
            "ours",
            data,
            SEEDS[0],
            size,
            launcher=launcher,
            rate=RATES.get(size, STEPS_RATE),
            seconds=60 * minutes,
            every_steps=every_steps or EVERY_STEPS.get(size, 1),
            **changes,
        )
        yield timed
        yield replace(timed, who="transformers")


def derive_pairs(data: str, *, tokens: int) -> int:
    """Pairs of whole passes of transformers, at least one, nearest to those of `tokens` tokens."""
    manifest = read_manifest(data)
    pairs = tokens * manifest.num_rows("train") / manifest.num_tokens("train")
    return PASS_ROWS * max(1, round(pairs / PASS_ROWS))


def describe_run(task: Task, *, card: str) -> Curve:
    """What is known of a run before it begins; `settings` without the data set's place."""
    manifest = read_manifest(task.data)
    settings = {key: value for key, value in task.settings().items() if key != "data"}
    return {
        "name": task.name,
        "part": task.part,
        "who": task.who,
        "seed": task.seed,
        "size": task.size,
        "card": card,
        "torch": torch.__version__,
        "transformers": find_version("transformers"),
        "date": str(date.today()),
        "data": {
            "name": Path(task.data).name,
            "hash": manifest.hash,
            "tokens": manifest.num_tokens("train"),
            "rows": manifest.num_rows("train"),
            "held_out": manifest.num_rows("validation"),
        },
        "settings": settings,
        "seconds": task.seconds,
        "pairs": task.pairs,
    }


def find_version(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def curve_path(folder: Path, name: str) -> Path:
    """Where the curve of a run is."""
    return folder / f"{name}.json"


def write_curve(folder: Path, curve: Curve) -> None:
    """Whole or not at all."""
    path = curve_path(folder, curve["name"])
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(curve) + "\n")
    os.replace(partial, path)


def read_curves(folder: Path) -> dict[str, Curve]:
    """All curves by name. ValueError names a file that holds none."""
    curves = {}
    for path in sorted(folder.glob("*.json")):
        try:
            curve = json.loads(path.read_text())
            curves[curve["name"]] = curve
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: is no curve of bench.learning ({error!r}); remove it") from error
    return curves
