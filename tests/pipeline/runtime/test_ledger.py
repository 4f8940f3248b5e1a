"""Records of finished pieces: found while everything is as it was, swept when nobody vouches for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.runtime.ledger import Ledger, list_records


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    (tmp_path / "spills").mkdir()
    made = Ledger(str(tmp_path), "build")
    assert made.sweep(folders=["spills"], splits=[]).total() == 0
    return made


def record(ledger: Ledger, name: str, *, kind: str = "split") -> Path:
    path = Path(ledger.root) / "spills" / name
    path.write_text(name)
    ledger.record("split" if kind == "split" else "shard", key=[name], files=[path], content={"of": name})
    return path


def test_a_piece_is_found_by_its_key_and_build(ledger: Ledger) -> None:
    record(ledger, "a")
    assert ledger.find("split", key=["a"]) == {"of": "a"}
    assert ledger.find("split", key=["b"]) is None
    assert ledger.find("shard", key=["a"]) is None
    assert Ledger(ledger.root, "other").find("split", key=["a"]) is None
    assert ledger.take_damaged() == []


@pytest.mark.parametrize("text", ["", "no JSON\n{}", '{"build": "build"}\n{}'])
def test_what_is_no_record_is_damage(ledger: Ledger, text: str) -> None:
    """As a disk may leave it that lost power."""
    record(ledger, "a")
    (path,) = map(Path, list_records(ledger.root))
    path.write_text(text)
    assert ledger.find("split", key=["a"]) is None
    assert ledger.take_damaged() == [f"{path}: not a record"]
    assert ledger.take_damaged() == []
    assert list_records(ledger.root) == []


@pytest.mark.parametrize("name", ["../mine", "/mine", "spills/../../mine"])
def test_a_record_that_names_files_elsewhere_is_damage_and_they_stay(ledger: Ledger, name: str) -> None:
    record(ledger, "a")
    (path,) = map(Path, list_records(ledger.root))
    mine = Path(ledger.root).parent / "mine"
    mine.write_text("mine")
    path.write_text(path.read_text().replace("spills/a", str(mine) if name == "/mine" else name))
    assert ledger.find("split", key=["a"]) is None
    assert ledger.take_damaged() == [f"{path}: not a record"]
    assert mine.read_text() == "mine"


def test_a_damaged_piece_is_removed_with_its_files(ledger: Ledger) -> None:
    path = record(ledger, "a")
    path.write_text("b")
    assert ledger.find("split", key=["a"]) is None
    assert ledger.take_damaged() == [f"{path}: changed since it was written"]
    assert not path.exists()
    assert ledger.find("split", key=["a"]) is None
    assert ledger.take_damaged() == []


def test_what_no_record_vouches_for_is_swept(ledger: Ledger) -> None:
    kept, shard, unnamed, other = record(ledger, "a"), record(ledger, "b", kind="shard"), record(ledger, "c"), "d"
    record(Ledger(ledger.root, "other"), other)
    half = Path(ledger.root) / "spills" / "half.arrow"
    half.write_text("")
    (Path(ledger.root) / "finished" / "split-x.1234").write_text("half a record")
    (Path(ledger.root) / "finished" / "split-y.json").write_text("no record")
    found = ledger.sweep(folders=["spills"], splits=[ledger.record_name("split", ["a"])])
    assert found == {"split": 1, "shard": 1}
    assert sorted((Path(ledger.root) / "spills").iterdir()) == sorted([kept, shard])
    assert not unnamed.exists()
    assert len(list((Path(ledger.root) / "finished").iterdir())) == 2


def test_a_record_that_cannot_be_written_leaves_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        record(ledger, "a")
    assert list((Path(ledger.root) / "finished").iterdir()) == []
