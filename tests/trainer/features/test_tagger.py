"""The table of layers: a BiLSTM on frozen vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from task_models import BAD, GOOD, NAMES, write_model
from trainer.features.tagger import CHOICES, main

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def test_taggers_learn_on_frozen_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A word's label depends on the word before it, which no word knows by itself; so a majority of words cannot."""
    model = write_model(tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    sentences = []
    for number in range(30):
        mind, name = [*GOOD, *BAD][number % 6], NAMES[number % 3]
        label = "B-PER" if mind in GOOD else "O"
        sentences.append(f"{mind}\tO\n{name}\t{label}\nwas\tO\n\n")
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        (tmp_path / name).write_text("".join(sentences))
    words = ["--task=wnut17", f"--model={model}", f"--data={tmp_path}", f"--output={tmp_path / 'out'}"]
    assert (
        main([*words, "width=32", "num_layers=1", "epochs=10", "batch_size=8", "learning_rate=1e-2", "device=cpu"]) == 0
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["metric"] == "entity_f1"
    assert last["value"] > 0.95
    tree = json.loads((tmp_path / "out" / "layers.json").read_text())
    assert tuple(tree["layers"]) == CHOICES
    assert tree["guessing"] < 0.8 < min(tree["layers"].values())
    assert (tmp_path / "out" / "layers.md").read_text().count("\n") == 2 + len(CHOICES) + 1
    for name, value in load_file(model / "model.safetensors").items():
        assert torch.equal(value, weights[name])


def test_another_kind_of_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--task=sst2", f"--model={tmp_path}", f"--data={tmp_path}", f"--output={tmp_path}"]) == 2
    assert "task=sst2: is no tagging task" in capsys.readouterr().err
