"""Both sides are fine-tuned on the same files, learn them, and stand in one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import finetuning
from task_models import write_model, write_opinions

pytest.importorskip("transformers")


def test_both_sides_learn_the_task_and_stand_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tasks = write_model(tmp_path / "model"), tmp_path / "tasks" / "SST-2"
    write_opinions(tasks)
    small = ["--device", "cpu", "--only", "sst2", "--seeds", "1", "--out", str(tmp_path / "out")]
    settings = ["batch_size=8", "epochs=8", "optimizer.learning_rate=5e-4", "max_train_examples=40"]
    assert finetuning.main([str(model), str(tasks), *small, *settings]) == 0
    values = {
        who: json.loads((tmp_path / "out" / "sst2" / who / "12345.json").read_text())["value"]
        for who in ("theirs", "ours")
    }
    assert min(values.values()) > 0.9
    cells = " | ".join(finetuning.show([values[who]]) for who in ("theirs", "ours"))
    assert f"| sst2 | accuracy | {cells} | " in (tmp_path / "out" / "table.md").read_text()
    capsys.readouterr()
    assert finetuning.main([str(model), str(tasks), *small, *settings]) == 0
    assert "seed 12345" not in capsys.readouterr().out


def test_kinds_that_the_other_side_does_not_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "xquad.en.json"
    path.write_text('{"data": []}')
    with pytest.raises(SystemExit, match="--only xquad-en: transformers' side knows"):
        finetuning.main([str(tmp_path), str(tmp_path), "--only", "xquad-en", "--out", str(tmp_path / "out")])
