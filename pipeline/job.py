"""What every worker of a build needs to know, and the names of the folders under OUT/_tmp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.buckets import Buckets
from pipeline.config import PipelineConfig
from pipeline.ledger import Ledger

SPILLS, SHARDS, PROGRESS, EXCHANGE = "spills", "data", "progress", "exchange"
"""Folders under OUT/_tmp: files between the halves, finished shards, counts of running work, failures and results."""


@dataclass(frozen=True, slots=True)
class Job:
    """A build as its workers see it. `work` is OUT/_tmp and must be visible to all of them."""

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

    @property
    def ledger(self) -> Ledger:
        """Records of what is finished."""
        return Ledger(self.work, self.build)

    @property
    def spills(self) -> str:
        """Folder of files between the halves."""
        return str(Path(self.work) / SPILLS)

    @property
    def shards(self) -> str:
        """Folder of finished shards."""
        return str(Path(self.work) / SHARDS)

    @property
    def progress(self) -> str:
        """Folder of counts of running work."""
        return str(Path(self.work) / PROGRESS)

    @property
    def exchange(self) -> str:
        """Folder of failures and results."""
        return str(Path(self.work) / EXCHANGE)
