"""The files of a revision, and whether the hub already has their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, RepoFile


@dataclass(frozen=True, slots=True)
class PushFile:
    """A file to publish."""

    name: str
    """Its path in the repository, with forward slashes."""
    source: Path | bytes
    """The local file, or its content."""
    known_sha256: str | None = None
    """The sha256 of the content in hexadecimal, if the caller has verified it; else None."""

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def is_at(self, stored: RepoFile) -> bool:
        """Return whether `stored`, a file of the hub, has the same content. The hub knows large files by their sha256,
        and others by git's hash."""
        if stored.size != self.size:
            return False
        if stored.lfs is not None:
            return bool(stored.lfs.sha256 == (self.known_sha256 or self._digest("sha256")))
        return bool(stored.blob_id == self._digest("sha1", head=b"blob %d\0" % self.size))

    def read_text(self) -> str:
        """Return the content, which is UTF-8."""
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return content.decode("utf-8")

    def addition(self) -> CommitOperationAdd:
        """Return the operation of a commit that writes this file."""
        source = self.source if isinstance(self.source, bytes) else str(self.source)
        return CommitOperationAdd(path_in_repo=self.name, path_or_fileobj=source)

    def _digest(self, algorithm: str, *, head: bytes = b"") -> str:
        digest = hashlib.new(algorithm, head, usedforsecurity=False)
        if isinstance(self.source, bytes):
            digest.update(self.source)
            return digest.hexdigest()
        with self.source.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
