"""Fine-tuning by Ray Train."""

from __future__ import annotations

from pathlib import Path

import pytest

from task_models import make_config, write_opinions
from trainer.finetune import finetune

pytest.importorskip("ray")
pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


@pytest.mark.ray
def test_two_workers_of_ray_train_find_what_one_process_finds(model: Path, tmp_path: Path) -> None:
    write_opinions(tmp_path / "data")
    values = []
    for launcher, own in (("none", {}), ("ray", {"workers": 2, "cpus_per_worker": 0.5})):
        config = make_config(
            "sst2", model=model, data=tmp_path / "data", output=tmp_path / launcher, launcher=launcher, device="cpu",
            optimizer={"learning_rate": 5e-4, "epsilon": 1e-3}, epochs=2.0, **own,
        )  # fmt: skip
        found = finetune(config, say=print)
        assert found is not None
        values.append(found.value)
    assert values[0] == values[1]
    predictions = [(tmp_path / name / "SST-2-dev.tsv").read_text() for name in ("none", "ray")]
    assert predictions[0] == predictions[1]
