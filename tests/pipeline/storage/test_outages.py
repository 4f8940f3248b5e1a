"""A store that fails is not taken for damage: what is finished stays, no row is passed over, nobody is told to restore
what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from ingest_streams import make_plan
from pipeline import storage
from pipeline.audit import data_set
from pipeline.audit.findings import Findings
from pipeline.dataset.manifest import read_manifest
from pipeline.output.identity import BuildMark
from pipeline.runtime.ledger import Ledger
from pipeline.runtime.progress import ProgressPrinter, WorkReport
from pipeline.storage import StorageError
from small_runs import write_small_set
from trainer.data import readers
from trainer.data.row_groups import make_slices, read_slice


def fail(*given: Any, **named: Any) -> NoReturn:
    raise StorageError("s3://b/x: the store was too busy")


def test_a_mark_that_cannot_be_read_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = BuildMark(str(tmp_path), identity={"config": {}, "inputs": {}})
    assert not mark.check_unfinished()
    monkeypatch.setattr(storage, "read_bytes", fail)
    with pytest.raises(StorageError):
        mark.check_unfinished()


def test_a_piece_that_cannot_be_verified_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(str(tmp_path), "build")
    (tmp_path / "spills").mkdir()
    ledger.sweep(folders=["spills"], splits=[])
    piece = tmp_path / "spills" / "a"
    piece.write_text("a")
    ledger.record("split", key=["a"], files=[piece], content={})
    with monkeypatch.context() as patch:
        patch.setattr(storage, "size_of", fail)
        patch.setattr("pipeline.storage.clients.is_url", lambda path: True)
        with pytest.raises(StorageError):
            ledger.find("split", key=["a"])
    assert ledger.find("split", key=["a"]) == {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_set(tmp_path_factory.mktemp("data"))


def test_no_row_is_passed_over(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ingest.skip_corrupt too, which passes over what readers yield as RowGroupError."""
    plan = make_plan(read_manifest(data))
    slices = plan.slices(0, lanes=[0], cursors=[0])
    ref = next(make_slices(plan, slices, epoch=0))
    monkeypatch.setattr(storage, "open_native", fail)
    monkeypatch.setattr("pipeline.storage.clients.is_url", lambda path: True)
    with pytest.raises(StorageError):
        read_slice(ref, root=data)
    with pytest.raises(StorageError):
        list(readers.read_in_threads([ref], root=data))


def test_an_audit_ends_rather_than_finds_faults(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard, *_) = read_manifest(data).shards
    monkeypatch.setattr(data_set, "verify_shard", fail)
    monkeypatch.setattr("pipeline.storage.clients.is_url", lambda path: True)
    findings = Findings()
    with pytest.raises(StorageError):
        data_set.check_file(str(data), shard, findings=findings)


def test_what_only_tells_of_the_work_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("write_bytes", "read_bytes", "delete"):
        monkeypatch.setattr(storage, name, fail)
    with WorkReport("s3://b/progress", stage="read", key=["a"]) as report:
        report.add(documents=1)
    with pytest.raises(ValueError, match="the cause"), WorkReport("s3://b/progress", stage="read", key=["a"]):
        raise ValueError("the cause")


def test_a_report_that_is_renamed_while_it_is_looked_for_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "read-1.json").write_text('{"documents": 3}')
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / "read-1.json", folder / "read-1.part"])
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    assert ProgressPrinter(tmp_path, num_splits=1).count("read") == {"documents": 3}
