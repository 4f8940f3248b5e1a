"""The claim of one command to the lease on an output, and how it is read from a file that may be damaged or hostile."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.json_text import parse_json
from pipeline.processes import Process
from pipeline.storage import files
from pipeline.storage.files import Location

_LONGEST_TIMEOUT_S = 7 * 24 * 3600
"""A claim with a longer time-out is damaged: nobody could ever take over from it."""


@dataclass(frozen=True, slots=True)
class Holder(Process):
    """A process that has the lease, or wants it. `token` is a random text. It is a part of the name of the process's
    claim (the file with which it asks for the lease)."""

    token: str
    since: str
    """Time at which the process asked for the lease, for messages."""
    timeout_s: int
    """Seconds without a heartbeat after which other commands may take over."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a file in FOLDER/lease. By writing such a file, a command claims the lease (the right to write to
    an output)."""

    number: int
    """One more than the greatest number that the command saw in other claims."""
    beat: int
    """Number of heartbeats so far (in a folder: the time of the last heartbeat). A change is a sign of life."""
    holds: bool
    """True if the command has or had the lease, False if it is a candidate."""
    holder: Holder

    @property
    def name(self) -> str:
        """The name of the claim's file."""
        return f"{self.number:08d}-{self.holder.token}.json"


def read_claim(path: Location) -> Claim:
    """Return the claim in a file. Raises ValueError, TypeError or KeyError if it is none: the values are used in
    arithmetic and in names of files."""
    if isinstance(path, Path):
        with open(path, "rb") as stream:  # opening refreshes the cache of a network file system
            tree = {**parse_json(stream.read()), "beat": os.fstat(stream.fileno()).st_mtime_ns}
    else:
        tree = parse_json(files.read_bytes(path))
    claim = Claim(**{**tree, "holder": Holder(**tree["holder"])})
    for part in (claim, claim.holder):
        for entry in fields(part):
            value = getattr(part, entry.name)
            if not isinstance(value, Holder) and entry.type != type(value).__name__:
                raise TypeError(f"{path}: {entry.name} is {type(value).__name__}, not {entry.type}")
            if isinstance(value, str) and not value.isprintable():
                raise ValueError(f"{path}: {entry.name} has characters that cannot be shown")
    if claim.name != files.base_name(path) or not 0 < claim.holder.timeout_s <= _LONGEST_TIMEOUT_S:
        raise ValueError(f"{path}: the name of another claim, or a time-out of {claim.holder.timeout_s} s")
    return claim
