"""From values to files: `make cluster`, `python -m cluster.render [KIND ...] [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import CLUSTER
from cluster.render import KINDS, list_outdated, list_unfilled, read_values, render
from pipeline.settings import ConfigError, describe, fail

USAGE = """usage: python -m cluster.render [KIND ...] [--check]

Writes the files of each KIND (all: {kinds}) from cluster/values/KIND.yaml.
--check writes nothing; exit status 1 where a file is not what its values give.

Values:
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in words:
        print(USAGE.format(kinds=", ".join(KINDS)))
        for kind, cls in KINDS.items():
            print(f"cluster/values/{kind}.yaml:\n{describe(cls)}\n")
        return 0
    try:
        kinds = [word for word in words if word != "--check"] or list(KINDS)
        for kind in kinds:
            if kind not in KINDS:
                raise ConfigError(f"cluster.render: no such kind of cluster: {kind}; known: {', '.join(KINDS)}")
        if "--check" in words:
            return compare(kinds)
        for kind in kinds:
            write(kind)
    except (ValueError, OSError) as error:
        return fail(error)
    return 0


def compare(kinds: Sequence[str]) -> int:
    """Name every outdated file; 1 where there is one."""
    outdated = [name for kind in kinds for name in list_outdated(kind, values=read_values(kind))]
    for name in outdated:
        print(f"cluster/{name}: not what its values give; run `make cluster`", file=sys.stderr)
    return 1 if outdated else 0


def write(kind: str, *, folder: Path = CLUSTER) -> None:
    """Write the files of a kind, and say what is still to be given."""
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
        print(f"still to be given in cluster/values/{kind}.yaml: {', '.join(unfilled)}")


if __name__ == "__main__":
    sys.exit(main())
