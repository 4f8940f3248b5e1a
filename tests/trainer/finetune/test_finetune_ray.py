"""Fine-tuning by Ray Train."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from processes import command_of
from task_models import assert_same_run, make_config, write_opinions
from trainer.finetune import finetune

pytest.importorskip("ray")
pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


@pytest.mark.ray
def test_two_workers_of_ray_train_find_what_one_process_finds_even_if_one_is_killed(
    model: Path, tmp_path: Path
) -> None:
    write_opinions(tmp_path / "data")
    said: list[str] = []

    def kill(line: str) -> None:
        """SIGKILL of a worker, once, when step 4 of 12 is taken."""
        said.append(line)
        if line.startswith("step 4 of 12") and said.count(line) == 1:
            ours = psutil.Process().children(recursive=True)
            [process for process in ours if "RayTrainWorker" in command_of(process)][1].kill()

    values = []
    two = {"workers": 2, "state_steps": 1}
    for name, say, own in (
        ("none", print, {}),
        ("processes", print, two),
        ("ray", kill, {**two, "cpus_per_worker": 0.5}),
    ):
        config = make_config(
            "sst2", model=model, data=tmp_path / "data", output=tmp_path / name, device="cpu", launcher=name,
            optimizer={"learning_rate": 5e-4, "epsilon": 1e-3}, epochs=2.0, **own,
        )  # fmt: skip
        found = finetune(config, say=say)
        assert found is not None
        values.append(found.value)
    assert values[0] == values[1] == values[2]
    predictions = [(tmp_path / name / "SST-2-dev.tsv").read_text() for name in ("none", "ray")]
    assert predictions[0] == predictions[1]
    (loss,) = [line for line in said if "starting the workers again" in line]
    assert re.search(r"starting the workers again from the checkpoint of step \d+ \(1 of max_restarts=3\)", loss), said
    assert_same_run(tmp_path / "ray", tmp_path / "processes")
