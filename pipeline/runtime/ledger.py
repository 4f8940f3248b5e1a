"""Records of finished pieces of a build (splits read, shards written), so that a later start need not make them again.

A record appears by one rename after the files of its piece are complete. Nothing in a record is trusted: a piece counts
as finished only if its files and the record still match their hashes. So each file is read once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pipeline import storage
from pipeline.dataset import canonical_json, file_sha256
from pipeline.json_text import parse_json

Kind: TypeAlias = Literal["split", "shard"]

RECORDS_NAME = "finished"
_DAMAGED = "damaged-"
_SHARDS = "data"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Reads and writes records of finished pieces of a build (splits, shards) in `root`/finished. `root` is OUT/_tmp.

    The files of the pieces are below `root` too, except that shards on an object store are elsewhere. `build` is a hash
    of everything that determines these files, except the input.
    """

    root: str
    build: str
    shards: str = ""
    """The folder of the shards. If it is empty, they are in `root`/data."""

    def record_name(self, kind: Kind, key: Any) -> str:
        """Return the file name of the record of a finished split or shard. `key` (any JSON) identifies the split or
        shard."""
        digest = hashlib.sha256(canonical_json([self.build, kind, key])).hexdigest()
        return f"{kind}-{digest[:32]}.json"

    def find(self, kind: Kind, *, key: Any) -> Any | None:
        """Return the content that `record` stored with a split or shard, or None if this split or shard is not
        finished. `kind` and `key` identify the split or shard.

        If there is a record, but it or its files do not match their hashes, the record and its files are removed. Then
        None is returned, and `take_damaged` reports the fault later.
        """
        path = storage.join(self._folder, self.record_name(kind, key))
        try:
            first, _, content = storage.read_bytes(path).decode("ascii", "replace").partition("\n")
        except FileNotFoundError:
            return None
        head = _parse_head(first)
        fault: str | None = f"{path}: not a record"
        if head is not None and hashlib.sha256(content.encode()).hexdigest() != head["content"]:
            fault = f"{path}: content does not match its recorded hash"
        elif head is not None:
            fault = self._find_fault(head["files"])
        if fault is None:
            return parse_json(content)
        note = storage.join(self._folder, f"{_DAMAGED}{uuid.uuid4().hex[:16]}.txt")
        storage.write_bytes(note, fault.encode("utf-8"), make_folders=False)
        self._remove(path, files=head["files"] if head is not None else ())
        return None

    def record(self, kind: Kind, *, key: Any, files: Iterable[str | Path], content: Any) -> None:
        """Record that a split or shard (`kind`) is finished. `key` (any JSON) identifies the split or shard.

        `files` are the paths of the files with its content, which must be closed and complete. `content` is any JSON;
        `find` returns it later.
        """
        body = json.dumps(content, sort_keys=True)
        head = {
            "build": self.build,
            "files": {self._name(file): [storage.size_of(file), file_sha256(file)] for file in sorted(map(str, files))},
            "content": hashlib.sha256(body.encode()).hexdigest(),
        }
        text = f"{json.dumps(head, sort_keys=True)}\n{body}"
        path = storage.join(self._folder, self.record_name(kind, key))
        storage.write_bytes(path, text.encode("ascii"), make_folders=False)

    def sweep(self, *, folders: Iterable[str], splits: Collection[str], keep_shards: bool = True) -> Counter[Kind]:
        """Remove outdated records, and files that no remaining record names. Return how many records remain, by kind.

        A record is outdated if a build with another hash (`build`) wrote it. A split's record is also outdated if the
        record's file name is not in `splits`. All records of shards are outdated if `keep_shards` is false. Files are
        removed only if they are directly in one of `folders` (names below `root`). Only the first line of each record
        is read, and no hash is checked.
        """
        storage.make_folder(self._folder)
        kept: Counter[Kind] = Counter()
        vouched: set[str] = set()
        gone: list[str] = []
        records = list_records(self.root)
        for path, head in zip(records, storage.map_paths(_read_head, records), strict=True):
            name = storage.base_name(path)
            kind: Kind = "split" if name.startswith("split-") else "shard"
            if (
                head is None
                or head["build"] != self.build
                or (name not in splits if kind == "split" else not keep_shards)
            ):
                gone.append(path)
                continue
            kept[kind] += 1
            vouched.update(head["files"])
        names = [file.name for file in storage.list_files(self._folder, below=False)]
        gone += [storage.join(self._folder, name) for name in names if not name.endswith((".json", ".txt"))]
        for folder in folders:
            found = [f"{folder}/{file.name}" for file in storage.list_files(self._place(folder), below=False)]
            gone += [self._place(name) for name in found if name not in vouched]
        storage.map_paths(storage.delete, gone)
        return kept

    def take_damaged(self) -> list[str]:
        """Return the faults that `find` has noted, one line each, and delete these notes."""
        found = []
        for file in storage.list_files(self._folder, below=False):
            if file.name.startswith(_DAMAGED):
                path = storage.join(self._folder, file.name)
                found.append(storage.read_bytes(path).decode("utf-8"))
                storage.delete(path)
        return sorted(found)

    @property
    def _folder(self) -> str:
        return storage.join(self.root, RECORDS_NAME)

    def _name(self, path: str) -> str:
        if self.shards and storage.parent_of(path) == self.shards:
            return f"{_SHARDS}/{storage.base_name(path)}"
        return path[len(self.root) + 1 :] if storage.is_url(path) else os.path.relpath(path, self.root)

    def _place(self, name: str) -> str:
        """Return the path of the file or folder that is called `name` in a record."""
        first, _, rest = name.partition("/")
        if self.shards and first == _SHARDS:
            return storage.join(self.shards, rest) if rest else self.shards
        return storage.join(self.root, name)

    def _find_fault(self, files: Mapping[str, Any]) -> str | None:
        for name, (size, sha256) in files.items():
            path = self._place(name)
            try:
                found = storage.size_of(path)
                if found != size:
                    return f"{path}: {found} bytes, {size} were written"
                if file_sha256(path) != sha256:
                    return f"{path}: changed since it was written"
            except OSError as error:
                storage.raise_outage(error, url=path)
                return f"{path}: cannot be read ({error.strerror or error})"
        return None

    def _remove(self, record: str, *, files: Iterable[str]) -> None:
        storage.delete(record)
        for name in files:
            storage.delete(self._place(name))


def list_records(root: str | Path) -> list[str]:
    """Return the paths of all records below `root` (OUT/_tmp), of any build. The list is empty if there is no folder of
    records."""
    folder = storage.join(root, RECORDS_NAME)
    names = [file.name for file in storage.list_files(folder, below=False)]
    return [storage.join(folder, name) for name in names if fnmatch(name, "*-*.json")]


def _read_head(path: str) -> dict[str, Any] | None:
    with storage.open_input(path) as stream:
        return _parse_head(stream.readline().decode("ascii", "replace"))


def _parse_head(line: str) -> dict[str, Any] | None:
    """Return `line`, the first line of a record, as a dict, or None if it is invalid (after a power loss it may be
    anything).

    The keys are `build`, `files` (a dict from name to size and sha256) and `content` (a hash). A line that names files
    outside the build's folder is invalid too, since such files must not be removed.
    """
    try:
        head = parse_json(line)
        whole = set(head) == {"build", "files", "content"} and all(len(entry) == 2 for entry in head["files"].values())
        inside = whole and all(map(storage.stays_inside, head["files"]))
    except (ValueError, TypeError, AttributeError):
        return None
    return dict(head) if inside else None
