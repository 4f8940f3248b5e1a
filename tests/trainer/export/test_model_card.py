"""The model card's facts of a run: losses over steps, time and hardware, a config for the same run, scores of tasks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.settings import to_tree, validate
from small_runs import make_config
from trainer.checkpoint import CheckpointState
from trainer.config import TrainerConfig, validate_saved
from trainer.export import __main__, model_card
from trainer.export import folder as export
from trainer.export.folder import MARKER, identify, read_export_mark
from trainer.export.history import TABLE_ROWS, History
from untrained_run import write_run


def rows_of(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]


def test_the_table_of_losses_is_spread_and_prefers_evaluated_steps() -> None:
    training = [{"step": step, "mlm_loss": float(step), "nsp_loss": None} for step in range(1, 1001)]
    evaluations = [{"step": step, "mlm_loss": 0.5, "nsp_loss": 0.25} for step in (100, 990, 1000)]
    rows = rows_of(History(training, evaluations).table(kind="masked-LM"))
    assert len(rows) == TABLE_ROWS
    steps = [int(row[0].replace(",", "")) for row in rows]
    assert steps[0] == 1
    assert steps[-1] == 1000
    assert 100 in steps
    assert all(60 <= later - earlier <= 170 for earlier, later in pairwise(steps))
    middle = rows[steps.index(100)]
    assert middle == ["100", "100.0000", "0.5000", "", "0.2500"]
    assert rows[0][2] == ""


def test_a_run_without_records_has_no_table_and_no_curve() -> None:
    assert History().table(kind="masked-LM") == []
    assert History().draw() is None
    only = History((), [{"step": 3, "mlm_loss": 1.0}])
    assert rows_of(only.table(kind="masked-LM")) == [["3", "", "1.0000", "", ""]]
    odd = History([{"step": 1}, {"step": 2, "mlm_loss": None}], [])
    assert rows_of(odd.table(kind="masked-LM"))[0][1] == ""


def test_time_and_hardware_are_those_that_the_checkpoint_recorded() -> None:
    state = CheckpointState(
        step=9, steps_taken=9, loss_scale={}, plan_state={}, config={}, world_size=2, threads=1, seconds=7200.0,
        versions={"torch": "2.11", "device": "NVIDIA *H200*"},
    )  # fmt: skip
    records = [{"step": step, "tokens_per_second": rate} for step, rate in ((1, 10.0), (2, 3000.0), (3, 2000.0))]
    assert History(records).cost(state)[0] == (
        r"2 workers on NVIDIA \*H200\*, 2.0 h of training, 2,000 tokens a second (median over steps). "
        "Versions: torch 2.11."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"size": "mini", "norm": "pre", "objective": "left_to_right"}},
        {"masking": {"source": "drawn", "rate": 0.3}, "max_hours": 2.0},
        {"optimizer": {"name": "lamb", "learning_rate": 1e-3}, "schedule": {"name": "wsd"}, "zero_stage": 2},
        {"phases": ({"max_steps": 5}, {"batch": {"pairs": 4}}), "guard": {"max_bad_steps": 2}},
    ],
)
def test_the_recipe_in_the_card_is_a_config_for_the_same_run(changes: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(tmp_path, tmp_path / "run", **changes)
    recipe = yaml.safe_load(yaml.safe_dump(model_card._settings(config), sort_keys=False))
    assert "data" not in recipe
    again = validate(TrainerConfig, {**recipe, "data": "d", "output": "o"}, origin="the card")
    for key in ("model", "batch", "optimizer", "schedule", "max_steps", "max_hours", "precision", "seed", "phases",
                "zero_stage", "guard", "masking"):  # fmt: skip
        assert getattr(again, key) == getattr(config, key), key


def test_the_recipe_leaves_out_what_a_start_refuses_and_defaults(tmp_path: Path) -> None:
    """A run of an older release may have saved settings without effect."""
    tree = {**to_tree(make_config(tmp_path, tmp_path / "run")), "schedule": {"name": "linear", "power": 2.0}}
    recipe = model_card._settings(validate_saved(tree, origin="config.yaml"))
    assert recipe["schedule"]["power"] == 1.0
    assert {"guard", "zero_stage", "max_hours", "deepspeed", "masking"}.isdisjoint(recipe)
    validate(TrainerConfig, {**recipe, "data": "d", "output": "o"}, origin="the card")


def test_records_after_the_exported_step_are_not_in_the_card(tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=tokenized, steps=(7, 20))
    cards, curves = [], []
    for step in (7, 20):
        export.export(tmp_path / "run", out=tmp_path / "out", step=step)
        cards.append((tmp_path / "out" / "README.md").read_text())
        curves.append((tmp_path / "out" / "curve.png").read_bytes())
    assert "\n| 20 | " in cards[1]
    assert "\n| 20 | " not in cards[0]
    assert curves[0] != curves[1]


def test_an_export_tells_its_checkpoint(tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=tokenized, steps=(7, 20))
    for dtype in ("fp32", "bf16"):
        export.export(tmp_path / "run", out=tmp_path / "out", step=7, dtype=dtype)
        folder = tmp_path / "run" / "checkpoints" / "step-00000007"
        assert read_export_mark(tmp_path / "out") == (identify(folder), 7)
    assert read_export_mark(tmp_path) is None
    for text in ("{", "{}", "[]", '{"checkpoint": "x", "step": null}'):
        (tmp_path / MARKER).write_text(text)
        assert read_export_mark(tmp_path) is None


def test_the_command_takes_tasks(tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", data=tokenized)
    words = [str(tmp_path / "run"), str(tmp_path / "out"), "--tasks", str(tmp_path)]
    assert __main__.main(words) == 2
    assert "report.json: is missing; give the output of `python -m trainer.finetune`" in capsys.readouterr().err
    row = {
        "label": "<b>x", "task": "x", "kind": "qa", "setting": "s", "metric": "answer_f1", "value": 0.5, "best": 0.5,
        "values": [0.5], "others": {}, "majority": None, "num_examples": {"train": 3, "dev": 2}, "by_hash": False,
    }  # fmt: skip
    mark = {"checkpoint": identify(tmp_path / "run" / "checkpoints" / "step-00000007"), "step": 7}
    (tmp_path / "report.json").write_text(json.dumps({**mark, "rows": [row]}))
    assert __main__.main(words) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert r"| \<b\>x | answer\_f1 | 50.0 | 50.0 | 1 |  | 3 | 2 | s |" in card
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["model-index"][0]["name"] == "BERT tiny"
    assert front["model-index"][0]["results"][0]["metrics"] == [
        {"type": "f1", "value": 0.5, "name": "answer_f1, one seed"}
    ]
