"""Pushes of data sets to a hub: what it then holds is the set, which `datasets` loads by the card."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from hub_server import OWNER, TOKEN, Hub, refusal_of
from pipeline import push
from pipeline.dataset.manifest import open_data_set
from pipeline.front_matter import card_languages, render_front_matter, split_front_matter
from pipeline.hub import repository

NAME = f"{OWNER}/pairs"
fails = partial(refusal_of, push.main)


def test_the_hub_holds_the_set_and_datasets_loads_it(
    hub: Hub, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / "notes.txt").write_text("mine")
    monkeypatch.setattr(repository, "_TOGETHER", 1)
    assert push.main([str(copied), NAME, "--license", "cc-by-sa-4.0"]) == 0
    stored = hub.repositories["dataset", NAME]
    manifest = open_data_set(copied)
    assert stored.private
    shards = [file for file in stored.files() if file.endswith(".parquet")]
    assert len([line for line in hub.log if line.endswith("/objects/batch")]) == len(shards) > 2
    assert stored.titles() == [f"Cloze: data set {manifest.hash[:16]}", "initial commit"]
    pushed = stored.write_to(tmp_path / "pushed")
    assert open_data_set(pushed, full=True) == manifest
    assert not (pushed / "notes.txt").exists()
    front, body = split_front_matter((pushed / "README.md").read_text(), origin="README.md")
    before, same_body = split_front_matter((copied / "README.md").read_text(), origin="README.md")
    assert front == {**before, "license": "cc-by-sa-4.0"}
    assert body == same_body
    assert front["language"] == ["en"]

    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    loaded = datasets.load_dataset(str(pushed), cache_dir=str(tmp_path / "cache"))
    for split in ("train", "validation"):
        tables = [pq.read_table(copied / shard.path, columns=["input_ids"]) for shard in manifest.shards_of(split)]
        assert loaded[split]["input_ids"][:] == [ids for table in tables for ids in table["input_ids"].to_pylist()]


def test_the_same_push_again_sends_nothing(hub: Hub, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert push.main([str(copied), NAME]) == 0
    assert "note: the card names no licence" in capsys.readouterr().out
    hub.log.clear()
    assert push.main([str(copied), NAME]) == 0
    assert hub.changes() == []
    assert "left alone, the hub has the same files" in capsys.readouterr().out


def test_a_dry_run_verifies_and_sends_nothing(
    hub: Hub, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push.main([str(copied), NAME, "--dry-run"]) == 0
    said = capsys.readouterr().out
    shard = open_data_set(copied).shards[0]
    assert f"  {shard.path}  {shard.bytes:,} bytes  to send" in said
    assert "new, private" in said
    assert hub.changes() == []
    monkeypatch.delenv("HF_TOKEN")
    hub.log.clear()
    assert push.main([str(copied), NAME, "--dry-run", "--public"]) == 0
    said = capsys.readouterr().out
    assert f"  {shard.path}  {shard.bytes:,} bytes  not asked" in said
    assert "public if it is new" in said
    assert hub.log == []


def test_sets_that_are_not_whole_are_refused(
    hub: Hub, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = copied / open_data_set(copied).shards[0].path
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    assert "differs from the manifest's" in fails(capsys, str(copied), NAME)
    content[100] ^= 1
    shard.write_bytes(content)
    card = copied / "README.md"
    text = card.read_text()
    front, body = split_front_matter(text, origin="README.md")
    for changed in (
        body,
        render_front_matter({**front, "configs": "no"}) + body,
        render_front_matter({**front, "configs": [{"data_files": [{"split": "train", "path": "x-*.parquet"}]}]}) + body,
    ):
        card.write_text(changed)
        assert "has no data_files of split train that name data/train-" in fails(capsys, str(copied), NAME)
    card.write_bytes(b"\xff")
    assert "README.md: byte 0 is not UTF-8" in fails(capsys, str(copied), NAME)
    card.write_text("---\na: [\n---\n")
    assert "README.md, front matter" in fails(capsys, str(copied), NAME)
    card.unlink()
    assert "README.md: is missing" in fails(capsys, str(copied), NAME)
    card.write_text(text)
    (copied / "manifest.json").unlink()
    assert "not a (finished) data set" in fails(capsys, str(copied), NAME)
    assert "copy the set to a disk" in fails(capsys, "s3://bucket/set", NAME)
    assert "no such data set folder" in fails(capsys, str(tmp_path / "absent"), NAME)
    assert not hub.repositories
    assert hub.changes() == []


def test_a_name_that_is_a_model_is_refused(hub: Hub, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.create("model", NAME)
    said = fails(capsys, str(copied), NAME)
    assert "is a model repository, and this is a dataset; choose another name (python -m trainer.push writes" in said
    assert "the hub refuses the card" in fails(capsys, str(copied), f"{OWNER}/other", "--license", "mine")


def test_another_set_replaces_the_first_whole(hub: Hub, copied: Path, clean_set: Path, tmp_path: Path) -> None:
    from corpora import build_text, make_documents

    assert push.main([str(copied), NAME]) == 0
    build_text(tmp_path / "other", make_documents(60), validation_fraction=0, shards=1)
    assert push.main([str(tmp_path / "other" / "out"), NAME]) == 0
    stored = hub.repositories["dataset", NAME]
    assert open_data_set(stored.write_to(tmp_path / "pushed"), full=True) == open_data_set(tmp_path / "other" / "out")
    shards = [name for name in stored.files() if name.startswith("data/")]
    assert shards == ["data/train-00000-of-00001.parquet"]


def test_a_killed_push_is_not_seen_and_continues(
    hub: Hub, copied: Path, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, reached = threading.Event(), threading.Event()
    received: list[str] = []

    def hold(request: str) -> None:
        if request.startswith("PUT "):
            received.append(request)
            if len(received) > 2:
                reached.set()
                held.wait(60)

    hub.before = hold
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(repository),
    }  # fmt: skip
    words = [sys.executable, "-m", "pipeline.push", str(copied), NAME]
    child = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reached.wait(300), child.communicate()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    hub.before = lambda request: None
    held.set()
    stored = hub.repositories["dataset", NAME]
    assert list(stored.files()) == [".gitattributes"]
    hub.log.clear()
    assert push.main([str(copied), NAME]) == 0
    assert open_data_set(stored.write_to(tmp_path / "pushed"), full=True) == open_data_set(copied)
    again = [line for line in hub.log if line in received[:2]]
    assert again == [], "what the hub had was sent again"


def test_languages_of_wikis_become_codes_that_the_hub_knows() -> None:
    assert card_languages(["simple", "zh-yue", "be-tarask", "ko", "nds_nl", "my own"]) == [
        "be", "en", "ko", "nds", "zh",
    ]  # fmt: skip


def test_front_matter_is_written_as_it_is_read() -> None:
    tree = {"license": "mit", "tags": ["a", "b"], "title": "가"}
    assert split_front_matter(render_front_matter(tree) + "\n# T\n---\n", origin="x") == (tree, "\n# T\n---\n")
    assert split_front_matter("# T\n", origin="x") == ({}, "# T\n")
    assert yaml.safe_load(render_front_matter(tree).split("---\n")[1]) == tree
