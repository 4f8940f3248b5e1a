"""Checkpoints on an object store: named last by a manifest written once, read by ranges, kept by the same rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_faults import save_again_and_again
from object_store import bucket, s3_server, upload_tree
from pipeline import storage
from pipeline.storage import StorageError, files
from small_runs import make_config
from stored_checkpoints import fail_times, flip_bit, kept, make_writer, names_in, part_of, write
from trainer.checkpoint import command, load, ranges
from trainer.checkpoint import writer as checkpoint_writer
from trainer.checkpoint.format import open_manifest, read_manifest, step_name, step_of, write_manifest, write_tensors
from trainer.checkpoint.load import CheckpointError, find_checkpoints, newest_verified, read_state
from trainer.checkpoint.ranges import RangedTensors
from trainer.checkpoint.slices import SavedTensors
from trainer.launch.run_directory import write_config
from trainer.telemetry.log_files import RunFiles
from trainer.telemetry.metrics import EVALUATIONS_NAME
from worker_group import WorkerGroup

__all__ = ["bucket", "s3_server"]
Groups = Callable[[int], WorkerGroup]


@pytest.fixture
def run(bucket: str) -> str:
    return f"{bucket}/runs/x"


# ---- one writer


def test_what_a_save_leaves(run: str) -> None:
    """Parts in a folder of the attempt, and the manifest that names it; nothing of how the ranks met."""
    write(run, 1)
    assert names_in(run) == [
        *("step-00000001/ATTEMPT/rank-00000-of-00001.safetensors", "step-00000001/ATTEMPT/state.json"),
        "step-00000001/manifest.json",
    ]
    newest = newest_verified(find_checkpoints(run))
    assert newest == f"{run}/checkpoints/step-00000001"
    assert read_state(newest).step == 1
    assert list(load.read_weights(newest)) == ["weight", "bias"]


def test_a_save_that_is_given_up_is_not_taken_for_the_checkpoint_of_before(run: str) -> None:
    assert save_again_and_again(f"{run}/checkpoints") == [False, True, False, True]


def test_logs_are_sent_before_and_the_manifest_is_written_last(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees a checkpoint finds the logs of its steps, and every file that it names."""
    written: list[str] = []
    for name in ("write_bytes", "open_stream", "store_file"):
        original = getattr(storage, name)

        def noted(*args: Any, original: Any = original, place: int = int(name == "store_file"), **options: Any) -> Any:
            written.append(storage.base_name(args[place]))
            return original(*args, **options)

        monkeypatch.setattr(storage, name, noted)
    writer = make_writer(run, files=RunFiles(run, working_folder=str(tmp_path)))
    writer._files.folder.mkdir()
    (writer._files.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    writer.save(1, plan_state={})
    writer.finish()
    parts = ["rank-00000-of-00001.safetensors", "state.json"]
    assert [name for name in written if name != "metrics.jsonl"] == [*parts, "rank-0.done", "manifest.json"]
    assert written.index("metrics.jsonl") < written.index("rank-0.done")
    assert storage.read_bytes(f"{run}/metrics.jsonl") == b'{"step": 1}\n'


def test_the_rule_of_what_stays_is_that_of_disks(run: str) -> None:
    write(run, *range(1, 8), keep_last=2, keep_every_steps=4)
    assert kept(run) == [4, 6, 7]
    assert {name.split("/")[0] for name in names_in(run)} == {step_name(step) for step in (4, 6, 7)}


def test_a_copy_on_a_disk_is_a_checkpoint_too(run: str, tmp_path: Path) -> None:
    write(run, 1)
    for file in storage.list_files(run):
        storage.fetch_file(f"{run}/{file.name}", tmp_path / "run" / file.name)
    newest = newest_verified(find_checkpoints(tmp_path / "run"))
    assert newest == tmp_path / "run" / "checkpoints" / "step-00000001"
    assert read_state(newest).step == 1
    assert read_weights_equal(newest, f"{run}/checkpoints/step-00000001")
    upload_tree(tmp_path / "run", f"{run}-again")
    assert newest_verified(find_checkpoints(f"{run}-again")) == f"{run}-again/checkpoints/step-00000001"


def read_weights_equal(one: Any, other: Any) -> bool:
    ours, theirs = load.read_weights(one), load.read_weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Killed(BaseException):
    """In the place of SIGKILL."""


CHANGES = ("write_bytes", "open_stream", "delete", "delete_tree")


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_at_any_request_leaves_a_checkpoint_that_verifies(
    run: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """With keep_last: 1, in a save of the next step and in one of the same step again (KempnerForge#102)."""
    for victim in range(1, 50):
        folder, count = f"{run}-{victim}", 0
        write(folder, 1, keep_last=1)
        with monkeypatch.context() as patch:
            for name in CHANGES:
                original = getattr(storage, name)

                def changed(*args: Any, original: Any = original, last: int = victim, **how: Any) -> Any:
                    nonlocal count
                    count += 1
                    if count >= last:
                        raise Killed
                    return original(*args, **how)

                patch.setattr(storage, name, changed)
            writer = make_writer(folder, keep_last=1)
            writer.save(step, plan_state={"again": True})
            try:
                writer.finish()
                finished = True
            except Killed:
                finished = False
        newest = newest_verified(find_checkpoints(folder))
        assert newest is not None
        assert step_of(newest) in (1, step)
        if finished:
            assert kept(folder) == [step]
            assert read_state(newest).plan_state == {"again": True}
            break
        write(folder, 3, keep_last=1)
        assert {name.split("/")[0] for name in names_in(folder)} == {"step-00000003"}
    else:
        pytest.fail("no save ended")
    assert count >= 6


def test_saving_again_replaces_in_one_write(run: str) -> None:
    write(run, 1, 2)
    before = open_manifest(f"{run}/checkpoints/step-00000001")[0]
    write(run, 1)  # the run went back behind 2
    assert kept(run) == [1]
    assert open_manifest(f"{run}/checkpoints/step-00000001")[0] != before
    assert len(names_in(run)) == 3


DAMAGE: dict[str, tuple[Callable[[str], object], str]] = {
    "bit": (lambda f: flip_bit(part_of(f)), "00001.safetensors: sha256 is"),
    "torn": (lambda f: storage.write_bytes(part_of(f), b"abc"), "has 3 bytes, but manifest.json says"),
    "part": (lambda f: storage.delete(part_of(f)), "is missing .listed in manifest.json"),
    "manifest torn": (lambda f: storage.write_bytes(f"{f}/manifest.json", b"{"), "manifest.json: is not valid JSON"),
    "outside": (
        lambda f: write_manifest(f, step=3, files=read_manifest(f), attempt="../step-00000002"),
        "'../step-00000002' points outside the checkpoint",
    ),
    "stale": (
        lambda f: storage.write_bytes(
            f"{f}/manifest.json", storage.read_bytes(f"{storage.parent_of(f)}/step-00000002/manifest.json")
        ),
        "is of step 2, but its folder is called step-00000003",
    ),
}


def test_damage_is_named_and_the_one_before_is_taken(run: str, caplog: pytest.LogCaptureFixture) -> None:
    for damage, (spoil, message) in DAMAGE.items():
        write(run, 1, 2, 3)
        folder = f"{run}/checkpoints/step-00000003"
        spoil(folder)
        with pytest.raises(CheckpointError, match=message):
            load.read_weights(folder)
        assert newest_verified(find_checkpoints(run)) == f"{run}/checkpoints/step-00000002", damage
        assert "checkpoint step-00000003 is skipped" in caplog.text
        caplog.clear()


def test_streams_are_written_in_pieces_on_disks_and_stores(bucket: str, tmp_path: Path) -> None:
    for place in (bucket, tmp_path / "new"):
        path = storage.join(place, "folder", "file")
        with storage.open_stream(path) as stream:
            for piece in (b"a" * 6_000_000, memoryview(b"bc"), b""):
                stream.write(piece)
        assert storage.read_bytes(path) == b"a" * 6_000_000 + b"bc"
    with (
        pytest.raises(OSError, match="there is no bucket s3://no-such-bucket-of-ours"),
        storage.open_stream("s3://no-such-bucket-of-ours/file") as stream,
    ):
        stream.write(b"a")


def test_only_what_is_asked_for_is_read(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{bucket}/part.safetensors"
    values = torch.arange(200_000, dtype=torch.float32)
    write_tensors(url, tensors={"a": values, "b": torch.tensor([1, 2, 3], dtype=torch.uint8)}, metadata={"k": "v"})
    read: list[int] = []
    inside = files._StoreReader.readinto

    def counted(self: Any, buffer: Any, /) -> int:
        read.append(inside(self, buffer))
        return read[-1]

    monkeypatch.setattr(files._StoreReader, "readinto", counted)
    monkeypatch.setattr(ranges, "READ_AHEAD_BYTES", 4096)
    file = RangedTensors(url)
    assert (file.metadata(), file.keys()) == ({"k": "v"}, ["a", "b"])
    assert torch.equal(file.get_slice("a")[1000:1100], values[1000:1100])
    assert file.get_slice("a")[7:7].numel() == 0
    assert torch.equal(file.get_tensor("b"), torch.tensor([1, 2, 3], dtype=torch.uint8))
    assert sum(read) < 20_000
    storage.write_bytes(url, storage.read_bytes(url)[:-1])
    with pytest.raises(CheckpointError, match="ends inside tensor b"):
        RangedTensors(url).get_tensor("b")
    for content in (b"", b"\x08\0\0\0\0\0\0\0notjson!", b"\x03\0\0\0\0\0\0\0[1]"):
        storage.write_bytes(url, content)
        with pytest.raises(CheckpointError, match="is not a safetensors file"):
            RangedTensors(url)


def test_parts_are_closed_and_their_buffers_bounded(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of 1,024 ranks has as many parts, and each rank opens them all."""
    write(run, 1)
    opened: list[Any] = []
    original = storage.open_input

    def noted(*args: Any, **named: Any) -> Any:
        opened.append(original(*args, **named))
        return opened[-1]

    with monkeypatch.context() as patch:
        patch.setattr(storage, "open_input", noted)
        folder = newest_verified(find_checkpoints(run))
        assert folder is not None
        load.read_weights(folder)
        place, _ = open_manifest(folder)
        storage.write_bytes(storage.join(place, "rank-00000-of-00001.safetensors"), b"torn")
        with pytest.raises(CheckpointError, match="is not a safetensors file"), SavedTensors(folder):
            raise AssertionError("was opened")
    assert len(opened) > 3
    assert all(file.closed for file in opened)
    assert ranges.read_ahead_of(1) == ranges.READ_AHEAD_BYTES
    assert ranges.read_ahead_of(1024) * 1024 == 256 * 2**20


# ---- a store that fails


def test_a_store_that_fails_for_a_while_delays_a_save(
    run: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_writer, "RETRY_S", 0.01)
    for name in CHANGES[:2]:
        monkeypatch.setattr(storage, name, fail_times(2, getattr(storage, name)))
    write(run, 1)
    assert kept(run) == [1]
    assert caplog.text.count("the checkpoint of step 1 waits for the store: s3://b/x: the store was too busy") == 4


def test_a_store_that_fails_for_long_ends_the_save(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "RETRY_S", 0.3)
        patch.setattr(storage, "open_stream", fail_times(99, storage.open_stream))
        writer = make_writer(run, timeout_s=1)
        writer.save(2, plan_state={})
        with pytest.raises(CheckpointError, match=r"rank 0 could not write s3://.*step-00000002.*: the store was too"):
            writer.finish()
    assert kept(run) == [1]
    write(run, 2, keep_last=1)
    assert {name.split("/")[0] for name in names_in(run)} == {"step-00000002"}


def test_a_manifest_whose_answer_is_lost_may_stand(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, 1)
    with monkeypatch.context() as patch:
        write_bytes = storage.write_bytes

        def lose_the_answer(path: str, data: bytes, **options: bool) -> None:
            write_bytes(path, data, **options)
            if path.endswith("manifest.json"):
                raise StorageError(f"{path}: the store cannot be reached")

        patch.setattr(storage, "write_bytes", lose_the_answer)
        patch.setattr(checkpoint_writer, "RETRY_S", 0.3)
        writer = make_writer(run, timeout_s=1)
        writer.save(1, plan_state={"again": True})
        with pytest.raises(CheckpointError, match="the store cannot be reached"):
            writer.finish()
    newest = newest_verified(find_checkpoints(run))
    assert newest is not None
    assert read_state(newest).plan_state == {"again": True}


def test_a_bucket_that_is_not_there_is_not_asked_again(bucket: str) -> None:
    writer = make_writer("s3://no-such-bucket-of-ours/run")
    writer.save(1, plan_state={})
    with pytest.raises(CheckpointError, match="there is no bucket s3://no-such-bucket-of-ours"):
        writer.finish()


# ---- the lease, and the command


@pytest.fixture
def finished(run: str) -> str:
    """Checkpoints 1 to 4; the least held-out loss at 2."""
    config = make_config(Path(), Path(), checkpoint={"keep_last": 1})
    write_config(config.model_copy(update={"output": run}))
    write(run, 1, 2, 3, 4, keep_last=9)
    losses = "".join(f'{{"step": {step}, "mlm_loss": {loss}}}\n' for step, loss in ((1, 5), (2, 1), (3, 4)))
    storage.write_bytes(f"{run}/{EVALUATIONS_NAME}", losses.encode())
    return run


def test_the_command_lists_verifies_and_prunes(finished: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([finished]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.endswith("  verified") for line in lines[1:])
    flip_bit(part_of(f"{finished}/checkpoints/step-00000003"))
    assert command.main([finished, "verify"]) == 1
    assert "rank-00000-of-00001.safetensors: sha256 is" in capsys.readouterr().out
    assert command.main([finished, "prune", "--keep-best", "1"]) == 0
    assert "removed 1 checkpoint, " in capsys.readouterr().out
    assert kept(finished) == [2, 3, 4]
    assert command.main([finished, "prune", "--damaged"]) == 0
    assert kept(finished) == [4]
    assert [file.name for file in storage.list_files(f"{finished}/lease")] == []
    assert command.main([f"{finished}/nothing"]) == 2
    assert "holds no checkpoint; give a run directory" in capsys.readouterr().err
    storage.delete(f"{finished}/config.yaml")
    assert command.main([finished, "prune"]) == 2
    assert "is not a run directory (no config.yaml)" in capsys.readouterr().err
    assert command.main(["s3://no-such-bucket-of-ours/run"]) == 2
    assert "there is no bucket" in capsys.readouterr().err
