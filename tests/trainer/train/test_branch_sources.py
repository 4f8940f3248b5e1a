"""What a branch has to know of its source: what it was trained on, and whether the plan goes on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.run import main as build
from pipeline.settings import ConfigError
from small_runs import make_config, run, write_small_set
from synthetic import write_data_set
from trainer.checkpoint.format import STATE, read_manifest, write_json, write_manifest
from trainer.checkpoint.load import find_checkpoints, read_state
from trainer.engine import memory
from trainer.launch import cards
from trainer.launch.preflight import check
from trainer.run import main
from worker_group import WorkerGroup

WORDS = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(120)]


def write_texts(folder: Path) -> None:
    """Numbered documents, and their vocabulary."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n")
    documents = [
        "\n".join(" ".join(WORDS[(number * 7 + line * k + k * k) % 120] for k in range(9)) for line in range(1, 6))
        + f"\n{' '.join(WORDS[(number // 120**p) % 120] for p in range(3))}\n"
        for number in range(400)
    ]
    (folder / "text.txt").write_text("\n".join(documents))


def build_set(folder: Path, *, fraction: float) -> Path:
    """The data set of these texts that holds such a fraction of them out."""
    out = folder / str(fraction)
    words = [f"sources=[{{kind: text, path: {folder / 'text.txt'}}}]", f"vocabulary.path={folder / 'vocab.txt'}"]
    words += [f"output={out}", f"validation_fraction={fraction}", "max_seq_length=32", "workers=1", "shards=2"]
    assert build(words) == 0
    return out


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets over one text that hold out none, a twentieth, and three tenths of it."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    for fraction in (0.0, 0.05, 0.3):
        build_set(folder, fraction=fraction)
    return folder


@pytest.fixture(scope="module")
def single(worker_group: Callable[[int], WorkerGroup]) -> WorkerGroup:
    return worker_group(1)


def configure(data: Path, output: Path, **changes: Any) -> Any:
    return make_config(data, output, **{"workers": 1, "max_steps": 4, "evaluation": {}, **changes})


