"""A checkpoint that somebody else made: its hashes are right and its values are not; refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint.format import CheckpointError, read_state, write_json, write_manifest
from trainer.data.plan import PlanError, PlanState

STATE: dict[str, Any] = {
    "step": 1, "steps_taken": 1, "loss_scale": {}, "plan_state": {}, "config": {}, "world_size": 1, "threads": 1,
    "versions": {},
}  # fmt: skip
PLAN: dict[str, Any] = {"plan_hash": "a", "step": 1, "epoch": 0, "cursors": [1, 2]}


def write(run: Path, state: Any) -> Path:
    folder = run / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    write_manifest(folder, step=1, files={"state.json": write_json(folder / "state.json", state)})
    return folder


def test_the_state_that_the_others_are_variants_of_is_read(tmp_path: Path) -> None:
    assert read_state(write(tmp_path, STATE)).threads == 1
    assert PlanState.from_tree(PLAN).phase_step == 1


@pytest.mark.parametrize(
    "changes",
    [
        *({key: value} for key in ("step", "steps_taken", "world_size", "threads") for value in (-1, "1", True, 2**63)),
        *({key: []} for key in ("loss_scale", "plan_state", "config", "versions", "guard", "rows")),
        {"data_hash": 5},
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path, STATE | changes)
    (name,) = changes
    with pytest.raises(CheckpointError, match=rf"state\.json: does not hold the state of a checkpoint \({name} is "):
        read_state(folder)


@pytest.mark.parametrize("state", [5, [], "x", {}, STATE | {"another": 1}], ids=str)
def test_other_content_is_refused(state: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\.json: does not hold the state of a checkpoint"):
        read_state(write(tmp_path, state))


@pytest.mark.parametrize(
    "changes",
    [
        *({key: value} for key in ("step", "epoch", "phase") for value in (-1, "1", None, 2**63)),
        *({"cursors": value} for value in (5, ["a"], [-1], None)),
        {"plan_hash": 5},
    ],
    ids=str,
)
def test_a_place_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"^plan_state of the checkpoint: "):
        PlanState.from_tree(PLAN | changes)


@pytest.mark.parametrize("missing", PLAN)
def test_a_place_with_an_entry_missing_is_refused(missing: str) -> None:
    with pytest.raises(PlanError, match=r"^plan_state of the checkpoint: "):
        PlanState.from_tree({key: value for key, value in PLAN.items() if key != missing})
