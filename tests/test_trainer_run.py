"""The command: paths, help, refusals before anything starts, signals, going on; launched as processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import get_origin

import pytest
from small_runs import curve, make_config, run, write_small_set
from synthetic import write_data_set

from pipeline.settings import ConfigError, Settings, load_settings, nested_settings, split_arguments
from trainer import launch_processes, preflight
from trainer import run as train_run
from trainer.checkpoint import list_checkpoints
from trainer.config import TrainerConfig
from trainer.launch import Failure, Outcome, StopRequest, WorkerError, raise_first, stop_on_signals
from trainer.lease import hold
from trainer.metrics import read_json_lines
from trainer.run import PROGRAM, main
from trainer.run_directory import write_config


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_set(tmp_path_factory.mktemp("data"))


@pytest.fixture
def config_file(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"data: {data}\noutput: {tmp_path / 'run'}\nmodel: {{size: tiny}}\nbatch: {{pairs: 8, lanes: 4}}\n"
        f"max_steps: 9\nworkers: 2\nprecision: fp32\nlauncher: processes\ndevice: cpu\nthreads_per_worker: 1\n"
        f"optimizer: {{learning_rate: 3e-3}}\nlogging: {{every_steps: 1}}\nevaluation: {{max_pairs: 16}}\n"
    )
    return path


def refusal(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that is refused."""
    assert main([str(argument) for argument in arguments]) == 2
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    return line


# ---- help and paths


def test_help_documents_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    def keys(cls: type[Settings], prefix: str) -> Iterator[str]:
        for name, field in cls.model_fields.items():
            assert field.description, f"{prefix}{name} has no docstring"
            yield f"{prefix}{name}"
            inner = nested_settings(field.annotation)
            if inner is not None:
                many = get_origin(field.annotation) is tuple
                yield from keys(inner, f"{prefix}{name}.N." if many else f"{prefix}{name}.")

    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for key in keys(TrainerConfig, ""):
        assert re.search(rf"^  {re.escape(key)}[: ]", text, re.MULTILINE), key
    assert "--config FILE" in text


def read(*words: str, repository: Path) -> TrainerConfig:
    return preflight.read_config(split_arguments(words, program=PROGRAM), repository=repository)


