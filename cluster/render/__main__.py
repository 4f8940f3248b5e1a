"""Writes the files of a cluster from its values: `make cluster`, `python -m cluster.render [KIND ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import CLUSTER
from cluster.render import KINDS, list_unfilled, read_values, render
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError, describe

USAGE = """usage: python -m cluster.render [KIND ...]

Write the files of each KIND ({kinds}; default: all) from cluster/values/KIND.yaml.

Values:
"""


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files of the kinds of cluster named in `arguments` (of all kinds if there are none), or with --help
    explain the values. Return the exit status 0."""
    kinds = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in kinds:
        print(USAGE.format(kinds=", ".join(KINDS)))
        for kind, cls in KINDS.items():
            print(f"cluster/values/{kind}.yaml:\n{describe(cls)}\n")
        return 0
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"cluster.render: no such kind of cluster: {kind}; known: {', '.join(KINDS)}")
    for kind in kinds or KINDS:
        write(kind)
    return 0


def write(kind: str, *, folder: Path = CLUSTER) -> None:
    """Write the files of a kind of cluster into `folder`, and print the names of the files and of the values that the
    user must still give."""
    values = read_values(kind)
    for name, text in render(kind, values).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if name.endswith(".sbatch"):
            path.chmod(0o755)
        print(f"wrote cluster/{name}")
    unfilled = list_unfilled(values)
    if unfilled:
        print(f"fill in cluster/values/{kind}.yaml: {', '.join(unfilled)}")


if __name__ == "__main__":
    exit_with(main())
