"""The runs of bench/learning.py: what each run trains, and the file that holds its curve (its losses).

A run is named steps-ours-SEED, steps-transformers-SEED, whole-ours-SEED, resume-ours-SEED, time-SIZE-ours,
time-SIZE-transformers or recipe-RECIPE. `steps` stands for the comparison with equal steps, and `time` for the one with
equal time. `whole` and `resume` are two equal runs, but `resume` is stopped halfway and started again. `recipe` is one
of the recipes of bench/learning_recipes.py, which are compared with each other.
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

from bench.learning_recipes import RECIPES, join, settings_of
from pipeline.dataset import read_manifest
from trainer.config import TrainerConfig

Curve: TypeAlias = dict[str, Any]
"""What a run leaves: the entries of `describe_run`, and for each step the losses "mlm" and "nsp" in nats. A run of
transformers for equal time has "loss" (the sum of both) instead. Runs of equal time also have "evaluations" ([{"step",
"time_s", "mlm_loss", "pairs", "masked"}]), "start_up_s" and "first_step_s"."""

SEEDS = (1, 2, 3)
STEPS, STEPS_RATE, STEPS_WARM_UP = 2_500, 1e-3, 0.05
"""For equal steps: the number of steps, the peak learning rate, and the share of the steps in which the rate rises to
the peak. Then the rate falls linearly to 0."""
TOKENS = 32_768
"""The maximum number of tokens of a step."""
WARM_UP_STEPS = {"base": 200, "large": 400}
"""For equal time, by model size: the steps in which the learning rate rises. Then it stays. With 200 steps,
BERT-Large's loss jumps in single steps."""
RATES = {"base": 2e-4, "large": 5e-5}
EVERY_STEPS = {"base": 90, "large": 35}
"""Our steps between evaluations, by model size. On an H200 they take about five seconds, at 590,000 and 230,000
tokens/s."""
PASS_ROWS = 64
"""For equal time: rows in a forward and backward pass of transformers. A step has one or more passes."""
NEVER = 1_000_000
TIMED = ("time", "recipe")
"""Parts whose runs end by time. Each has a GPU to itself, because its speed counts."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run: its part of the comparison, its settings, and who trains. "ours" is this project's trainer."""

    part: Literal["steps", "whole", "resume", "time", "recipe"]
    """`resume` is stopped halfway and started again, and `whole` is not. Both use deterministic kernels."""
    who: Literal["ours", "transformers"]
    data: str
    seed: int
    size: str
    device: str = "cuda"
    precision: str = "bf16"
    launcher: str = "processes"
    tokens: int = TOKENS
    steps: int = STEPS
    """The number of steps, for all parts but `time`."""
    rate: float = STEPS_RATE
    seconds: float = 0.0
    """For `time` and `recipe`: how long the run trains."""
    max_steps: int = NEVER
    """For `time` and `recipe`: the step after which the run ends at the latest."""
    every_steps: int = NEVER
    """For `time`: steps between evaluations of our run."""
    every_s: float = 30.0
    """For `time`: seconds between evaluations of transformers' run."""
    pairs: int = 128
    """For `time`: sentence pairs in a step of transformers' run."""
    dropout: float = 0.1
    recipe: str = ""
    """For `recipe`: its name in bench/learning_recipes.py."""
    own_tokens: bool = True
    """For `recipe`: take the recipe's batch, not `tokens`."""

    @property
    def name(self) -> str:
        """The run's name, from which its files are named."""
        if self.part == "recipe":
            return f"recipe-{self.recipe}"
        return f"time-{self.size}-{self.who}" if self.part == "time" else f"{self.part}-{self.who}-{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return the run's settings of trainer/run.py, without the output.

        A run of transformers takes its rows, learning rate and optimizer from these settings too.
        """
        of_part: dict[str, Any] = {"schedule": {"name": "linear", "warmup_fraction": STEPS_WARM_UP}}
        if self.part == "time":
            of_part["schedule"] = {"name": "constant", "warmup_steps": WARM_UP_STEPS.get(self.size, 200)}
            of_part["evaluation"] = {"every_steps": self.every_steps, "max_pairs": None}
        if self.part == "recipe":
            of_part = settings_of(self.recipe, seconds=self.seconds, tokens=None if self.own_tokens else self.tokens)
        settings = {
            "data": self.data,
            "model": {"size": self.size, "dropout": self.dropout, "attention_dropout": self.dropout},
            "batch": {}
            if self.part == "recipe"
            else {"tokens": self.tokens, "lanes": 1, "tokens_per_slot": self.tokens},
            "max_steps": self.max_steps if self.part in TIMED else self.steps,
            "device": self.device,
            "precision": self.precision,
            "launcher": self.launcher,
            "seed": self.seed,
            "optimizer": {"learning_rate": self.rate},
            "checkpoint": {"every_steps": NEVER},
            "logging": {"tracker": "none"},
            "deterministic": self.part in ("whole", "resume"),
        }
        joined = join(settings, of_part)
        if self.device == "cpu":
            joined.pop("cuda_graphs", None)  # which the trainer refuses there
        return joined

    def config(self) -> TrainerConfig:
        """Return the run's settings as a checked config."""
        return TrainerConfig.model_validate({**self.settings(), "output": "unused"})

    def dump(self) -> str:
        """Return the run as JSON, which `load` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Task:
        """Return the run from the JSON that `dump` returned."""
        return cls(**json.loads(text))


def list_tasks(
    data: str,
    *,
    sizes: Sequence[str],
    size: str = "small",
    minutes: float = 3.0,
    every_steps: int | None = None,
    launcher: str = "processes",
    recipe_size: str = "base",
    recipe_minutes: float = 10.0,
    own_tokens: bool = True,
    **changes: Any,
) -> Iterator[Task]:
    """Yield all runs: first those of equal steps, then `whole` and `resume`, then those of equal time for each of
    `sizes`, then the recipes.

    `size` is the model's size in all runs but those that end by time. `minutes`, `every_steps` and `launcher` are
    settings of the runs of equal time; `recipe_size`, `recipe_minutes` and `own_tokens` of the recipes. `changes` are
    fields of Task for all runs.
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
    for recipe in RECIPES:
        yield Task(
            "recipe",
            "ours",
            data,
            SEEDS[0],
            recipe_size,
            launcher=launcher,
            seconds=60 * recipe_minutes,
            recipe=recipe,
            own_tokens=own_tokens,
            **changes,
        )