def test_the_sample_config_is_relative_to_the_repository_and_overrides_to_the_current_directory(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = read(repository=repository)
    assert (config.data, config.output) == (str(repository / "data/sample-set"), str(repository / "runs/sample"))
    config = read("output=out/../mine", repository=repository)
    assert (config.data, config.output) == (str(repository / "data/sample-set"), str(tmp_path / "mine"))


def test_a_given_config_is_relative_to_the_current_directory(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("sub/c.yaml").write_text("data: set\noutput: /abs/run\nbatch: {pairs: 8}\nmax_steps: 5\n")
    config = read("--config", "sub/c.yaml", "model.initialize_from=bert", repository=repository)
    assert (config.data, config.output) == (str(tmp_path / "set"), "/abs/run")
    assert config.model.initialize_from == str(tmp_path / "bert")


def test_paths_may_begin_with_the_home_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("data=~/set", repository=repository).data == str(tmp_path / "set")
    with pytest.raises(ConfigError, match="output='': not a path"):
        read("output=''", repository=repository)


def test_an_error_of_the_file_system_is_one_line(config_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for key in ("data", "output", "model.initialize_from"):
        assert "File name too long" in refusal(capfd, "--config", config_file, f"{key}={'a' * 300}")


def test_relative_paths_in_an_uploaded_job_are_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"runtime_env": {"working_dir": "gcs://_ray_pkg_1.zip"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    with pytest.raises(ConfigError, match=r"data=data/sample-set: this job runs in an uploaded copy.*data=\$PWD/data"):
        read(repository=repository)
    with pytest.raises(ConfigError, match="output=runs/sample: this job runs in an uploaded copy"):
        read("data=/data/set", repository=repository)
    assert read("data=/data/set", "output=/runs/1", repository=repository).output == "/runs/1"


def test_relative_paths_in_a_job_without_an_upload_are_allowed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": {}, "metadata": {}}))
    assert read(repository=repository).data == str(repository / "data/sample-set")


def test_without_config_the_first_line_says_which_one_is_used(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([f"data={tmp_path / 'none'}", f"output={tmp_path / 'run'}"]) == 2
    output = capfd.readouterr()
    assert output.out.splitlines()[0] == f"no --config given: using {repository / 'trainer/configs/sample.yaml'}"
    assert output.err.startswith(f"error: {tmp_path / 'none'}: no such data set folder")


@pytest.mark.parametrize("command", [["trainer/run.py"], ["-m", "trainer.run"]])
def test_script_and_module_run_the_repository_they_are_in_from_anywhere(
    command: list[str], repository: Path, tmp_path: Path
) -> None:
    words = [str(repository / command[0])] if command[0] != "-m" else command
    result = subprocess.run(
        [sys.executable, *words, f"data={tmp_path}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout.startswith("no --config given: using ")
    assert re.fullmatch(r"error: .*has no manifest\.json.*\n", result.stderr)


# ---- refusals: one line, exit 2, nothing written


def test_unknown_words_flags_and_keys(capfd: pytest.CaptureFixture[str], config_file: Path) -> None:
    assert "'fast' is neither" in refusal(capfd, "fast")
    assert "unknown option --confg; did you mean --config?" in refusal(capfd, "--confg")
    assert "did you mean 'max_steps'?" in refusal(capfd, "--config", config_file, "max_step=3")
    assert "takes nothing after '--'" in refusal(capfd, "--config", config_file, "--", "x")
    assert "no such config file" in refusal(capfd, "--config", config_file.with_name("absent.yaml"))


def test_settings_that_do_not_go_with_the_data_set(
    capfd: pytest.CaptureFixture[str], config_file: Path, tmp_path: Path
) -> None:
    def refused(*overrides: str) -> str:
        return refusal(capfd, "--config", config_file, *overrides)

    assert "max_seq_length=32 exceeds model.max_positions=16; raise" in refused("model.max_positions=16")
    assert "workers=8 exceeds the 1 lanes of the plan" in refused("workers=8", "batch.lanes=null")
    assert "batch.tokens_per_slot=16 is below" in refused("batch.tokens_per_slot=16")
    assert "exceeds batch.lanes=4" in refused("workers=5")
    assert "has no config.json" in refused(f"model.initialize_from={tmp_path}")
    assert not (tmp_path / "run").exists()


def test_a_data_set_that_is_not_whole(capfd: pytest.CaptureFixture[str], config_file: Path, tmp_path: Path) -> None:
    manifest = write_data_set(tmp_path / "set", rows=10, max_seq_length=32)
    words = ("--config", config_file, f"data={tmp_path / 'set'}")
    shard = tmp_path / "set" / manifest.shards[0].path
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    assert f"{shard}: {len(content) - 1} bytes, the manifest says {len(content)}" in refusal(capfd, *words)
    shard.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    assert f"{shard}: sha256" in refusal(capfd, *words, "ingest.verify=full")
    shard.unlink()
    assert f"{shard}: listed in the manifest but missing" in refusal(capfd, *words)
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_that_was_changed(capfd: pytest.CaptureFixture[str], config_file: Path, tmp_path: Path) -> None:
    write_data_set(tmp_path / "set", rows=10, max_seq_length=32)
    vocabulary = tmp_path / "set" / "tokenizer" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "extra\n")
    assert f"{vocabulary}: sha256" in refusal(capfd, "--config", config_file, f"data={tmp_path / 'set'}")


def test_a_data_set_without_training_rows(capfd: pytest.CaptureFixture[str], config_file: Path, tmp_path: Path) -> None:
    write_data_set(tmp_path / "set", shards=0, rows=10, max_seq_length=32)
    assert "holds no train rows" in refusal(capfd, "--config", config_file, f"data={tmp_path / 'set'}")


def test_gpus_that_are_not_there(capfd: pytest.CaptureFixture[str], config_file: Path, tmp_path: Path) -> None:
    line = refusal(capfd, "--config", config_file, "device=cuda")
    assert re.search(r"workers=2 on device=cuda need 2 GPUs, this machine shows \d; lower workers or set", line)
    assert not (tmp_path / "run").exists()


# ---- failures and signals


def make_failure(rank: int, *, by_input: bool, time_s: float) -> Failure:
    return Failure(rank, f"from {rank}", by_input, "Traceback ...", time_s)


def test_the_first_cause_is_raised() -> None:
    raise_first([])
    with pytest.raises(WorkerError, match=r"worker 1 failed: from 1\nTraceback"):
        raise_first([make_failure(0, by_input=False, time_s=2.0), make_failure(1, by_input=False, time_s=1.0)])
    with pytest.raises(ConfigError, match="from 0"):  # rank 0 has heard what the others know
        raise_first([make_failure(1, by_input=True, time_s=1.0), make_failure(0, by_input=True, time_s=2.0)])
    with pytest.raises(ConfigError, match="from 1"):
        raise_first([make_failure(2, by_input=True, time_s=2.0), make_failure(1, by_input=True, time_s=1.0)])
    with pytest.raises(ConfigError, match="from 0"):
        raise_first([make_failure(0, by_input=True, time_s=2.0), make_failure(1, by_input=False, time_s=1.0)])


def test_a_failure_says_whose_fault_it_is() -> None:
    for error, by_input in ((ValueError("a\nb"), True), (OSError(28, "No space"), True), (KeyError("x"), False)):
        try:
            raise error
        except Exception as caught:
            failure = Failure.of(caught, rank=3)
        assert (failure.rank, failure.by_input) == (3, by_input)
        assert "\n" not in failure.message
        assert type(error).__name__ in failure.traceback


def test_the_second_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
        assert stop.signal_number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_lease_is_waited_for_names_itself_in_the_status(
    config_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, tmp_path: Path
) -> None:
    def say(line: str) -> None:
        print(line)
        if "waiting 60 s for a sign of life" in line:
            signal.raise_signal(number)

    monkeypatch.setattr(train_run, "_print", say)
    with hold(tmp_path / "run", timeout_s=60, say=print, stop=StopRequest()):
        lease = tmp_path / "run" / "lease.json"
        lease.write_text(json.dumps({**json.loads(lease.read_text()), "host": "elsewhere"}))
        assert main(["--config", str(config_file)]) == 128 + number
    assert "interrupted; the same command goes on" in capfd.readouterr().err


def test_children_are_born_with_signals_blocked(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes while they import would end them: no checkpoint, and a loss in place of status 130."""
    blocked: list[bool] = []

    class Child:
        def __init__(self, **_: object) -> None: ...

        def start(self) -> None:
            resource_tracker.getfd()  # type: ignore[attr-defined]  # as what starts a child does
            blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

        def is_alive(self) -> bool:
            return False

        def join(self) -> None: ...

    tracker = resource_tracker._resource_tracker  # type: ignore[attr-defined]
    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Child)
    done = Outcome(first_step=0, last_step=9, finished=True)
    with monkeypatch.context() as patch:
        patch.setattr(tracker, "_fd", None)
        patch.setattr(tracker, "_pid", None)
        patch.setattr(launch_processes.multiprocessing, "get_context", lambda _: context)
        patch.setattr(launch_processes, "_listen", lambda *_, **__: done)
        config = make_config(data, tmp_path / "run")
        assert launch_processes.run_in_processes(config, say=print, stop=StopRequest()) == done
        os.close(tracker._fd)
    assert blocked == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def wait_for_steps(output: Path, count: int, *, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while len(read_json_lines(output / "metrics.jsonl")) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_signal_ends_a_run_with_a_checkpoint_and_the_same_command_finishes_it(
    config_file: Path, data: Path, repository: Path, tmp_path: Path, worker_group: object
) -> None:
    """The real command in real processes: SIGTERM, SIGKILL to all, then to the end; the curve is the whole one's.

    ray#22349, #63968: survivors of a lost node hang; the notice of pre-emption is not used.
    """
    output = tmp_path / "run"
    words = ["--config", str(config_file), "max_steps=60", "checkpoint.every_steps=10"]
    command = [sys.executable, str(repository / PROGRAM), *words]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    process = start()
    wait_for_steps(output, 3, process=process)
    process.send_signal(signal.SIGTERM)
    text, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    steps = len(read_json_lines(output / "metrics.jsonl"))
    assert 3 <= steps < 60
    assert f"stopped at step {steps} of 60; the same command goes on from there" in text
    assert [path.name for path in list_checkpoints(output)][-1] == f"step-{steps:08d}"

    process = start()
    wait_for_steps(output, steps + 2, process=process)
    process.kill()  # the parent alone: the workers must follow it
    process.communicate()
    assert_no_worker_of(process.pid)
    resumed_from = int(list_checkpoints(output)[-1].name.removeprefix("step-"))

    process = start()
    text, errors = process.communicate()
    assert process.returncode == 0, errors
    assert f"resumed at step {resumed_from} of 60" in text
    assert "held-out masked-LM loss" in text
    assert (output / "curve.png").stat().st_size > 10_000
    whole = make_config(data, tmp_path / "whole", max_steps=60)
    run(worker_group(2), whole)  # type: ignore[operator]
    assert curve(output) == curve(tmp_path / "whole")


def assert_no_worker_of(pid: int) -> None:
    deadline = time.monotonic() + 300
    while True:
        alive = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if f"parent_pid={pid}".encode() in entry.read_bytes():
                    alive.append(entry.parent.name)
            except OSError:  # it has just ended
                continue
        if not alive:
            return
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def test_when_all_is_done_the_command_says_so_and_starts_nothing(
    config_file: Path, capfd: pytest.CaptureFixture[str], worker_group: object, tmp_path: Path
) -> None:
    config = load_settings(TrainerConfig, file=config_file)
    run(worker_group(2), config)  # type: ignore[operator]
    assert main(["--config", str(config_file)]) == 0
    text = capfd.readouterr().out
    assert "all 9 steps are done; nothing to train" in text
    assert "held-out masked-LM loss" in text
    assert str(tmp_path / "run" / "curve.png") in text
    assert len(list_checkpoints(tmp_path / "run")) == 1


def test_what_fails_in_a_worker_reaches_the_user_as_one_line(
    config_file: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every step diverges: the workers refuse in the midst of training."""
    line = refusal(
        capfd,
        *("--config", config_file, "optimizer.learning_rate=1e30", "optimizer.clip_norm=0", "schedule.name=constant"),
        "workers=1",
    )
    assert re.match(r"error: step \d: loss (nan|inf)", line)
    assert list_checkpoints(tmp_path / "run") == []


def test_a_worker_that_is_lost_is_named(data: Path, tmp_path: Path) -> None:
    """ray#42008, #50874, #58870: one rank fails and the others wait for ever."""
    config = make_config(data, tmp_path / "run", max_steps=10_000)
    write_config(config)
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if line.startswith("training from"):
            victims = [child for child in multiprocessing_children() if child.name == "worker-1"]
            os.kill(victims[0].pid or 0, signal.SIGKILL)

    with pytest.raises(WorkerError, match=r"worker 1 was lost: ended by signal 9 \(SIGKILL\); out of memory\?"):
        launch_processes.run_in_processes(config, say=say, stop=StopRequest())
    assert multiprocessing_children() == []


def multiprocessing_children() -> list[object]:
    import multiprocessing

    return [child for child in multiprocessing.active_children() if child.name.startswith("worker-")]
