"""A disk that is full at a save is told with the file, and costs no step that was saved before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from full_disk import files_of_at_most
from pipeline.signals import StopRequest
from task_models import assert_same_run, make_config, write_opinions
from trainer.finetune import finetune

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def test_a_full_disk_is_named_and_the_run_goes_on_from_the_state_before(model: Path, tmp_path: Path) -> None:
    write_opinions(tmp_path / "data")

    def run(output: str, *, stop: StopRequest | None = None) -> list[str]:
        said: list[str] = []
        config = make_config(
            "sst2", model=model, data=tmp_path / "data", output=tmp_path / output, epochs=2.0, device="cpu"
        )
        finetune(config, say=said.append, stop=stop)
        return said

    run("whole")
    stop = StopRequest()
    stop.signal_number = 15
    run("full", stop=stop)  # one step
    state = (tmp_path / "full" / "state.pt").read_bytes()
    with files_of_at_most(1 << 16), pytest.raises(OSError, match=r"File too large: '.*/full/state.pt'"):
        run("full")
    assert (tmp_path / "full" / "state.pt").read_bytes() == state
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == ["metrics.jsonl", "state.pt"]
    assert "going on from step 1 of 12" in run("full")
    assert_same_run(tmp_path / "full", tmp_path / "whole")
    assert json.loads((tmp_path / "full" / "result.json").read_text())["result"]["task"] == "sst2"
