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

SPILLS, SHARDS, PROGRESS, RESULTS = "spills", "data", "progress", "results"
"""Names of folders under OUT/_tmp (OUT is the output): for spill files, for finished shards, for counts of running
work, and for failures and results."""
_TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Holds what every worker needs to know about a build. `work` is the path or URL of OUT/_tmp, which all workers can
    reach."""

    config: PipelineConfig
    buckets: Buckets
    tokenizer: str
    """The path of the build's tokenizer.json."""
    vocabulary_size: int
    work: str
    build: str
    """A hash (from publish.hash_build) of everything that determines what workers write, except the input."""
    inputs: Mapping[str, str]
    """The fingerprint (a hash) of each input file, by path."""
    hold_out: str = ""
    """The path of a file with hashes of every 13 words in a row in the texts of the setting hold_out
    (pipeline/dedup/held_texts.py). Documents that share a passage with these texts are left out. The file's name has a
    hash of its content. The path is "" if the setting is empty."""
    notes: str = ""
    """A local folder for counts, failures and results, used if all workers run on this machine and `work` is on an
    object store. Otherwise it is "", and these files are below `work`."""

    @property
    def ledger(self) -> Ledger:
        """The records of finished splits and shards, with which a stopped build can continue."""
        return Ledger(self.work, self.build, self.shards)

    @property
    def spills(self) -> str:
        """The folder of spill files (tokenized documents)."""
        return storage.join(self.work, SPILLS)

    @property
    def shards(self) -> str:
        """The folder of finished shards: OUT/_tmp/data, or on an object store OUT/data, since files there are never
        half-written."""
        return storage.join(storage.parent_of(self.work) if storage.is_url(self.work) else self.work, SHARDS)

    @property
    def progress(self) -> str:
        """The folder with counts of running work."""
        return storage.join(self.notes or self.work, PROGRESS)

    @property
    def results_folder(self) -> str:
        """The folder in which workers leave failures and results for the main process."""
        return storage.join(self.notes or self.work, RESULTS)


def temporary_below(notes: str) -> str:
    """Return the folder for temporary files of workers, or "" if `notes` is "". The folder is inside the local folder
    `notes`, which is removed after the build, because workers end without a clean-up and may leave files."""
    return storage.join(notes, _TEMPORARY) if notes else ""


@contextmanager
def local_notes(work: str, *, shared: bool) -> Iterator[str]:
    """Yield a local folder for the workers' counts, failures and results, if `work` is on an object store and all
    workers run on this machine. Files in a local folder need no requests to the store. The folder is removed after the
    `with` block.

    Otherwise (`work` is local, or `shared` says that workers run on other machines) yield "", which tells the caller to
    use folders in `work`.
    """
    if not storage.is_url(work) or shared:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="cloze-notes-") as folder:
        for name in (PROGRESS, RESULTS, _TEMPORARY):
            (Path(folder) / name).mkdir()
        yield folder


def names_runner(beam_options: Sequence[str]) -> bool:
    """Whether the Beam options have --runner, which chooses another runner than the engine of the config."""
    return any(option == "--runner" or option.startswith("--runner=") for option in beam_options)
