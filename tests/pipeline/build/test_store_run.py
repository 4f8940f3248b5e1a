"""Whole runs whose output is on an object store: resumed on another host, with the same bits, logs and all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from faulty_store import FaultyStore
from object_store import bucket, environment_of, s3_server, upload_tree
from pipeline import storage
from pipeline.settings import ConfigError, split_arguments
from pipeline.signals import StopRequest
from pipeline.storage.lease import LeaseError, take
from small_runs import RunReport, check_output, curve, make_config, rows_by_step, run_rank, write_small_set
from small_runs import run as run_on_disk
from stored_checkpoints import kept, make_writer
from trainer.checkpoint.load import CheckpointError, find_checkpoints, newest_verified, read_weights
from trainer.config import ModelConfig, TrainerConfig
from trainer.export.folder import ExportError, export
from trainer.hf.pretrained import PretrainedError, initialize_from, load_model
from trainer.launch import preflight
from trainer.launch.run_directory import check_fresh, write_config
from trainer.launch.start import show_results
from trainer.model import BertForPretraining
from trainer.telemetry.log_files import RunFiles
from untrained_run import VOCABULARY_SIZE, write_data, write_run
from worker_group import WorkerError, WorkerGroup

__all__ = ["bucket", "s3_server"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_set(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def pair(worker_group: Callable[[int], WorkerGroup]) -> WorkerGroup:
    return worker_group(2)


def config_on(run: str, data: Path, *, host: Path, **changes: Any) -> TrainerConfig:
    """Of a run on a store; `host`: what is a node's own disk."""
    config = make_config(data, Path("unused"), **changes)
    return config.model_copy(update={"output": run, "working_folder": str(host)})


def run_with(rank: int, environment: dict[str, str], config: TrainerConfig, stop_at: int | None) -> RunReport:
    os.environ.update(environment)
    return run_rank(rank, config, stop_at)


def run(group: WorkerGroup, server: str, config: TrainerConfig, *, stop_at: int | None = None) -> RunReport:
    """The report of rank 0."""
    write_config(config)
    report: RunReport = group.run(run_with, environment_of(server), config, stop_at)[0]
    return report


def fetch(run: str, folder: Path) -> Path:
    """All of a run but its tensors, on this disk."""
    for file in storage.list_files(run):
        if not file.name.endswith(".safetensors"):
            storage.fetch_file(f"{run}/{file.name}", folder / file.name)
    return folder


