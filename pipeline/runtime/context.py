"""The context that every worker of a build gets, and the names of the folders under OUT/_tmp (OUT is the output)."""

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
"""Names of folders under OUT/_tmp: for spill files, for finished shards, for counts of running work, and for failures
and results."""
_TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What every worker needs to know about a build. `work` is OUT/_tmp, a path or URL that all workers can reach."""

    config: PipelineConfig
    buckets: Buckets
    tokenizer: str
    """The path of the build's tokenizer.json."""
    vocabulary_size: int
    work: str
    build: str
    """A hash of everything except the input that determines what workers write (publish.hash_build)."""
    inputs: Mapping[str, str]
    """The fingerprint of each input file, by path."""
    hold_out: str = ""
    """The file with the word runs of config.hold_out (pipeline/dedup/held_texts.py). Its name has a hash of their
    content; empty if nothing is held out by text."""
    notes: str = ""
    """A local folder for counts, failures and results, used if all workers run on this machine and `work` is on an
    object store. Otherwise it is empty, and `work` has these files."""

    @property
    def ledger(self) -> Ledger:
        """The records of the finished pieces of work."""
        return Ledger(self.work, self.build, self.shards)

    @property
    def spills(self) -> str:
        """The folder of spill files (tokenized documents)."""
        return storage.join(self.work, SPILLS)

    @property
    def shards(self) -> str:
        """The folder of finished shards: OUT/_tmp/data, or OUT/data on an object store, where files appear whole."""
        return storage.join(storage.parent_of(self.work) if storage.is_url(self.work) else self.work, SHARDS)

    @property
    def progress(self) -> str:
        """The folder with counts of running work."""
        return storage.join(self.notes or self.work, PROGRESS)

    @property
    def exchange(self) -> str:
        """The folder in which workers leave failures and results."""
        return storage.join(self.notes or self.work, EXCHANGE)


def temporary_below(notes: str) -> str:
    """Return the folder for temporary files of workers in `notes` (from local_notes), or "" if `notes` is "".

    Workers end without a clean-up, so files may stay there.
    """
    return storage.join(notes, _TEMPORARY) if notes else ""


@contextmanager
def local_notes(work: str, *, shared: bool) -> Iterator[str]:
    """Yield a local folder for counts, failures and results, if `work` is on an object store and all workers run here.

    Otherwise (`shared`, or `work` is local) yield "", which stands for `work` itself.
    """
    if not storage.is_url(work) or shared:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="cloze-notes-") as folder:
        for name in (PROGRESS, EXCHANGE, _TEMPORARY):
            (Path(folder) / name).mkdir()
        yield folder


def names_runner(beam_options: Sequence[str]) -> bool:
    """Whether Beam options choose a runner instead of the local processes."""
    return any(option == "--runner" or option.startswith("--runner=") for option in beam_options)
