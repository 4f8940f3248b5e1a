"""The context that every worker of a build gets, and the names of the folders under OUT/_tmp."""

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
"""Folders under OUT/_tmp: spill files, finished shards, counts of running work, failures and results."""
_TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class BuildContext:
    """A build as its workers see it. `work` is OUT/_tmp, a path or URL that all of them can reach."""

    config: PipelineConfig
    buckets: Buckets
    tokenizer: str
    """Path of the build's tokenizer.json."""
    vocabulary_size: int
    work: str
    build: str
    """Hash of everything except the input that determines what workers write (publish.hash_build)."""
    inputs: Mapping[str, str]
    """Fingerprint of each input file, by path."""
    notes: str = ""
    """Local folder for counts, failures and results, if all workers run on this machine and `work` is on a store; else
    empty: they are left in `work`."""

    @property
    def ledger(self) -> Ledger:
        """Records of the finished pieces."""
        return Ledger(self.work, self.build, self.shards)

    @property
    def spills(self) -> str:
        """Folder of spill files."""
        return storage.join(self.work, SPILLS)

    @property
    def shards(self) -> str:
        """Folder of finished shards: OUT/_tmp/data, or OUT/data on a store, where files appear whole."""
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
    """Folder in local_notes for temporary files of workers, which end without a clean-up; "" for ""."""
    return storage.join(notes, _TEMPORARY) if notes else ""


@contextmanager
def local_notes(work: str, *, shared: bool) -> Iterator[str]:
    """A local folder for counts, failures and results, if `work` is on a store and all workers run on this machine.

    Otherwise (`shared`, or a local `work`) "", which stands for `work` itself.
    """
    if not storage.is_url(work) or shared:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="cloze-notes-") as folder:
        for name in (PROGRESS, EXCHANGE, _TEMPORARY):
            (Path(folder) / name).mkdir()
        yield folder


def names_runner(beam_options: Sequence[str]) -> bool:
    """Whether Beam options select an engine instead of the local processes."""
    return any(option == "--runner" or option.startswith("--runner=") for option in beam_options)
