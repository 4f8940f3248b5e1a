"""Dry runs make all checks, tell the plan, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray

from corpora import make_documents, write_text
from pipeline.estimate import dry_run as pipeline_dry_run
from pipeline.run import main as build_main
from pipeline.settings import ConfigError, dump_yaml
from small_builds import write_build
from small_runs import make_config
from trainer.config import ModelConfig
from trainer.launch import dry_run
from trainer.model import BertForPretraining
from trainer.run import main as train_main


def write_run(folder: Path, data: Path, **changes: Any) -> list[str]:
    path = folder / "c.yaml"
    path.write_text(dump_yaml(make_config(data, folder / "run", max_steps=100, **changes)), encoding="utf-8")
    return ["--config", str(path), "--dry-run"]


def test_a_training_is_planned_and_not_begun(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = write_run(tmp_path, data, launcher="ray")
    assert train_main([*words, "--tokens-per-second=100", "--price=2.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (steps,) = [line for line in lines if line.startswith("steps: ")]
    tokens = float(steps.split(" to do, ")[1].split(" tokens")[0].replace(",", ""))  # below 50,000: not in millions
    mean = float(next(line for line in lines if line.startswith("batch:")).split("), ")[1].split(" tokens")[0])
    assert steps.startswith("steps: 100 of 100 to do")
    assert tokens == pytest.approx(100 * mean, abs=50)
    hours = 100 * mean / 200 / 3600
    (price,) = [line for line in lines if line.startswith("price: ")]
    assert float(price.split()[1]) == pytest.approx(hours * 2 * 2.5, abs=0.01)
    assert any(line.startswith("time: ") and "200 tokens/s of 2 workers (stated)" in line for line in lines)
    room = r"checkpoints: [\d.]+ MB each, up to 4: [\d.]+ MB; [\d.,]+ [GT]B are free"
    assert any(re.match(room, line) for line in lines)
    assert any(line.startswith("machines: 2 workers on cpu") for line in lines)
    assert "learning rate (linear): 0.003 at step 1, 3.03e-05 at step 100" in lines
    assert not ray.is_initialized()
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_empty_micro_steps_are_said_before_a_run_begins(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert train_main(write_run(tmp_path, data, workers=3)) == 0
    assert "WARNING: empty micro-steps: 2 of 6 a step, 33% of the time" in capsys.readouterr().out


def test_the_rate_of_a_run_that_has_begun_is_used(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(data, tmp_path / "run", max_steps=100)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
    (tmp_path / "run" / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "tokens_per_second": 50.0 * step}) + "\n" for step in (1, 2, 3)),
        encoding="utf-8",
    )
    assert train_main(write_run(tmp_path, data)) == 0
    assert "at 100 tokens/s of 2 workers (measured in this run)" in capsys.readouterr().out
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert train_main(write_run(tmp_path, data)) == 0
    assert "time: unknown; give --tokens-per-second=N" in capsys.readouterr().out


class Dashboard(BaseHTTPRequestHandler):
    """Two nodes, of which one may grow the cluster by GPUs; as Ray's own answers."""

    asked: ClassVar[list[str]] = []
    nodes: ClassVar[list[dict[str, float]]] = [
        {"CPU": 1.0, "memory": 8e9, "grows_to_GPU": 16.0},
        {"CPU": 1.0, "memory": 8e9},
    ]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        told = {"node_id": "a", "node_ip": "b", "is_head_node": False, "state": "ALIVE", "state_message": None}
        nodes = [{**told, "node_name": "c", "labels": {}, "resources_total": each} for each in self.nodes]
        listed = {"total": 2, "num_after_truncation": 2, "num_filtered": 2, "result": nodes}
        body = json.dumps({"result": True, "msg": "", "data": {"result": listed}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_dashboard_tells_the_machines_of_its_cluster(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RAY_ADDRESS names one where jobs are submitted."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        config = make_config(data, tmp_path / "run", launcher="ray", cpus_per_worker=0.5)
        assert dry_run.describe_machines(config) == f"machines: 2 workers on cpu fit the cluster {address}"
        grown = config.model_copy(update={"device": "cuda", "workers": 16})
        assert dry_run.describe_machines(grown) == f"machines: 16 workers on cuda fit the cluster {address}"
        with pytest.raises(ConfigError, match="workers=17 need 17 GPUs, the Ray cluster has 16"):
            dry_run.describe_machines(config.model_copy(update={"device": "cuda", "workers": 17}))
        with pytest.raises(ConfigError, match=r"need 2.5 logical CPUs, the Ray cluster has 2"):
            dry_run.describe_machines(config.model_copy(update={"workers": 3}))
        server.shutdown()
    assert all(path.startswith("/api/v0/nodes?") for path in Dashboard.asked)
    assert not ray.is_initialized()
    line = dry_run.describe_machines(config)
    assert line.startswith(f"machines: not checked: the dashboard at RAY_ADDRESS={address} does not list its nodes (")
    assert line.endswith("`ray job submit -- python trainer/run.py --dry-run ...` checks from inside the cluster")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--price=much"], "--price=much: give a number above 0"),
        (["--tokens-per-second=-1"], "--tokens-per-second=-1: give a number above 0"),
        (["--dryrun"], "unknown option --dryrun; did you mean --dry-run?"),
        (["data=nowhere"], "nowhere"),
        (["workers=5"], "workers=5 exceeds batch.lanes=4"),
    ],
)
def test_a_dry_run_refuses_as_a_run_would(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert train_main([*write_run(tmp_path, data), *words]) == 2
    assert message in capsys.readouterr().err


def test_options_go_with_the_dry_run_alone() -> None:
    with pytest.raises(ConfigError, match="--price works only with --dry-run; add it"):
        dry_run.read_options(["--price=3"], program="p")


def test_a_full_disk_is_refused_and_a_short_one_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(data, tmp_path / "run")
    size = dry_run.count_parameters(config.model, vocabulary_size=256) * 12
    for free, text in ((size * 2, "WARNING: not enough"), (size * 9, "are free")):
        monkeypatch.setattr(dry_run, "free_bytes", lambda folder, free=free: free)
        assert text in dry_run.describe_disk_space(config, vocabulary_size=256)
    monkeypatch.setattr(dry_run, "free_bytes", lambda folder: size - 1)
    with pytest.raises(ConfigError, match=r"run: a checkpoint needs \d.*; free space, or give another output"):
        dry_run.describe_disk_space(config, vocabulary_size=256)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_parameters_are_counted_as_they_are(norm: Any) -> None:
    config = ModelConfig(size="tiny", norm=norm, max_positions=64)
    model = BertForPretraining(config, vocabulary_size=300, seed=1)
    assert dry_run.count_parameters(config, vocabulary_size=300) == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_a_build_is_planned_and_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_build(tmp_path)
    monkeypatch.chdir(folder)
    before = sorted(str(path) for path in folder.rglob("*"))
    words = ["--config", str(folder / "c.yaml"), f"output={folder / 'new'}", "--dry-run"]
    assert build_main([*words, "--price=3600"]) == 0
    text = capsys.readouterr().out
    assert f"output: {folder / 'new'}: new" in text
    cpu_hours = float(text.split("CPU hours")[1].split()[0])
    price = float(text.split("price: ")[1].split()[0].replace(",", ""))
    assert price == pytest.approx(cpu_hours * 3600, rel=0.01)
    assert "room: " in text
    assert sorted(str(path) for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dry-run", "--price=none"], "--price=none: give a number above 0"),
        (["--price=3"], "--price goes with --dry-run"),
        (["--dry-run", "sources.0.path=nowhere.txt"], "nowhere.txt"),
        (["--dry-run", "cleaning.keep_rejects=c.yaml"], "c.yaml is a file; give a folder"),
        (["--dry-run", "vocabulary.path=corpus.txt"], "corpus.txt, so a build would read it as text"),
        (["--dry-run", "vocabulary.path=new.bin", "vocabulary.train=true"], "must end in .txt"),
        (["--dry-run", "vocabulary={path: new.txt, train: true, algorithm: bpe}"], "merges of bpe"),
    ],
)
def test_a_planned_build_is_refused_as_a_build_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    folder = write_build(tmp_path)
    monkeypatch.chdir(folder)
    assert build_main(["--config", str(folder / "c.yaml"), f"output={folder / 'new'}", *words]) == 2
    assert message in capsys.readouterr().err


def test_of_a_finished_set_no_room_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build would leave it as it is: nothing is estimated, and a full disk that may only be read is no error."""
    folder = write_build(tmp_path)
    monkeypatch.chdir(folder)
    (folder / "set").mkdir()
    (folder / "set" / "manifest.json").write_text("{}")
    monkeypatch.setattr(pipeline_dry_run, "free_bytes", lambda path: 1)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    words = ["--config", str(folder / "c.yaml"), "--dry-run"]
    assert build_main([*words, f"output={folder / 'set'}", "--price=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("holds a finished set; the same settings and input leave it unchanged")
    assert build_main([*words, f"output={folder / 'new'}"]) == 2


def test_what_is_in_the_output_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("manifest.json", "a finished set"), ("_build.json", "an unfinished build")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("{}")
        assert text in pipeline_dry_run.describe_output(str(folder))
    (tmp_path / "mine").mkdir()
    write_text(tmp_path / "mine" / "a.txt", make_documents(1))
    with pytest.raises(ConfigError, match="contains files that no build has written"):
        pipeline_dry_run.describe_output(str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match=r"a\.txt is a file; give a folder"):
        pipeline_dry_run.describe_output(str(tmp_path / "mine" / "a.txt" / "b"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="no permission to write in"):
        pipeline_dry_run.describe_output(str(tmp_path / "new"))
    monkeypatch.setattr(pipeline_dry_run, "free_bytes", lambda path: 10)
    with pytest.raises(ConfigError, match=r"the build needs 1 kB at most and 10 B are free"):
        pipeline_dry_run.describe_room(str(tmp_path), needed=1000)
