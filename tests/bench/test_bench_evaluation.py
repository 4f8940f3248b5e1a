"""The judgement of pretraining by tasks: both sides train, a model is fine-tuned, and nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import evaluation
from pipeline.run import main as build
from task_models import BAD, FILLER, GOOD, WORDS, write_opinions

pytest.importorskip("transformers")


def write_set(folder: Path, *, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of short sentences in the words of the task."""
    sentences = [f"the film was {word} {other} ." for word in GOOD + BAD for other in FILLER]
    documents = [[sentences[(5 * number + line) % len(sentences)] for line in range(6)] for number in range(200)]
    (folder / "corpus.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (folder / "set.yaml").write_text(
        "sources: [{kind: text, path: corpus.txt}]\nvocabulary: {path: vocab.txt, lowercase: true}\noutput: data\n"
        "max_seq_length: 64\nvalidation_fraction: 0.1\nworkers: 1\n"
    )
    monkeypatch.chdir(folder)
    assert build(["--config", "set.yaml"]) == 0
    return folder / "data"


def test_both_sides_are_trained_and_a_model_is_fine_tuned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MODELS", {"ours": "ours"})  # the others are fine-tuned by the same command
    data = write_set(tmp_path, monkeypatch=monkeypatch)
    write_opinions(tmp_path / "tasks" / "SST-2")
    out = tmp_path / "out"
    small = ["--device", "cpu", "--precision", "fp32", "--size", "tiny", "--tokens", "512", "--minutes", "2"]
    tasks = ["--only", "sst2", "--max-steps", "15", "--seeds", "2", "batch_size=16", "epochs=1"]
    command = [str(data), str(tmp_path / "tasks" / "SST-2"), "--out", str(out), *small, *tasks]
    assert evaluation.main(command) == 0
    curves = {who: json.loads((out / f"{who}.json").read_text()) for who in ("ours", "transformers")}
    ours, theirs = curves["ours"], curves["transformers"]
    assert 0 < ours["stops"][0] < 15
    assert len(ours["mlm"]) == len(theirs["loss"]) == 15
    assert sum(ours["mlm"][-4:]) < sum(ours["mlm"][:4])
    assert sum(theirs["loss"][-4:]) < sum(theirs["loss"][:4])
    assert ours["settings"]["optimizer"]["name"] == "muon"
    assert ours["seconds"] == theirs["seconds"] == 120.0
    reports = {model: json.loads((out / f"{model}-tasks" / "report.json").read_text()) for model in evaluation.MODELS}
    values = {model: report["rows"][0]["values"] for model, report in reports.items()}
    assert [len(each) for each in values.values()] == [2]
    assert (out / "random" / "model.safetensors").exists()
    assert (out / "transformers" / "model.safetensors").exists()
    text = (out / "tables.md").read_text()
    shown = " | ".join(evaluation.show(values[model]) for model in evaluation.MODELS)
    assert f"| sst2 | accuracy | 50.0 | {shown} |" in text
    assert f"| ours | CPU | {ours['took_s'] / 60:.1f} | {len(ours['mlm']):,} | {ours['tokens']:,} | " in text
    capfd.readouterr()
    assert evaluation.main(command) == 0  # nothing is done twice
    said = capfd.readouterr().out
    assert said.count("is pretrained already") == 2
    assert (out / "tables.md").read_text() == text


def test_one_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluation.parse(["data", "tasks", "--only", "sst2", "--seeds", "1"])
    assert "give at least two tasks or --seeds 2" in capsys.readouterr().err


def test_medians_are_shown_with_their_range() -> None:
    assert evaluation.show([0.5, 0.25, 0.9]) == "50.0 (25.0 to 90.0)"
