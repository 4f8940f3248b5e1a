"""Exports of models with another objective: transformers' causal class, and no untrained heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from packed import padded_rows, random_batch, unpad
from trainer.export import folder as export
from trainer.hf.pretrained import read_model
from untrained_run import VOCABULARY_SIZE, write_run

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_transformers_loads_a_left_to_right_model_as_a_causal_one(norm: str, tokenized: Path, tmp_path: Path) -> None:
    model = write_run(tmp_path / "run", data=tokenized, norm=norm, max_positions=128, objective="left_to_right")
    export.export(tmp_path / "run", out=tmp_path / "out")
    other, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = random_batch([9, 20], vocabulary_size=VOCABULARY_SIZE)
    with torch.no_grad():
        found = unpad(other.eval()(**padded_rows(batch)).logits, batch=batch)[batch.masked_positions]
        wanted, _ = model.eval().logits(batch)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "next words, from left to right" in card
    assert "text-generation" in card
    again, has_pair_head = read_model(tmp_path / "out")
    assert (again.config.objective, has_pair_head) == ("left_to_right", False)
    with torch.no_grad():
        torch.testing.assert_close(again.logits(batch)[0], wanted, rtol=1e-4, atol=1e-4)


def test_a_model_without_next_sentences_has_no_head_for_them(tokenized: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", data=tokenized, objective="masked")
    export.export(tmp_path / "run", out=tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["architectures"] == ["BertForMaskedLM"]
    assert "is_decoder" not in settings
    assert "and next sentences" not in (tmp_path / "out" / "README.md").read_text()
