"""The shipped recipes: the arithmetic and the plan in their comments, and 200 steps of each at a small size."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from statistics import mean

import pytest

import small_runs
from pipeline.settings import load_settings, load_tree, validate
from synthetic import write_data_set
from trainer.config import TrainerConfig
from trainer.data import resolve_phases
from trainer.engine import learning_rate
from trainer.run import main
from trainer.telemetry.metrics import read_json_lines
from worker_group import WorkerGroup

CONFIGS = Path(__file__).parents[3] / "trainer" / "configs"
RECIPES = sorted(path.stem for path in CONFIGS.glob("bert_*.yaml"))
STEPS, PAIRS = 200, 8
PRODUCT = re.compile(
    r"(?P<steps>[\d,]+) steps x +(?P<pairs>[\d,]+) (?:pairs|rows) x at most (?P<length>\d+) tokens = +"
    r"(?P<millions>[\d.]+) M (?:pairs|rows), (?P<billions>[\d.]+) B tokens"
)


def read_comments(name: str) -> list[str]:
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    return [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]


def read_recipe(name: str) -> TrainerConfig:
    return load_settings(TrainerConfig, file=CONFIGS / f"{name}.yaml")


@pytest.mark.parametrize("name", RECIPES)
def test_the_comments_multiply_what_the_settings_say(name: str) -> None:
    """A run that ends by time states a step instead."""
    config, comments = read_recipe(name), read_comments(name)
    products = [found.groupdict() for line in comments if (found := PRODUCT.search(line))]
    numbers = [{key: float(text.replace(",", "")) for key, text in product.items()} for product in products]
    for number in numbers:
        pairs = number["steps"] * number["pairs"]
        assert number["millions"] == pytest.approx(pairs / 1e6, abs=0.051)
        assert number["billions"] == pytest.approx(pairs * number["length"] / 1e9, abs=0.051)
    found = [(number["steps"], number["pairs"]) for number in numbers]
    phases = resolve_phases(config)
    if config.max_hours is None:
        assert found == [(phase.num_steps, phase.config.batch.pairs) for phase in phases]
    else:
        (phase,) = phases
        assert not found
        assert f"a step:   {phase.config.batch.pairs:,} rows x at most 128 tokens" in "\n".join(comments)
        assert f"as many steps as {config.max_hours:g} hours allow" in "\n".join(comments)


def read_plan(name: str) -> tuple[list[str], list[str]]:
    """The words of the dry run in the recipe's comments, and the lines of its answer that stand there."""
    comments = read_comments(name)
    (start,) = [place for place, line in enumerate(comments) if line.startswith("--dry-run ")]
    return comments[start].split(), list(takewhile(bool, comments[start + 1 :]))


@pytest.mark.parametrize("name", RECIPES)
def test_the_plan_is_what_the_comments_and_the_table_state(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For data sets of the real size, which need not exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words, stated = read_plan(name)
    assert main(["--config", str(CONFIGS / f"{name}.yaml"), *words]) == 0
    told = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in stated} >= {"steps", "time", "price"}
    assert [line for line in stated if line not in told] == [], "\n".join(told)
    told_of = dict(line.split(": ", 1) for line in stated)
    amount = told_of.get("max_hours", told_of["steps"])
    billions = float(amount.split()[-3].replace(",", "")) / 1000
    price, _, hours, *_ = told_of["price"].split()
    row = read_table()[name]
    assert row.endswith(f"| {billions:.1f} B | {hours} | {price} |")
    config = read_recipe(name)
    steps = (
        [f"{phase.num_steps:,}" for phase in resolve_phases(config)]
        if config.max_hours is None
        else [amount.split()[3]]
    )
    assert [number for number in steps if f" {number} " not in row] == []


def read_table() -> dict[str, str]:
    """The rows of the recipes in docs/how-to/train.md."""
    text = (CONFIGS.parents[1] / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
    return {found[1]: found[0] for found in re.finditer(r"^\| `(bert_\w+)\.yaml` .*$", text, re.MULTILINE)}


def shrink(name: str, *, folder: Path) -> TrainerConfig:
    """The recipe with a tiny model, small sets, and STEPS steps, shared out over its phases as in the recipe."""
    whole = read_recipe(name)
    for part, length in (("short", 24), ("long", 48)):
        if not (folder / part).exists():
            write_data_set(folder / part, shards=1, row_groups=2, rows=400, max_seq_length=length, vocabulary_size=256)
    shares = {
        "output": folder / name,
        "data": folder / "short",
        "model.size": "tiny",
        "batch.pairs": PAIRS,
        "max_steps": STEPS,
        "workers": 1,
        "precision": "fp32",
        "device": "cpu",
        "launcher": "processes",
        "threads_per_worker": 1,
        "checkpoint.every_steps": STEPS,
        "evaluation.every_steps": STEPS,
        "logging.tracker": "none",
        "logging.every_steps": STEPS,
    }
    if whole.max_hours is not None:
        shares |= {"max_hours": "null"}
    if whole.schedule.warmup_steps is not None:
        shares |= {"schedule.warmup_steps": round(whole.schedule.warmup_steps * STEPS / whole.max_steps)}
    for index, phase in enumerate(whole.phases):
        assert phase.max_steps is not None
        shares |= {f"phases.{index}.max_steps": round(phase.max_steps * STEPS / whole.max_steps)}
        shares |= {f"phases.{index}.data": folder / "long"} if phase.data is not None else {}
        if phase.batch.pairs is not None:
            assert whole.batch.pairs is not None
            shares |= {f"phases.{index}.batch.pairs": PAIRS * phase.batch.pairs // whole.batch.pairs}
    overrides = [f"{key}={value}" for key, value in shares.items()]
    tree = load_tree(CONFIGS / f"{name}.yaml", overrides=overrides)
    return validate(TrainerConfig, tree, origin=name, overrides=overrides)


@pytest.mark.parametrize("name", RECIPES)
def test_200_small_steps_learn(name: str, worker_group: Callable[[int], WorkerGroup], tmp_path: Path) -> None:
    config = shrink(name, folder=tmp_path)
    small_runs.run(worker_group(1), config)
    records = read_json_lines(Path(config.output) / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert not any(record["skipped"] for record in records)
    rates = [learning_rate(step, config) for step in range(1, STEPS + 1)]
    assert [record["learning_rate"] for record in records] == pytest.approx(rates)
    losses = [record["mlm_loss"] for record in records]
    assert mean(losses[-20:]) < mean(losses[:20]) - 0.3
