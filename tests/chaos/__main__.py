"""`make chaos`: play all faults, print a table, write a JSON line for each; exit status 1 where a promise is broken."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import (
    clock_faults,
    data_faults,
    file_faults,
    folder_faults,
    job_faults,
    ray_faults,
    set_faults,
    store_faults,
    worker_faults,
)
from .findings import Finding, format_table
from .runs import ChaosError, Stage

Fault = Callable[[Stage], Finding | list[Finding]]

GROUPS: dict[str, Sequence[Fault]] = {
    "workers": worker_faults.FAULTS,
    "jobs": job_faults.FAULTS,
    "files": file_faults.FAULTS,
    "data": data_faults.FAULTS,
    "sets": set_faults.FAULTS,
    "folders": folder_faults.FAULTS,
    "clocks": clock_faults.FAULTS,
    "stores": store_faults.FAULTS,
    "ray": ray_faults.FAULTS,
}
"""Another kind of fault is a module with FAULTS of its own, and a line here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"groups ({', '.join(GROUPS)}) or names of faults; none: all")
    parser.add_argument("--list", action="store_true", help="show the names of the faults")
    parser.add_argument("--out", type=Path, default=Path("build/chaos"), help="folder of findings.jsonl and table.md")
    parser.add_argument("--keep", action="store_true", help="leave the run directories")
    parser.add_argument("--fork", action="store_true", help="start workers by fork: quicker, and not what users run")
    options = parser.parse_args(arguments)
    if options.list:
        for group, faults in GROUPS.items():
            print(f"{group}: {' '.join(fault.__name__ for fault in faults)}")
        return 0
    chosen = choose(options.only)
    if not chosen:
        parser.error(f"no fault is named {' '.join(options.only)}; --list shows them")
    options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cloze-chaos-", dir="/tmp"))  # Ray's socket paths must be short
    findings: list[Finding] = []
    stage = Stage(folder, fork=options.fork)
    with open(options.out / "findings.jsonl", "w", encoding="utf-8") as stream:
        for fault in chosen:
            for finding in play(fault, stage=stage):
                findings.append(finding)
                stream.write(json.dumps(finding.record()) + "\n")
                stream.flush()
                print(json.dumps(finding.record()), flush=True)
    table = format_table(findings)
    (options.out / "table.md").write_text(table + "\n", encoding="utf-8")
    print(table)
    if options.keep:
        print(f"run directories: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if any(finding.broken for finding in findings) else 0


def choose(names: Sequence[str]) -> list[Fault]:
    """The faults of the groups and names, in their order; all where there is none."""
    return [
        fault
        for group, faults in GROUPS.items()
        for fault in faults
        if not names or group in names or fault.__name__ in names
    ]


def play(fault: Fault, *, stage: Stage) -> list[Finding]:
    """What came of a fault; one that could not be played is a broken promise too."""
    began = time.monotonic()
    print(f"{fault.__name__}: {(fault.__doc__ or '').splitlines()[0]}", flush=True)
    try:
        found = fault(stage)
    except ChaosError as error:
        found = Finding(fault.__name__, "could not be played", None, 0, "differs", (str(error),))
        for run in stage.runs:
            run.end()
    print(f"{fault.__name__}: {time.monotonic() - began:.0f} s", flush=True)
    return found if isinstance(found, list) else [found]


if __name__ == "__main__":
    sys.exit(main())
