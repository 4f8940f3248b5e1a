"""The command: help, paths, refusals before anything starts; test_trainer_signals.py has what comes after."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_origin

import pytest

from pipeline.settings import ConfigError, Settings, nested_settings, split_arguments
from synthetic import write_data_set
from trainer.config.schema import TrainerConfig
from trainer.launch import preflight
from trainer.run import PROGRAM, main
from trainer_command import refusal

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
    assert "workers=8 exceeds the 1 lane of the plan" in refused("workers=8", "batch.lanes=null")
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
    assert re.search(r"workers=2 on device=cuda need 2 GPUs, this machine has \d; lower workers or set", line)
    assert not (tmp_path / "run").exists()
