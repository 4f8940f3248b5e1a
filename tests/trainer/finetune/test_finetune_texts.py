"""One text or two: from files to a metric, predictions in GLUE's layout, and a run that goes on with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.signals import StopRequest
from task_models import BAD, GOOD, make_config, write_model, write_opinions, write_tsv
from trainer.finetune import Result, finetune, main
from trainer.finetune.tables import read_table

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def run(task: str, *, model: Path, data: Path, output: Path, **settings: object) -> Result:
    said: list[str] = []
    found = finetune(make_config(task, model=model, data=data, output=output, **settings), say=said.append)
    assert found is not None
    return found


def test_the_command_ends_with_the_metric_and_leaves_predictions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_opinions(tmp_path / "data")
    words = ["--task=sst2", "--model", model, "--data", tmp_path / "data", f"--output={tmp_path / 'out'}"]
    settings = ["optimizer.learning_rate=5e-4", "batch_size=8", "epochs=8"]
    assert main([*map(str, words), *settings]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["task"], last["metric"], last["value"]) == ("sst2", "accuracy", 1.0)
    assert last["metrics"]["dev majority"]["accuracy"] == 0.5
    assert "test" not in last["metrics"]
    dev = [values for _, values in read_table(tmp_path / "out" / "SST-2-dev.tsv")]
    assert [row["prediction"] for row in dev] == [str(number % 2) for number in range(48)]
    test = (tmp_path / "out" / "SST-2.tsv").read_text().splitlines()
    assert test[:3] == ["index\tprediction", "0\t0", "1\t1"]

    assert main([*map(str, words), *settings]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == last
    assert main([*map(str, words), *settings, "seed=1"]) == 2
    assert (
        "holds the result of a command with seed=12345, this one has 1; give another output" in capsys.readouterr().err
    )


def test_a_stopped_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """With dropout, and stopped inside the second epoch."""
    model = write_model(tmp_path / "model", dropout=0.1)
    write_opinions(tmp_path / "data")
    whole = run("sst2", model=model, data=tmp_path / "data", output=tmp_path / "whole", epochs=2.0)
    config = make_config("sst2", model=model, data=tmp_path / "data", output=tmp_path / "stopped", epochs=2.0)
    for _ in range(8):
        stop = StopRequest()
        stop.signal_number = 15
        assert finetune(config, say=lambda line: None, stop=stop) is None
    said: list[str] = []
    found = finetune(config, say=said.append)
    assert "going on from step 8 of 12" in said
    assert found is not None
    assert found.metrics == whole.metrics
    weights = [load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "stopped")]
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name
    assert not (tmp_path / "stopped" / "state.pt").exists(), (
        "moments of a run that is done take three times its weights"
    )


def test_a_signal_during_a_run_stops_it_after_a_step(model: Path, tmp_path: Path) -> None:
    write_opinions(tmp_path / "data")
    config = make_config("sst2", model=model, data=tmp_path / "data", output=tmp_path / "out", epochs=1.0)
    stop, said = StopRequest(), []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("sst2:"):
            stop.receive(15, None)

    assert finetune(config, say=say, stop=stop) is None
    assert said[-1].startswith("step 1 of 6")


def test_pairs_are_told_apart_by_their_second_text(model: Path, tmp_path: Path) -> None:
    """RTE: entailment if both are of one mind; F1 and accuracy for MRPC."""
    rows = []
    for number in range(64):
        first, second = ([*GOOD, *BAD][number % 6], [*GOOD, *BAD][(number // 6) % 6])
        same = (first in GOOD) == (second in GOOD)
        rows.append((number, f"the film was {first}", f"it was {second}", "entailment" if same else "not_entailment"))
    for split in ("train", "dev"):
        write_tsv(tmp_path / f"{split}.tsv", names=["index", "sentence1", "sentence2", "label"], rows=rows)
    found = run("rte", model=model, data=tmp_path, output=tmp_path / "out", epochs=20.0)
    assert found.value > found.metrics["dev majority"]["accuracy"] + 0.2
    assert (tmp_path / "out" / "RTE-dev.tsv").read_text().splitlines()[1].split("\t")[1] in rows[0]

    names = ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    paraphrases = [(int(label == "entailment"), 1, 2, first, second) for _, first, second, label in rows]
    for split in ("train", "dev"):
        write_tsv(tmp_path / "mrpc" / f"{split}.tsv", names=names, rows=paraphrases)
    found = run("mrpc", model=model, data=tmp_path / "mrpc", output=tmp_path / "mrpc-out", epochs=1.0)
    assert list(found.metrics["dev"]) == ["f1", "accuracy"]


def test_both_halves_of_mnli_are_evaluated(model: Path, tmp_path: Path) -> None:
    rows = [(n, f"it was {GOOD[n % 3]}", f"it was {BAD[n % 3]}", ("entailment", "neutral")[n % 2]) for n in range(16)]
    for name in ("train", "dev_matched", "dev_mismatched"):
        write_tsv(tmp_path / f"{name}.tsv", names=["index", "sentence1", "sentence2", "gold_label"], rows=rows)
    found = run("mnli", model=model, data=tmp_path, output=tmp_path / "out", epochs=1.0)
    assert {"dev", "dev-mm"} < found.metrics.keys()
    assert {"MNLI-m-dev.tsv", "MNLI-mm-dev.tsv"} == set(found.files)


def test_numbers_are_learned_and_stay_in_their_bounds(model: Path, tmp_path: Path) -> None:
    names = ["index", "genre", "sentence1", "sentence2", "score"]
    rows = [
        (n, "x", f"it was {GOOD[n % 3]}", f"so {([*GOOD, *BAD])[n % 6]}", 5.0 if n % 6 < 3 else 0.0) for n in range(48)
    ]
    for split in ("train", "dev"):
        write_tsv(tmp_path / f"{split}.tsv", names=names, rows=rows)
    found = run("stsb", model=model, data=tmp_path, output=tmp_path / "out", epochs=12.0)
    assert found.metric == "spearman"
    assert found.metrics["dev"]["pearson"] > 0.9
    assert found.metrics["dev majority"]["pearson"] == 0.0
    numbers = [float(line.split("\t")[1]) for line in (tmp_path / "out" / "STS-B-dev.tsv").read_text().splitlines()[1:]]
    stats = pytest.importorskip("scipy.stats")
    assert stats.pearsonr([row[-1] for row in rows], numbers).statistic == pytest.approx(
        found.metrics["dev"]["pearson"], abs=1e-9
    )
    assert min(numbers) >= 0.0
    assert max(numbers) <= 5.0


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_task_of_ones_own_names_its_columns(model: Path, tmp_path: Path, ending: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"body": f"the film, it was {(GOOD if n % 2 else BAD)[n % 3]}", "mind": ("no", "yes")[n % 2]} for n in range(24)
    ]
    for split in ("train", "dev"):
        path = tmp_path / f"{split}.{ending}"
        if ending == "csv":
            path.write_text("body,mind\n" + "".join(f'"{row["body"]}",{row["mind"]}\n' for row in rows))
        elif ending == "tsv":
            write_tsv(path, names=["body", "mind"], rows=[tuple(row.values()) for row in rows])
        elif ending == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pq.write_table(pa.Table.from_pylist(rows), path)
    columns = {"first": "body", "label": "mind"}
    found = run("classification", model=model, data=tmp_path, output=tmp_path / "out", columns=columns, epochs=16.0)
    assert found.value > 0.9
    assert (tmp_path / "out" / "classification-dev.tsv").read_text().splitlines()[1] == "0\tno"
    with pytest.raises(ValueError, match=r"has no column 'label', but body, mind; name it in columns"):
        run("classification", model=model, data=tmp_path, output=tmp_path / "other")