def test_three_hosts_one_after_another_give_the_bits_of_one_disk(
    pair: WorkerGroup, bucket: str, s3_server: str, data: Path, tmp_path: Path
) -> None:
    """ray#45516, #46814: with the host its disk is lost; the next job finds checkpoint and logs."""
    output, changes = f"{bucket}/run", {"checkpoint": {"every_steps": 2}, "logging": {"row_ids": True}}
    whole = make_config(data, tmp_path / "whole", **changes)
    run_on_disk(pair, whole)
    reports = []
    for host, stop_at in (("a", 3), ("b", 6), ("c", None)):
        config = config_on(output, data, host=tmp_path / host, **changes)
        reports.append(run(pair, s3_server, config, stop_at=stop_at))
    assert [report.executed for report in reports] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    logs = RunFiles(output, working_folder=str(tmp_path / "b")).folder
    assert logs.parent == tmp_path / "b"
    assert f"logs are written to {logs} and sent to {output} with every checkpoint and at the end" in reports[1].said
    mine = fetch(output, tmp_path / "mine")
    assert curve(mine) == curve(tmp_path / "whole")
    assert rows_by_step(mine) == rows_by_step(tmp_path / "whole")
    assert (mine / "evaluations.jsonl").read_bytes() == (tmp_path / "whole" / "evaluations.jsonl").read_bytes()
    ours, theirs = (
        read_weights(newest_verified(find_checkpoints(place)) or "") for place in (output, tmp_path / "whole")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert find_checkpoints(output).newest_step == 9
    said: list[str] = []
    show_results(config, checkpoints=find_checkpoints(config.output), say=said.append, done_before=True)
    assert said[0] == "all 9 steps are done; nothing to train"
    assert f"loss curve: {output}/curve.png" in said
    assert said[-1].startswith(f"run directory: {output} (")
    assert storage.read_bytes(f"{output}/curve.png").startswith(b"\x89PNG")
    assert preflight.check(config).done


def test_logs_past_the_checkpoint_are_cut_and_what_a_disk_still_holds_does_not_count(
    pair: WorkerGroup, bucket: str, s3_server: str, data: Path, tmp_path: Path
) -> None:
    """After a kill a host's disk holds steps that no checkpoint has, and another host knows nothing of them."""
    output, changes = f"{bucket}/run", {"logging": {"row_ids": True, "tracker": "none"}}
    config = config_on(output, data, host=tmp_path / "a", **changes)
    run(pair, s3_server, config, stop_at=3)
    folder = RunFiles(output, working_folder=str(tmp_path / "a")).folder
    for name in ("metrics.jsonl", "rows-1.jsonl"):
        storage.write_bytes(f"{output}/{name}", (folder / name).read_bytes() + b'{"step": 4, "rows": []}\n{"st')
        (folder / name).write_bytes(b'{"step": 1, "stale": true}\n')
    (folder / "bad_steps.jsonl").write_text("stale\n")
    assert run(pair, s3_server, config).executed == [4, 5, 6, 7, 8, 9]
    mine = fetch(output, tmp_path / "mine")
    run_on_disk(pair, make_config(data, tmp_path / "whole", **changes))
    assert curve(mine) == curve(tmp_path / "whole")
    assert rows_by_step(mine) == rows_by_step(tmp_path / "whole")
    assert not (mine / "bad_steps.jsonl").exists()


def test_logs_of_ranks_that_are_no_more_are_cut_by_the_first(bucket: str, tmp_path: Path) -> None:
    output = f"{bucket}/run"
    for rank in range(3):
        storage.write_bytes(f"{output}/rows-{rank}.jsonl", b'{"step": 1}\n')
    storage.write_bytes(f"{output}/metrics.jsonl", b'{"step": 1}\n')
    ranks = [RunFiles(output, rank=rank, world_size=2, working_folder=str(tmp_path / str(rank))) for rank in (0, 1)]
    for files in ranks:
        files.fetch_logs()
    names = [sorted(path.name for path in files.folder.iterdir()) for files in ranks]
    assert names == [["metrics.jsonl", "rows-0.jsonl", "rows-2.jsonl"], ["rows-1.jsonl"]]
    for files in ranks:
        for path in files.folder.iterdir():
            path.write_bytes(b"")
        files.make_durable()
    assert {file.name: file.size for file in storage.list_files(output)} == dict.fromkeys(
        ["metrics.jsonl", "rows-0.jsonl", "rows-1.jsonl", "rows-2.jsonl"], 0
    )


def test_nothing_is_sent_without_the_lease(bucket: str, tmp_path: Path) -> None:
    """A job that was thought dead and wakes up leaves the successor's logs alone."""
    run = f"{bucket}/run"
    holder = take(run, timeout_s=60, say=print, stop=StopRequest())
    for token, allowed in ((holder.token, True), ("another", False)):
        files = RunFiles(run, working_folder=str(tmp_path / token), lease_token=token)
        files.fetch_logs()
        (files.folder / "metrics.jsonl").write_text(token)
        with nullcontext() if allowed else pytest.raises(LeaseError, match="this command lost its lease"):
            files.make_durable()
    assert storage.read_bytes(f"{run}/metrics.jsonl").decode() == holder.token
    writer = make_writer(run, token="another", files=files)
    writer.save(1, plan_state={})
    with pytest.raises(CheckpointError, match=r"step 1 is not committed: output=.*this command lost its lease"):
        writer.finish()


def test_what_is_refused_before_anything_starts(bucket: str, data: Path, tmp_path: Path) -> None:
    config = config_on(f"{bucket}/run", data, host=tmp_path)
    assert check_output(config) == []
    check_fresh(config, checkpoints=find_checkpoints(config.output))
    write_config(config)
    with pytest.raises(ConfigError, match=r"already holds a run \(no checkpoint yet\), and --fresh"):
        check_fresh(config, checkpoints=find_checkpoints(config.output))
    with pytest.raises(ConfigError, match=r"holds a run with other settings \(seed: 12345 -> 1\)"):
        check_output(config.model_copy(update={"seed": 1}))
    moved = config.model_copy(update={"working_folder": str(tmp_path / "other"), "workers": 1})
    assert check_output(moved) == ["changed since this run began: workers: 2 -> 1"]
    storage.write_bytes(f"{bucket}/other/file", b"x")
    with pytest.raises(ConfigError, match=r"is not empty and not a run directory \(no config\.yaml\)"):
        check_output(config.model_copy(update={"output": f"{bucket}/other"}))
    nowhere = config.model_copy(update={"output": "s3://no-such-bucket-of-ours/run"})
    with pytest.raises(OSError, match="there is no bucket s3://no-such-bucket-of-ours"):
        preflight.check(nowhere)
    with pytest.raises(ConfigError, match=r"cannot be written: .*there is no bucket"):
        write_config(nowhere)
    storage.write_bytes(f"{bucket}/run/config.yaml", b"data: [")
    with pytest.raises(ConfigError, match=rf"{bucket}/run/config.yaml line 1, column \d+: not valid YAML"):
        check_output(config)


def test_urls_stay_as_they_are_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: d\noutput: s3://b/runs/x/\nworking_folder: w\nbatch: {pairs: 8}\nmax_steps: 9\n")
    words = ["--config", str(file), "model.initialize_from=gs://b/model"]
    config = preflight.read_config(split_arguments(words, program="p"), repository=tmp_path)
    assert (config.output, config.model.initialize_from) == ("s3://b/runs/x", "gs://b/model")
    assert config.working_folder == str(Path.cwd() / "w")
    words = ["--config", str(file), "working_folder=s3://b/w"]
    with pytest.raises(ConfigError, match="working_folder=s3://b/w: object stores are not supported here"):
        preflight.read_config(split_arguments(words, program="p"), repository=tmp_path)


def test_a_worker_that_does_not_see_the_run_says_so(
    pair: WorkerGroup, bucket: str, s3_server: str, data: Path, tmp_path: Path
) -> None:
    config = config_on(f"{bucket}/run", data, host=tmp_path)
    with pytest.raises(WorkerError, match=r"output=s3://.*: node .* does not see the run directory"):
        pair.run(run_with, environment_of(s3_server), config, None)


# ---- models


def test_a_run_on_a_store_is_exported_and_an_export_on_one_is_started_from(
    bucket: str, tmp_path: Path, data: Path
) -> None:
    write_data(tmp_path / "set")
    model = write_run(tmp_path / "run", data=tmp_path / "set")
    local = export(tmp_path / "run", out=tmp_path / "local")
    run = upload_tree(tmp_path / "run", f"{bucket}/run")
    for number, source in enumerate((run, f"{run}/checkpoints/step-00000007")):
        done = export(source, out=tmp_path / str(number))
        assert (done.checkpoint, done.step) == (f"{run}/checkpoints/step-00000007", local.step)
        for path in local.folder.iterdir():
            assert (tmp_path / str(number) / path.name).read_bytes() == path.read_bytes(), path.name
    for nothing in (f"{bucket}/nothing", bucket):
        with pytest.raises(ExportError, match="holds no checkpoint; train first, or give a run directory"):
            export(nothing, out=tmp_path / "nothing")
    url = upload_tree(local.folder, f"{bucket}/model")
    fresh = BertForPretraining(ModelConfig(size="tiny"), vocabulary_size=VOCABULARY_SIZE, seed=1)
    initialize_from(fresh, folder=url, data_tokenizer=tmp_path / "set" / "tokenizer")
    for name, parameter in fresh.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name]), name
    assert load_model(url).config.size == "tiny"
    with pytest.raises(PretrainedError, match="is a run directory, not a model; export it first"):
        load_model(run)
    with pytest.raises(PretrainedError, match=rf"{bucket}/nothing: has no config.json"):
        load_model(f"{bucket}/nothing")


# ---- a store that errs: the short form of `make chaos stores`


@pytest.mark.parametrize("fault", ["busy", "cut off", "slow"])
def test_a_save_and_a_resume_get_through_a_store_that_errs(
    bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    store = FaultyStore(s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
    try:
        with store.struck_by(fault, every=4):
            writer = make_writer(f"{bucket}/run", keep_last=1)
            for step in (1, 2):
                writer.save(step, plan_state={})
                writer.finish()
            assert newest_verified(find_checkpoints(f"{bucket}/run")) == f"{bucket}/run/checkpoints/step-00000002"
            assert kept(f"{bucket}/run") == [2]
        assert store.struck > 5
    finally:
        store.close()
