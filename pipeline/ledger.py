"""Finished pieces of a build (splits read, shards written), so that a later start goes on where an earlier one ended.

A record appears in one rename once the files of its piece are whole, and nothing in it is trusted: a piece counts as
finished only while its files and the record itself have the hashes that they had. Cost: each file is read once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pipeline.manifest import canonical_json, file_sha256

Kind: TypeAlias = Literal["split", "shard"]

RECORDS_NAME = "finished"
_DAMAGED = "damaged-*.txt"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The records in `root`/finished. `root` is OUT/_tmp, the folder below which all files of pieces lie; `build` is a
    hash of all that shapes them."""

    root: str
    build: str

    def record_name(self, kind: Kind, key: Any) -> str:
        """File name of the record of what was made from `key` (any JSON)."""
        digest = hashlib.sha256(canonical_json([self.build, kind, key])).hexdigest()
        return f"{kind}-{digest[:32]}.json"

    def find(self, kind: Kind, *, key: Any) -> Any | None:
        """What was recorded with a piece; None where there is none, or where it is not as it was: then the fault is
        noted for take_damaged, and record and files are removed."""
        path = self._folder / self.record_name(kind, key)
        try:
            first, _, content = path.read_text(encoding="ascii").partition("\n")
        except FileNotFoundError:
            return None
        head = _parse_head(first)
        fault = f"{path}: not a record" if head is None else None
        if head is not None:
            if hashlib.sha256(content.encode()).hexdigest() != head["content"]:
                fault = f"{path}: its content has not the hash that it had"
            else:
                fault = self._find_fault(head["files"])
        if fault is None:
            return json.loads(content)
        (self._folder / f"damaged-{uuid.uuid4().hex[:16]}.txt").write_text(fault, encoding="utf-8")
        self._remove(path, files=head["files"] if head is not None else ())
        return None

    def record(self, kind: Kind, *, key: Any, files: Iterable[str | Path], content: Any) -> None:
        """Note that a piece is finished: its files, closed and whole, and what `find` will give back (JSON)."""
        body = json.dumps(content, sort_keys=True)
        head = {
            "build": self.build,
            "files": {
                os.path.relpath(file, self.root): [os.path.getsize(file), file_sha256(file)] for file in sorted(files)
            },
            "content": hashlib.sha256(body.encode()).hexdigest(),
        }
        path = self._folder / self.record_name(kind, key)
        partial = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            partial.write_text(f"{json.dumps(head, sort_keys=True)}\n{body}", encoding="ascii")
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    def sweep(self, *, folders: Iterable[str], splits: Collection[str]) -> Counter[Kind]:
        """Remove every file directly in `folders` (names below root) for which no record of this build stands, and
        every record of another build or of a split whose record is not named in `splits`; count the records left.

        Reads the first line of each record: no hash is checked here.
        """
        self._folder.mkdir(exist_ok=True)
        kept: Counter[Kind] = Counter()
        vouched: set[str] = set()
        for path in list_records(self.root):
            with open(path, encoding="ascii", errors="replace") as stream:
                head = _parse_head(stream.readline())
            kind: Kind = "split" if path.name.startswith("split-") else "shard"
            if head is None or head["build"] != self.build or (kind == "split" and path.name not in splits):
                path.unlink()
                continue
            kept[kind] += 1
            vouched.update(head["files"])
        partials = [path for path in self._folder.iterdir() if path.suffix not in (".json", ".txt")]
        others = [path for folder in folders for path in (Path(self.root) / folder).iterdir()]
        for path in [*partials, *(path for path in others if os.path.relpath(path, self.root) not in vouched)]:
            path.unlink()
        return kept

    def take_damaged(self) -> list[str]:
        """What `find` found damaged since this was last asked, one line each."""
        found = []
        for path in sorted(self._folder.glob(_DAMAGED)):
            found.append(path.read_text(encoding="utf-8"))
            path.unlink()
        return sorted(found)

    @property
    def _folder(self) -> Path:
        return Path(self.root) / RECORDS_NAME

    def _find_fault(self, files: Mapping[str, Any]) -> str | None:
        for name, (size, sha256) in files.items():
            path = Path(self.root) / name
            try:
                found = path.stat().st_size
                if found != size:
                    return f"{path}: {found} bytes, {size} were written"
                if file_sha256(path) != sha256:
                    return f"{path}: changed since it was written"
            except OSError as error:
                return f"{path}: cannot be read ({error.strerror})"
        return None

    def _remove(self, record: Path, *, files: Iterable[str]) -> None:
        record.unlink(missing_ok=True)
        for name in files:
            (Path(self.root) / name).unlink(missing_ok=True)


def list_records(root: str | Path) -> list[Path]:
    """The records below OUT/_tmp, whosever they are; none where there is no such folder."""
    return sorted((Path(root) / RECORDS_NAME).glob("*-*.json"))


def _parse_head(line: str) -> dict[str, Any] | None:
    """The first line of a record; None where it is none (a disk that lost power may leave anything), or names files
    outside the folder of the build: what is damaged is removed."""
    try:
        head = json.loads(line)
        whole = set(head) == {"build", "files", "content"} and all(len(entry) == 2 for entry in head["files"].values())
        inside = whole and not any(os.path.isabs(name) or ".." in Path(name).parts for name in head["files"])
    except (ValueError, TypeError, AttributeError):
        return None
    return dict(head) if inside else None
