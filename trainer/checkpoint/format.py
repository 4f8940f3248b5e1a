"""Writes, reads and verifies the files of a checkpoint.

A checkpoint is a folder of safetensors and JSON files with a manifest of their sizes and sha256. Invariant: a
checkpoint is complete or absent. Bytes are hashed while they are written, and reach the disk (fsync) before the folder
gets its final name. An object store has no rename. There the manifest is written last, and names the subfolder that
holds the files. No file is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from pipeline import storage
from pipeline.json_text import parse_json
from pipeline.storage import ASIDE, Location, locate

MANIFEST = "manifest.json"
CHECKPOINTS_FOLDER = "checkpoints"
"""The folder in a run directory that holds the checkpoints."""
STATE = "state.json"
FORMAT = "cloze-checkpoint-1"

_STEP = re.compile(r"step-(\d{8,})")
_LIBRARIES = ("torch", "deepspeed", "numpy", "safetensors", "pyarrow", "ray")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DTYPES = {torch.float32: "F32", torch.uint8: "U8"}
_CHUNK_BYTES = 16 * 2**20


class CheckpointError(ValueError):
    """The error for a checkpoint that cannot be written, is damaged, or does not fit the model."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The contents of state.json: everything in a run's state that is not a tensor.

    `loss_scale` has the fields of engine.LossScale, and `plan_state` those of data.PlanState.
    """

    step: int
    """Steps that the run has done, including those without an update."""
    steps_taken: int
    """Updates that the optimizer has applied (Adam's step count)."""
    loss_scale: dict[str, Any]
    plan_state: dict[str, Any]
    config: dict[str, Any]
    """The resolved TrainerConfig."""
    world_size: int
    threads: int
    versions: dict[str, str]
    """Versions of Python and libraries, and the device (library_versions). On resume, a difference is only a warning:
    results may depend on them."""
    guard: dict[str, Any] = field(default_factory=dict)
    """State of the divergence guard (trainer.train.divergence): windows of skipped data, number of bad steps in a row,
    and so on."""
    data_hash: str = ""
    """Hash of the data set that the last step read. Empty in older checkpoints."""
    rows: dict[str, Any] = field(default_factory=dict)
    """Facts about all rows that the weights were trained on (phases.rows_trained). Empty in older checkpoints."""
    seconds: float = 0.0
    """Seconds of training up to the step, over all starts of the run. 0 in older checkpoints."""


def write_tensors(path: Location, *, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Write CPU tensors (fp32 or uint8) to a safetensors file, without copies. On a disk, fsync the file.

    Returns the file's manifest entry, {"bytes": size, "sha256": hash}, computed while writing.
    """
    if storage.is_url(path):
        with storage.open_stream(path) as file:
            return _stream_tensors(file, tensors=tensors, metadata=metadata)
    with open(path, "wb") as file:
        entry = _stream_tensors(file, tensors=tensors, metadata=metadata)
        file.flush()
        os.fsync(file.fileno())
    return entry


def _stream_tensors(file: IO[bytes], *, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest, size = hashlib.sha256(), 0
    head = struct.pack("<Q", len(text)) + text
    for piece in (memoryview(head), *map(_bytes_of, tensors.values())):
        for start in range(0, len(piece), _CHUNK_BYTES):
            chunk = piece[start : start + _CHUNK_BYTES]
            file.write(chunk)
            digest.update(chunk)
        size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _bytes_of(tensor: Tensor) -> memoryview:
    memory: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return memory


def write_json(path: Location, value: Any) -> dict[str, Any]:
    """Write `value` atomically as JSON. Return the file's manifest entry, {"bytes": size, "sha256": hash}."""
    data = (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    storage.write_bytes(path, data, make_folders=False)
    return entry


def read_json(path: Location) -> Any:
    """Return the contents of a JSON file. Raises CheckpointError if it is missing or not valid JSON."""
    try:
        return parse_json(storage.read_bytes(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: is missing") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error})") from error


def write_manifest(
    folder: Location,
    *,
    step: int,
    files: Mapping[str, Mapping[str, Any]],
    attempt: str | None = None,
    draft: str | None = None,
) -> None:
    """Write the manifest of the checkpoint in `folder`: the list of its files, with a hash of the manifest itself.

    `files` maps file names to manifest entries. `attempt` (on a store) is the subfolder that holds the files. `draft`
    (on a disk) is the folder's name before the commit.
    """
    body = {"format": FORMAT, "step": step, "files": {name: dict(entry) for name, entry in files.items()}}
    body |= {key: value for key, value in (("attempt", attempt), ("draft", draft)) if value is not None}
    write_json(locate(folder, MANIFEST), {**body, "sha256": _hash_of(body)})


def read_manifest(folder: Location) -> dict[str, dict[str, Any]]:
    """Check a checkpoint's manifest. Return its entries: {file name: {"bytes": size, "sha256": hash}}.

    Raises CheckpointError if the manifest is missing, damaged or altered, if its format is not the current one, if its
    step is not the step in the folder's name, or if it names a file outside the folder.
    """
    return open_manifest(folder)[1]


def open_manifest(folder: Location) -> tuple[Location, dict[str, dict[str, Any]]]:
    """Check a checkpoint's manifest as `read_manifest` does. Return (folder of the files, manifest entries).

    On a store the files are in a subfolder. The entries map file names to {"bytes": size, "sha256": hash}.
    """
    path, manifest = locate(folder, MANIFEST), _read_checked(folder)
    files: dict[str, dict[str, Any]] = manifest["files"]
    attempt = manifest.get("attempt")
    place = folder if attempt is None else _inside(folder, attempt, manifest=path)
    for name in files:
        _inside(place, name, manifest=path)
    return place, files


def draft_of(folder: Location) -> str | None:
    """Return the name that a checkpoint's folder had before the commit, or None if the manifest does not record it.

    Manifests on a store and in older checkpoints do not record the name. Raises CheckpointError if the manifest is
    missing or damaged.
    """
    draft = _read_checked(folder).get("draft")
    return draft if isinstance(draft, str) else None


def _read_checked(folder: Location) -> dict[str, Any]:
    path = locate(folder, MANIFEST)
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise CheckpointError(f"{path}: format is {found!r}, but this version reads {FORMAT!r}")
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    entries, shape = manifest.get("files"), {"bytes": int, "sha256": str}
    if type(manifest.get("step")) is not int or not (
        isinstance(entries, dict)
        and all(
            isinstance(entry, dict) and all(type(entry.get(key)) is kind for key, kind in shape.items())
            for entry in entries.values()
        )
    ):
        raise CheckpointError(f"{path}: has no step, or no list of files with bytes and sha256")
    if manifest.get("sha256") != _hash_of(body):
        raise CheckpointError(f"{path}: was altered after it was written (its own sha256 differs)")
    if storage.base_name(folder) != step_name(manifest["step"]):
        name = storage.base_name(folder)
        raise CheckpointError(f"{path}: is of step {manifest['step']}, but its folder is called {name}")
    return manifest


def _inside(folder: Location, name: str, *, manifest: Location) -> Location:
    path = locate(folder, name) if isinstance(name, str) and _FILE_NAME.fullmatch(name) else None
    if path is None or (isinstance(path, Path) and path.is_symlink()):
        raise CheckpointError(f"{manifest}: file name {name!r} points outside the checkpoint; refused")
    return path


def state_file(folder: Location) -> Location:
    """Return the path where a checkpoint's state.json is, or where it should be if it is missing.

    On a store, the path comes from the manifest. On a disk, the manifest is checked only if state.json is missing.
    Raises CheckpointError if the manifest is not valid.
    """
    if isinstance(folder, Path) and (folder / STATE).is_file():
        return folder / STATE
    return locate(open_manifest(folder)[0], STATE)


def read_state(checkpoint: str | Path) -> CheckpointState:
    """Verify and return the contents of a checkpoint's state.json. Raises CheckpointError if it is not valid."""
    folder = locate(checkpoint)
    place, files = open_manifest(folder)
    path = locate(place, STATE)
    if STATE not in files:
        raise CheckpointError(f"{path}: {MANIFEST} does not list it")
    _verify_file(path, entry=files[STATE])
    tree = read_json(path)
    try:
        state = CheckpointState(**tree)
    except TypeError as error:
        raise CheckpointError(f"{path}: does not hold the state of a checkpoint ({error})") from error
    fault = _find_wrong_type(tree)
    if fault:
        raise CheckpointError(f"{path}: does not hold the state of a checkpoint ({fault})")
    return state


def _find_wrong_type(state: dict[str, Any]) -> str:
    """Return the first entry of a state.json that has not the type that it needs, or "" if all have it."""
    kinds = {each.name: str(each.type).partition("[")[0] for each in fields(CheckpointState)}
    for name, value in state.items():
        if type(value).__name__ != kinds[name] or (kinds[name] == "int" and not 0 <= value < 1 << 63):
            return f"{name} is {str(value)[:80]!r}"
    return ""


def is_checkpoint(folder: Location) -> bool:
    """Return whether a folder looks like a checkpoint, complete or damaged. A run directory does not look like one."""
    if isinstance(folder, Path) and (folder / STATE).is_file():
        return True
    return bool(_STEP.fullmatch(storage.base_name(folder))) and storage.find_file(locate(folder, MANIFEST)) is not None


def verify(folder: Location, *, rank: int = 0, world_size: int = 1) -> None:
    """Check every byte of a checkpoint's files against the manifest.

    If `world_size` ranks share the work, each rank reads every world_size-th file, and `rank` is this rank. Raises
    CheckpointError, which names the file, at the first file that differs. Raises OSError if a store does not answer.
    """
    place, files = open_manifest(folder)
    for name, entry in list(files.items())[rank::world_size]:
        _verify_file(locate(place, name), entry=entry)


def _verify_file(path: Location, *, entry: Mapping[str, Any]) -> None:
    found = storage.find_file(path)
    if found is None:
        raise CheckpointError(f"{path}: is missing (listed in {MANIFEST})")
    if found.size != entry["bytes"]:
        raise CheckpointError(f"{path}: has {found.size} bytes, but {MANIFEST} says {entry['bytes']}")
    with storage.open_input(path, read_ahead=_CHUNK_BYTES) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    if digest != entry["sha256"]:
        raise CheckpointError(f"{path}: sha256 is {digest}, but {MANIFEST} says {entry['sha256']}")


def step_name(step: int) -> str:
    """Return the folder name, such as step-00000100, of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints that a run had committed at one moment, not verified. bool() is False if there are none.

    On a store, finding the checkpoints means listing every file. So find them once and pass this object on.
    """

    run: Location
    folders: tuple[Location, ...]
    """The checkpoints' folders, oldest first."""

    def __bool__(self) -> bool:
        return bool(self.folders)

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint, or 0 if there is none."""
        return step_of(self.folders[-1]) if self.folders else 0

    def newest_first(self, *, through: int | None = None) -> list[Location]:
        """Return the checkpoints' folders, newest first.

        If `through` is given, checkpoints of later steps are left out, unless the run has no others.
        """
        before = [folder for folder in self.folders if through is None or step_of(folder) <= through]
        return list(reversed(before or self.folders))


def find_checkpoints(run_dir: str | Path) -> Checkpoints:
    """Return the committed checkpoints of a run, without verifying them.

    On a store, this lists every file of all checkpoints.
    """
    root = checkpoints_folder(run_dir)
    if not isinstance(root, Path):
        found = [file.name.split("/") for file in storage.list_files(root)]
        names = [parts[0] for parts in found if parts[1:] == [MANIFEST]]
    else:
        names = [path.name for path in root.iterdir()] if root.is_dir() else []
    folders = sorted((locate(root, name) for name in names if _STEP.fullmatch(name)), key=step_of)
    return Checkpoints(locate(run_dir), tuple(folders))


def checkpoints_folder(run_dir: str | Path) -> Location:
    """Return the folder that holds a run's checkpoints."""
    return locate(run_dir, CHECKPOINTS_FOLDER)


def step_of(folder: Location) -> int:
    """Return the step in the name of a checkpoint's folder.

    Raises CheckpointError if the name is not like step-00000100.
    """
    match = _STEP.fullmatch(storage.base_name(folder))
    if match is None:
        raise CheckpointError(f"{folder}: is not a checkpoint; expected a folder called like {step_name(100)}")
    return int(match.group(1))


def restore_moved_aside(run_dir: str | Path) -> None:
    """Restore the names of old checkpoints after a save was killed while it replaced them.

    If a step already has a checkpoint, a save renames this old checkpoint, and then gives the step's name to the new
    one. If the save was killed between these two renames, the old checkpoint gets its name back. If the new checkpoint
    has the step's name already, nothing changes.
    """
    root = checkpoints_folder(run_dir)
    for aside in root.glob(f"{ASIDE}*") if isinstance(root, Path) else ():
        final = aside.with_name(aside.name.removeprefix(ASIDE))
        if not final.exists():
            aside.rename(final)


def library_versions(device: torch.device) -> dict[str, str]:
    """Return what a run's results may depend on: the versions of Python and libraries, and the device's name.

    The keys are "python", the name of each installed library, and "device".
    """
    versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):  # the trainer runs without Ray too
            versions[library] = version(library)
    on_gpu = device.type == "cuda"
    return {**versions, "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine()}


def _hash_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
