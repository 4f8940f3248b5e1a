"""A tracker by one setting, of rank 0 alone; a resumed run stays one run. The dashboard asks for what there is."""

from __future__ import annotations

import collections
import json
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_metrics import CONFIG, make_metrics, make_step

from cluster import dashboard
from pipeline.engines import prometheus
from pipeline.settings import ConfigError, load_settings, to_tree
from trainer.config import LoggingConfig, TrainerConfig
from trainer.config.saved import read_run_config
from trainer.telemetry import prometheus as run_gauges
from trainer.telemetry import trackers
from trainer.telemetry.metrics import RunLog
from trainer.telemetry.prometheus import list_names


def settings(output: Path, tracker: str) -> TrainerConfig:
    logging = LoggingConfig.model_validate({"tracker": tracker})
    return CONFIG.model_copy(update={"logging": logging, "output": str(output)})


def write_steps(output: Path, tracker: str, *, first: int, last: int, rank: int = 0) -> None:
    """One start of a run: the steps after `first`, up to `last`."""
    output.mkdir(exist_ok=True)
    log = RunLog(
        output, config=settings(output, tracker), rank=rank, world_size=2, resume_step=first, say=lambda line: None
    )
    for step in range(first + 1, last + 1):
        log.write_step(make_metrics(step=step, loss=float(step)), data=make_step(), show=False)  # type: ignore[arg-type]
    log.close()


def test_mlflow_has_one_run_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    output = tmp_path / "run"
    write_steps(output, "mlflow", first=0, last=2)
    write_steps(output, "mlflow", first=2, last=3)
    write_steps(output, "mlflow", first=0, last=1, rank=1)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(output / "mlflow").as_uri())
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params["batch.pairs"] == str(CONFIG.batch.pairs)
    losses = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "train/loss")}
    assert losses == {1: 1.0, 2: 2.0, 3: 3.0}


def test_wandb_has_one_id_over_restarts_and_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    output = tmp_path / "run"
    for first in (0, 2):
        write_steps(output, "wandb", first=first, last=first + 1)
    write_steps(output, "wandb", first=0, last=1, rank=1)
    kept = sorted(path for path in (output / "wandb").rglob("*.wandb") if path.is_file() and not path.is_symlink())
    assert kept
    assert {path.stem for path in kept} == {f"run-{trackers.run_id(str(output))}"}


def test_tensorboard_and_none_by_the_one_setting(tmp_path: Path) -> None:
    assert LoggingConfig().tracker == "tensorboard"
    for tracker, folders in (("tensorboard", ["tensorboard"]), ("none", [])):
        output = tmp_path / tracker
        write_steps(output, tracker, first=0, last=1)
        assert [path.name for path in output.iterdir() if path.is_dir()] == folders
    for value in ("true", "false"):
        with pytest.raises(
            ConfigError, match=r"logging\.tensorboard was removed; set logging\.tracker=tensorboard or none"
        ):
            load_settings(TrainerConfig, overrides=["data=d", "output=o", f"logging.tensorboard={value}"])


@pytest.mark.parametrize(
    ("saved", "tracker"),
    [
        ({"tensorboard": True, "tracker": None}, "tensorboard"),
        ({"tensorboard": False, "tracker": None}, "none"),
        ({"tensorboard": False}, "none"),
        ({"tensorboard": True, "tracker": "wandb"}, "wandb"),
        ({"tracker": "mlflow"}, "mlflow"),
    ],
)
def test_runs_of_before_are_still_read(tmp_path: Path, saved: dict[str, object], tracker: str) -> None:
    tree = to_tree(CONFIG)
    tree["logging"] = {**{key: value for key, value in tree["logging"].items() if key != "tracker"}, **saved}
    (tmp_path / "config.yaml").write_text(json.dumps(tree), encoding="ascii")
    assert read_run_config(tmp_path) == settings(Path(CONFIG.output), tracker)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(trackers.importlib, "import_module", refuse)
    with pytest.raises(ConfigError, match=r"logging\.tracker=wandb: the package wandb is not installed; pip install"):
        trackers.open_tracker(settings(tmp_path, "wandb"), run_directory=tmp_path, resume_step=0)


@pytest.mark.parametrize("call", ["write", "close"])
def test_a_tracker_that_fails_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def fail(self: object, *given: object, **named: object) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(trackers.TensorBoard, call, fail)
    write_steps(tmp_path, "tensorboard", first=0, last=3)
    assert caplog.text.count("the tracker failed (ConnectionError: nobody answers); training continues without it") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_runs_of_the_same_last_name_are_two_series(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, str]] = []

    class Metric:
        def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...]) -> None:
            self._name, self._keys = name, tag_keys

        def set(self, value: float, *, tags: dict[str, str]) -> None:
            assert self._keys == tuple(tags) == ("run",)
            taken.append((self._name, tags["run"]))

        inc = set

    monkeypatch.setattr(run_gauges, "Gauge", Metric)
    monkeypatch.setattr(run_gauges, "Counter", Metric)
    outputs = ["/runs/a/x", "/runs/b/x", "s3://bucket/runs/x"]
    for output in outputs:
        run_gauges.Gauges(output).write_checkpoint(0.5)
        run_gauges.RestartCount(output).add()
    for name in ("cloze_checkpoint_pause_s", "cloze_checkpoints", "cloze_restarts"):
        assert [run for metric, run in taken if metric == name] == outputs


def test_the_dashboard_is_what_is_shipped_and_asks_for_names_that_there_are() -> None:
    shipped = json.loads(dashboard.FILE.read_text(encoding="ascii"))
    assert shipped == dashboard.make_dashboard(), "run `python -m cluster.dashboard`"
    asked = set(re.findall(r"ray_cloze_\w+", dashboard.FILE.read_text(encoding="ascii")))
    assert asked <= {*list_names(), *prometheus.list_names()}
    assert len(asked) > 10


def test_builds_into_folders_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, str]] = []

    class Counter:
        def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name = name

        def inc(self, value: int, *, tags: dict[str, str]) -> None:
            told.append((self.name, value, tags["build"]))

    monkeypatch.setattr(prometheus.metrics, "Counter", Counter)
    progress = SimpleNamespace(count=lambda stage: collections.Counter(rows=3 * (stage == "shard")))
    outputs = ("/runs/a/x", "/runs/b/x", "s3://sets/x")
    with ExitStack() as stack:
        for output in outputs:
            stack.enter_context(prometheus.serve_progress(progress, output=output))  # type: ignore[arg-type]
    assert sorted(told) == [("cloze_build_rows", 3, output) for output in outputs]