def derive_pairs(data: str, *, tokens: int) -> int:
    """Return how many pairs a step of transformers should have, so that it has about `tokens` tokens.

    The number is a multiple of PASS_ROWS and at least PASS_ROWS.
    """
    manifest = read_manifest(data)
    pairs = tokens * manifest.num_rows("train") / manifest.num_tokens("train")
    return PASS_ROWS * max(1, round(pairs / PASS_ROWS))


def describe_run(task: Task, *, card: str) -> Curve:
    """Return what is known of a run before it begins: the start of its curve. `card` is the name of the GPU.

    The entry "settings" has no path of the data set, because the path differs between machines.
    """
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
    """Return the version of a package, or None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def curve_path(folder: Path, name: str) -> Path:
    """Return the path of the file that holds a run's curve."""
    return folder / f"{name}.json"


def write_curve(folder: Path, curve: Curve) -> None:
    """Write a run's curve to its file atomically."""
    path = curve_path(folder, curve["name"])
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(curve) + "\n")
    os.replace(partial, path)


def read_curves(folder: Path) -> dict[str, Curve]:
    """Return all curves in `folder` by the run's name. Raises ValueError, which names the file, if a file holds no
    curve."""
    curves = {}
    for path in sorted(folder.glob("*.json")):
        try:
            curve = json.loads(path.read_text())
            curves[curve["name"]] = curve
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: is no curve of bench.learning ({error!r}); remove it") from error
    return curves
