"""Judges every file under cluster/ without a network: `make check-cluster`, `python -m cluster.check`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from cluster.check_files import CHECKS_OF_FILES
from cluster.check_kuberay import check_kuberay
from cluster.check_launcher import check_launcher
from cluster.findings import Files, Finding, check_yaml


def find_faults(files: Files, *, schemas: Path | None = None) -> Iterator[Finding]:
    """All that is wrong, by all checks."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    for check in (check_yaml, *CHECKS_OF_FILES, check_launcher, partial(check_kuberay, schemas=schemas)):
        yield from check(files)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is wrong; exit status 1 where anything is."""
    parser = argparse.ArgumentParser(prog="python -m cluster.check", description=__doc__)
    parser.add_argument("--schemas", type=Path, help="folder with strict schemas of KubeRay's resources")
    words = parser.parse_args(arguments)
    files = Files.read()
    faults = list(find_faults(files, schemas=words.schemas))
    for fault in faults:
        print(fault)
    print(f"{len(files.texts)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
