"""What micro-batches predict under each objective, and runs with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from micro_batches import SPECIAL, make_micro_batch
from small_runs import check_output, make_config, run
from trainer.data.micro_batch import NO_LABEL
from trainer.data.objectives import apply_objective
from trainer.launch.preflight import check
from trainer.telemetry.metrics import read_json_lines


def test_the_papers_objective_changes_nothing() -> None:
    batch = make_micro_batch([5, 3])
    assert apply_objective(batch, objective="masked_next_sentence") is batch


def test_masked_drops_the_labels_of_pairs_alone() -> None:
    batch = make_micro_batch([5, 3])
    found = apply_objective(batch, objective="masked")
    assert found.nsp_labels.tolist() == [NO_LABEL, NO_LABEL]
    assert found.num_labelled == 0
    assert found.input_ids is batch.input_ids
    assert found.masked_positions is batch.masked_positions


def test_left_to_right_predicts_the_next_token_inside_each_pair() -> None:
    batch = make_micro_batch([5, 3], masked=[2, 1])
    assert SPECIAL.mask in batch.input_ids
    found = apply_objective(batch, objective="left_to_right")
    assert found.input_ids.tolist() == list(range(200, 208))
    assert found.masked_positions.tolist() == [0, 1, 2, 3, 5, 6]
    assert found.masked_labels.tolist() == [201, 202, 203, 204, 206, 207]
    assert found.num_labelled == 0
    assert SPECIAL.mask in batch.input_ids, "the batch given is as it was"


@pytest.mark.parametrize("objective", ["masked", "left_to_right"])
def test_a_run_trains_and_evaluates_its_objective(
    objective: str, data: Path, tmp_path: Path, worker_group: Any
) -> None:
    config = make_config(data, tmp_path / "run", model={"size": "tiny", "objective": objective}, max_steps=3)
    run(worker_group(1), config)
    records = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    for record in records:
        assert record["nsp_loss"] is None
        assert record["loss"] == record["mlm_loss"]
        if objective == "left_to_right":
            assert record["masked"] == record["tokens"] - record["pairs"]
    (evaluation,) = read_json_lines(tmp_path / "run" / "evaluations.jsonl")
    assert evaluation["nsp_accuracy"] is None
    assert evaluation.get("objective") == ("left_to_right" if objective == "left_to_right" else None)
    assert (evaluation["bigram_loss"] is None) == (objective == "left_to_right")
    with pytest.raises(ValueError, match="objective"):
        check_output(make_config(data, tmp_path / "run", model={"size": "tiny"}, max_steps=3))


def test_the_checks_name_the_objective(data: Path, tmp_path: Path) -> None:
    config = make_config(data, tmp_path / "run", model={"size": "tiny", "objective": "left_to_right"})
    assert any(line.startswith("objective: the next token from left to right") for line in check(config).lines)
    assert not any("objective" in line for line in check(make_config(data, tmp_path / "run")).lines)


def test_drawn_masks_have_no_effect_from_left_to_right(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="left_to_right masks nothing"):
        make_config(data, tmp_path, model={"size": "tiny", "objective": "left_to_right"}, masking={"source": "drawn"})
