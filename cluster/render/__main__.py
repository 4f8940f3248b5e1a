"""Writes the files of a cluster from its values: `make cluster`, `python -m cluster.render [KIND | SET | FILE ...]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.costs import describe_costs
from cluster.render import KINDS, SETS, ValuesSet, choose_sets, list_unfilled, read_set, render_set, shorten
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError, describe
from pipeline.storage import replace_file

USAGE = """usage: python -m cluster.render [KIND | SET | FILE.yaml ...]

Write the files of clusters from their values. KIND ({kinds}) is the example in cluster/values/KIND.yaml; its files go
into cluster/. SET is a set of your own, clusters/SET.yaml; its files go into clusters/SET/. To make one:
`mkdir -p clusters && cp cluster/values/KIND.yaml clusters/SET.yaml`. Without arguments: all examples and all sets.

Values:
"""


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files of the sets of values that `arguments` name (of all if there are none), or with --help explain
    the values. Return the exit status: 0, or 2 if values are refused. Sets that are not refused are written."""
    names = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in names:
        print(USAGE.format(kinds=", ".join(KINDS)))
        for kind, cls in KINDS.items():
            print(f"cluster/values/{kind}.yaml:\n{describe(cls)}\n")
        return 0
    refused = []
    for chosen in choose_sets(names, folder=SETS):
        try:
            write(chosen)
        except ConfigError as error:
            refused.append(str(error))
    if refused:
        raise ConfigError("\nerror: ".join(refused))
    return 0


def write(chosen: ValuesSet) -> None:
    """Write the files of a set, and print the names of the files, the greatest price of the cluster, and the values
    that the user must still give. Raises ConfigError if the values are refused or a file cannot be written."""
    kind, values = read_set(chosen)
    for path, text in render_set(chosen, kind=kind, values=values).items():
        _write_file(path, text)
        print(f"wrote {shorten(path)}")
    for line in describe_costs(values):
        print(f"{chosen.origin}: {line}")
    unfilled = list_unfilled(values)
    if unfilled:
        print(f"fill in {chosen.origin}: {', '.join(unfilled)}")


def _write_file(path: Path, text: str) -> None:
    try:
        with replace_file(path, durable=False) as stream:  # a link is replaced, and what it names stays as it is
            stream.write(text.encode())
            if path.suffix == ".sbatch":
                os.fchmod(stream.fileno(), 0o755)
    except OSError as error:
        raise ConfigError(f"{shorten(path)}: cannot be written: {error.strerror}; check its folder") from error


if __name__ == "__main__":
    exit_with(main())
