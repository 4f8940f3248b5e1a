"""Grids, seeds and several tasks: runs that continue, tables of medians, and GLUE only if all of it is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from task_models import make_config, write_model, write_opinions, write_tsv
from trainer.finetune import main
from trainer.finetune.config import FinetuneConfig, StudyConfig
from trainer.finetune.published import GLUE_TASKS
from trainer.finetune.report import choose_rows, make_rows, write_report
from trainer.finetune.result import Result
from trainer.finetune.study import Finding, Run, find_obstacles, find_tasks

pytest.importorskip("sklearn", reason="metrics are by scikit-learn")
pytest.importorskip("seqeval", reason="metrics are by seqeval")


def study(*words: object, model: Path, data: Path, output: Path, task: str = "sst2") -> int:
    given = [f"--task={task}", f"--model={model}", f"--data={data}", f"--output={output}"]
    return main([*given, *map(str, words), "optimizer.learning_rate=5e-4", "device=cpu"])


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_grid_ends_with_the_best_median_and_a_table(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_opinions(tmp_path / "data")
    out = tmp_path / "out"
    words = ["--grid", "seeds=2", "grid.batch_sizes=[8, 48]", "grid.learning_rates=[5e-4]", "grid.epochs=[4]"]
    assert study(*words, model=model, data=tmp_path / "data", output=out) == 0
    last = last_line(capsys)
    assert (last["task"], last["metric"], last["setting"]) == ("sst2", "accuracy", "batch 8, rate 0.0005, 4 epochs")
    runs = sorted(out.glob("sst2/*/seed*/result.json"))
    assert [str(run.relative_to(out)).split("/")[1:3] for run in runs] == [
        [f"batch{batch}-rate0.0005-epochs4", f"seed{seed}"] for batch in (48, 8) for seed in (12345, 12346)
    ]
    assert not list(out.glob("sst2/*/*/model")), "a study keeps weights only if keep_model is given"
    values = {str(run): json.loads(run.read_text())["result"]["value"] for run in runs}
    best = [value for run, value in values.items() if "batch8-rate0.0005-epochs4" in run]
    assert last["value"] == pytest.approx(sum(best) / 2)
    assert last["best"] == max(best)
    text = (out / "report.md").read_text()
    assert "| sst2 | accuracy | " in text
    assert "93.5 | 94.9 | 48 | 48 | batch 8, rate 0.0005, 4 epochs |" in text
    assert text.count("| sst2 | batch") == 2
    assert (out / "scores.png").read_bytes().startswith(b"\x89PNG")

    times = [run.stat().st_mtime_ns for run in runs]
    assert study(*words, model=model, data=tmp_path / "data", output=out) == 0
    assert last_line(capsys) == last
    assert [run.stat().st_mtime_ns for run in runs] == times


def test_runs_side_by_side_give_the_same_and_name_what_fails(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_opinions(tmp_path / "data")
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["seeds=2", "epochs=1", "batch_size=8"]
    assert study(*words, model=model, data=tmp_path / "data", output=one) == 0
    first = last_line(capsys)
    assert study(*words, "side_by_side=2", model=model, data=tmp_path / "data", output=two) == 0
    assert last_line(capsys) == first
    results = [[json.loads(run.read_text())["result"] for run in sorted(out.glob("sst2/*/*/result.json"))]
               for out in (one, two)]  # fmt: skip
    assert len(results[0]) == 2
    assert results[0] == results[1]

    workers = ["side_by_side=2", "launcher=processes"]
    assert study(*words, *workers, model=model, data=tmp_path / "data", output=tmp_path / "four") == 2
    assert "side_by_side=2 with launcher=processes: runs of several workers go one after" in capsys.readouterr().err

    (tmp_path / "data" / "dev.tsv").write_text("sentence\tlabel\ngood\t2\n")
    assert study(*words, "side_by_side=2", model=model, data=tmp_path / "data", output=tmp_path / "three") == 2
    found = capsys.readouterr().err
    assert re.search(r"seed 1234[56]: error: .*dev.tsv line 2: label is '2', not one of 0, 1", found), found


def test_all_finds_the_tasks_below_a_folder_and_leaves_out_what_the_model_cannot_read(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    write_opinions(data / "GLUE" / "SST-2")
    rows = [(0, "the film was good", "it was good", "entailment"), (1, "it was bad", "so", "not_entailment")] * 8
    for split in ("train", "dev"):
        write_tsv(data / "GLUE" / "RTE" / f"{split}.tsv", names=["index", "sentence1", "sentence2", "label"], rows=rows)
        write_tsv(data / "other" / f"{split}.tsv", names=["sentence", "label"], rows=[("x", 1)])
    for name in ("wnut17train.conll", "emerging.dev.conll"):
        (data / name).write_text("\uc11c\uc6b8\tB-LOC\n\uc740\tO\n\n")
    assert study("epochs=1", task="all", model=model, data=data, output=tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "left out: wnut17: 100% of its pieces are [UNK]" in shown
    last = json.loads(shown.splitlines()[-1])
    assert [row["task"] for row in last["tasks"]] == ["sst2", "rte"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.startswith(f"# {model} on 2 tasks")
    assert "Left out: wnut17" in text
    assert "**GLUE**" not in text
    assert study(task="sst2,mrpc", model=model, data=data, output=tmp_path / "out") == 2
    assert "holds no files of mrpc; put them into a folder below it" in capsys.readouterr().err
    assert study(task="sst2,mprc", model=model, data=data, output=tmp_path / "out") == 2
    assert "task=sst2,mprc: mprc is no published task" in capsys.readouterr().err


def test_every_task_of_the_shared_files_is_found_once(shared_data: Path, tmp_path: Path) -> None:
    config = StudyConfig(task="all", model="", data=str(shared_data / "eval"), output="")
    places = {
        label: Path(folder).relative_to(shared_data / "eval") for label, (_, folder) in find_tasks(config).items()
    }
    assert {label: str(place) for label, place in places.items()} == {
        "cola": "glue/CoLA", "sst2": "glue/SST-2", "rte": "glue/RTE", "wnli": "glue/WNLI",
        "stsb-glue-STS-B": "glue/STS-B", "stsb-hf-tests-samples-STS-B": "hf-tests-samples/STS-B",
        "wnut17": "ner/wnut17", "ud-pos": "pos/ud-english-ewt",
        "squad2": "squad", "xquad-de": "squad", "xquad-en": "squad", "xquad-es": "squad",
        "swag-hf-tests-samples-swag": "hf-tests-samples/swag", "swag-swag": "swag", "codah": "swag",
    }  # fmt: skip
    korean = find_tasks(config.model_copy(update={"data": str(shared_data / "korean")}))
    assert list(korean) == ["nsmc", "klue-nli", "klue-sts", "klue-ner", "ud-pos", "korquad"]
    words = (shared_data / "bert/bert-base-uncased-vocab.txt").read_text().splitlines()
    own = config.model_copy(update={"model": str(write_model(tmp_path, words=words))})
    few = {"swag-hf-tests-samples-swag": ("swag", str(shared_data / "eval/hf-tests-samples/swag"))}
    assert "too few to be split" in find_obstacles(few, config=own)["swag-hf-tests-samples-swag"]


def fake_finding(task: str, value: float, *, seed: int, by_hash: bool = False, halves: bool = False) -> Finding:
    metrics = {"dev": {"accuracy": value}, "dev majority": {"accuracy": 0.5}}
    if halves:
        metrics |= {"dev-mm": {"accuracy": value - 0.1}}
    config = FinetuneConfig(task=task, model="m", data="d", output="o", seed=seed)
    counts = {"train": 10, "dev": 5, "dev-mm": 5}
    return Finding(Run(task, "s", config), Result(task, "accuracy", value, metrics, (), counts, by_hash))


def test_glue_is_named_only_if_all_of_it_is_there(tmp_path: Path) -> None:
    whole = [fake_finding(task, 0.8, seed=1, halves=task == "mnli") for task in GLUE_TASKS]
    text = write_report(tmp_path, rows=make_rows(whole), model="m", left_out=())
    assert "| **GLUE** | mean of nine, without WNLI | 78.9 | 78.9 | | | 79.6 | 82.1 | | | |" in text
    assert "**GLUE**" not in write_report(tmp_path, rows=make_rows(whole[:-1]), model="m", left_out=())
    split = [*whole[:-1], fake_finding("wnli", 0.8, seed=1, by_hash=True)]
    text = write_report(tmp_path, rows=make_rows(split), model="m", left_out=())
    assert "**GLUE**" not in text
    assert "by hash" in text


def test_the_value_is_the_median_over_seeds() -> None:
    rows = make_rows([fake_finding("rte", value, seed=n) for n, value in enumerate((0.9, 0.5, 0.6))])
    assert [(row.value, row.best, row.values) for row in choose_rows(rows)] == [(0.6, 0.9, (0.9, 0.5, 0.6))]
    assert make_config("rte", model=Path("m"), data=Path("d"), output=Path("o")).seed == 12_345
