"""What every worker of a build needs to know, and the names of the folders under OUT/_tmp."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline import storage
from pipeline.config import PipelineConfig
from pipeline.runtime.ledger import Ledger
from pipeline.shuffle import Buckets

SPILLS, SHARDS, PROGRESS, EXCHANGE = "spills", "data", "progress", "exchange"
"""Folders under OUT/_tmp: files between the halves, finished shards, counts of running work, failures and results."""
_TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A build as its workers see it. `work` is OUT/_tmp, a path or URL, and must be visible to all of them."""

    config: PipelineConfig
    buckets: Buckets
    tokenizer: str
    """tokenizer.json of the build."""
    vocabulary_size: int
    work: str
    build: str
    """Hash of all but the input that shapes what workers write (publish.hash_build)."""
    inputs: Mapping[str, str]
    """What each file of the input holds: a fingerprint by path."""
    notes: str = ""
    """Where counts, failures and results are left, if not in `work`: a local folder where all workers run on this
    machine and `work` is on a store."""

    @property
    def ledger(self) -> Ledger:
        """Records of what is finished."""
        return Ledger(self.work, self.build, self.shards)

    @property
    def spills(self) -> str:
        """Folder of files between the halves."""
        return storage.join(self.work, SPILLS)

    @property
    def shards(self) -> str:
        """Folder of finished shards: OUT/data on a store, which has no rename and where a file is whole or absent."""
        return storage.join(storage.parent_of(self.work) if storage.is_url(self.work) else self.work, SHARDS)

    @property
    def progress(self) -> str:
        """Folder of counts of running work."""
        return storage.join(self.notes or self.work, PROGRESS)

    @property
    def exchange(self) -> str:
        """Folder of failures and results."""
        return storage.join(self.notes or self.work, EXCHANGE)


def temporary_below(notes: str) -> str:
    """Folder in local_notes for the temporary files of workers, which end without a clean-up; "" for ""."""
    return storage.join(notes, _TEMPORARY) if notes else ""


@contextmanager
def local_notes(work: str, *, shared: bool) -> Iterator[str]:
    """A local folder for counts, failures and results where all workers of a build on a store run on this machine, so
    that they need not be sent; "" (which means `work` itself) where they do not (`shared`), or `work` is local anyway.
    """
    if not storage.is_url(work) or shared:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="cloze-notes-") as folder:
        for name in (PROGRESS, EXCHANGE, _TEMPORARY):
            (Path(folder) / name).mkdir()
        yield folder


def names_runner(beam_options: Sequence[str]) -> bool:
    """Whether options of Beam name an engine, instead of the local processes."""
    return any(option == "--runner" or option.startswith("--runner=") for option in beam_options)