@pytest.fixture(scope="module")
def source(single: WorkerGroup, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps over the set that holds none out."""
    output = tmp_path_factory.mktemp("runs") / "source"
    run(single, configure(texts / "0.0", output, max_steps=2))
    return output


# ---- held-out documents


def test_what_the_source_trained_on_may_not_be_held_out(
    single: WorkerGroup, texts: Path, source: Path, tmp_path: Path
) -> None:
    held_out, same = texts / "0.3", texts / "0.0"
    message = r"phases\.0\.data=.*0\.3: an earlier phase trains on .*: phase 0 of resume_from's run, .*0\.0, has"
    with pytest.raises(ConfigError, match=message):
        check(configure(held_out, tmp_path / "branch", resume_from=str(source)))
    between = check(configure(same, tmp_path / "between", resume_from=str(source), max_steps=3)).config
    run(single, between)
    with pytest.raises(ConfigError, match=message):
        check(configure(held_out, tmp_path / "branch", resume_from=str(tmp_path / "between")))


def test_what_the_source_held_out_may_be_trained_on(single: WorkerGroup, texts: Path, tmp_path: Path) -> None:
    """Also where the branch lists the phases that its source has done: they are not evaluated again."""
    phases = ({"data": str(texts / "0.3"), "max_steps": 1}, {"data": str(texts / "0.05"), "max_steps": 1})
    run(single, configure(texts / "0.3", tmp_path / "source", max_steps=2, phases=phases))
    phases = (*phases, {"data": str(texts / "0.05"), "max_steps": 2})
    config = configure(texts / "0.3", tmp_path / "branch", resume_from=str(tmp_path / "source"), phases=phases)
    assert not [line for line in check(config).lines if "WARNING" in line]


def test_sets_of_the_source_that_are_gone_are_told(
    single: WorkerGroup, texts: Path, source: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(texts / "0.0", tmp_path / "moved"))
    run(single, configure(moved, tmp_path / "source", max_steps=2))
    config = configure(texts / "0.3", tmp_path / "branch", resume_from=str(tmp_path / "source"))
    for shard in moved.rglob("*.parquet"):
        shard.unlink()
    for told in (r"cannot check whether .*moved", r"cannot check whether .*moved: no such data set"):
        (line,) = [line for line in check(config).lines if "WARNING" in line and "held out" in line]
        assert re.search(told, line), line
        shutil.rmtree(moved, ignore_errors=True)


# ---- rows that an older checkpoint does not say


def forget_rows(run_folder: Path, **settings: Any) -> Path:
    """The newest checkpoint as one was before it said which rows its weights had seen."""
    checkpoint = Path(find_checkpoints(run_folder).folders[-1])
    files = read_manifest(checkpoint)
    state = json.loads((checkpoint / STATE).read_text())
    del state["rows"]
    for key, value in settings.items():
        (state["config"] if key in state["config"] else state["config"]["model"])[key] = value
    files[STATE] = write_json(checkpoint / STATE, state)
    write_manifest(checkpoint, step=state["step"], files=files)
    return checkpoint


def write_masked_set(folder: Path, *, length: int) -> Path:
    """Without next sentences."""
    write_data_set(folder, rows=10, max_seq_length=length, vocabulary_size=256, next_sentence="none", shards=2)
    return folder


def test_a_branch_of_an_older_checkpoint_knows_what_its_source_trained(single: WorkerGroup, tmp_path: Path) -> None:
    data, plain = write_small_set(tmp_path / "data"), write_masked_set(tmp_path / "plain", length=24)
    run(single, configure(data, tmp_path / "old", max_steps=2))
    run(single, configure(plain, tmp_path / "plain-old", max_steps=2))
    for name, where, given, known in (
        ("data", data, None, (32, True)),
        ("plain", plain, None, (24, False)),
        ("given", plain, "/models/bert", (512, True)),
    ):
        source = forget_rows(
            Path(shutil.copytree(tmp_path / ("old" if where == data else "plain-old"), tmp_path / name / "run")),
            initialize_from=given,
        )
        branch = check(configure(plain, tmp_path / f"branch-{name}", resume_from=str(source))).config
        run(single, branch)
        for checkpoint in find_checkpoints(tmp_path / f"branch-{name}").folders:
            rows = read_state(checkpoint).rows
            assert (rows["longest"], rows["next_sentence"]) == known, (name, checkpoint)


def test_sets_of_an_older_checkpoint_that_are_gone_may_have_trained_all(single: WorkerGroup, tmp_path: Path) -> None:
    """The set of its last phase is known by its hash, wherever it lies now; one of an earlier phase is not."""
    data, plain = write_small_set(tmp_path / "data"), write_masked_set(tmp_path / "plain", length=24)
    phases = ({"data": str(data), "max_steps": 1}, {"data": str(plain), "max_steps": 1})
    run(single, configure(data, tmp_path / "old", max_steps=2, phases=phases))
    source = forget_rows(tmp_path / "old")
    shutil.rmtree(data)
    checked = check(configure(plain, tmp_path / "branch", resume_from=str(source)))
    assert any("cannot check whether" in line for line in checked.lines)
    run(single, checked.config, stop_at=3)
    rows = read_state(find_checkpoints(tmp_path / "branch").folders[-1]).rows
    assert (rows["longest"], rows["next_sentence"]) == (512, True)


# ---- the micro-batches of the source's plan


def test_the_sources_micro_batches_are_kept_only_with_its_plan(
    single: WorkerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the card that is here decides, as in any run that begins."""
    data = tmp_path / "data"
    write_data_set(data, shards=4, rows=500, max_seq_length=64, vocabulary_size=256)
    batch = {"tokens": 8192}
    run(single, configure(data, tmp_path / "old", max_steps=1, batch={**batch, "greatest_slot": 1024}))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cards, "find_local_card", lambda: memory.Card(80e9, "a card"))
    for changes, kept in (({}, True), ({"batch": {"tokens": 4096}}, False), ({"seed": 9}, False)):
        settings = {"resume_from": str(tmp_path / "old"), "device": "cuda", "batch": batch, **changes}
        checked = check(configure(data, tmp_path / "branch", **settings))
        assert any("the data continue" in line for line in checked.lines) == kept
        assert checked.config.batch.greatest_slot == (1024 if kept else None)


# ---- a run's own config


def test_a_run_of_an_earlier_release_is_branched_by_its_own_config(
    texts: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With settings that were taken then and have no effect; on the command line they are still refused."""
    old = Path(shutil.copytree(source, tmp_path / "old"))
    settings = yaml.safe_load((old / "config.yaml").read_text())
    settings["guard"].update(spike_factor=3.0, spike_window=50)
    settings["schedule"].update(name="constant", final_factor=0.5)
    (old / "config.yaml").write_text(yaml.safe_dump(settings))
    words = ["--config", str(old / "config.yaml"), f"resume_from={old}", f"output={tmp_path / 'branch'}", "max_steps=3"]
    assert main([*words, "--dry-run"]) == 0, capsys.readouterr().err
    assert main([*words, "--dry-run", "schedule.final_factor=0.4"]) == 2
    assert "schedule.final_factor=0.4 has no effect" in capsys.readouterr().err
    shutil.copy(old / "config.yaml", tmp_path / "config.yaml")
    assert main(["--config", str(tmp_path / "config.yaml"), *words[2:], "--dry-run"]) == 2
