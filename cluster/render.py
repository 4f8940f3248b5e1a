"""From values to files: `make cluster`, `python -m cluster.render [KIND ...] [--check]`.

Invariant: a file under cluster/ that names its values file in the first line is exactly what those values give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cluster import batch, kuberay, launcher
from cluster.values import CLUSTER, KINDS, ClusterValues, read_values
from pipeline.settings import ConfigError, describe, fail, to_tree

Render = Callable[[Any], Any]

FILES: dict[str, dict[str, Render]] = {
    "aws": {
        "aws/on-demand.yaml": partial(launcher.render_aws, spot=False),
        "aws/spot.yaml": partial(launcher.render_aws, spot=True),
    },
    "gcp": {
        "gcp/on-demand.yaml": partial(launcher.render_gcp, spot=False),
        "gcp/spot.yaml": partial(launcher.render_gcp, spot=True),
    },
    "hosts": {"hosts/cluster.yaml": launcher.render_hosts},
    "kubernetes": {
        "kubernetes/raycluster.yaml": kuberay.render_cluster,
        "kubernetes/redis.yaml": kuberay.render_redis,
        "kubernetes/rayjob-preprocess.yaml": partial(kuberay.render_job, work="preprocess"),
        "kubernetes/rayjob-train.yaml": partial(kuberay.render_job, work="train"),
        "kubernetes/rayjob-train-kueue.yaml": partial(kuberay.render_job, work="train", queue="kueue"),
        "kubernetes/rayjob-train-volcano.yaml": partial(kuberay.render_job, work="train", queue="volcano"),
    },
    "slurm": {"slurm/train.sbatch": batch.render_slurm},
    "skypilot": {"skypilot/train.yaml": batch.render_skypilot},
}
"""Kind of cluster -> file -> what makes it."""

FILL_IN = "fill-in"
"""Stands in every value that only the user can give."""
USAGE = """usage: python -m cluster.render [KIND ...] [--check]

Writes the files of each KIND (all: {kinds}) from cluster/values/KIND.yaml.
--check writes nothing; exit status 1 where a file is not what its values give.

Values:
"""


def render(kind: str, values: ClusterValues) -> dict[str, str]:
    """File under cluster/ -> its text."""
    note = f"# Made by `make cluster` from cluster/values/{kind}.yaml: change that, not this.\n"
    texts = {}
    for name, make in FILES[kind].items():
        made = make(values)
        if isinstance(made, str):
            texts[name] = f"#!/usr/bin/env bash\n{note}{made}"
        else:
            texts[name] = note + dump(made)
    return texts


def dump(tree: Any) -> str:
    """YAML as people write it; a list of trees as documents."""
    documents = tree if isinstance(tree, list) else [tree]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10_000, explicit_start=len(documents) > 1)


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block; nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def list_unfilled(values: ClusterValues) -> list[str]:
    """Keys whose values are still to be given."""
    return [key for key, value in _leaves(to_tree(values)) if FILL_IN in str(value)]


def _leaves(tree: Mapping[str, Any], *, prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves += _leaves(value, prefix=f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value))
    return leaves


def list_outdated(kind: str, *, values: ClusterValues, folder: Path = CLUSTER) -> list[str]:
    """Files that are not what the values give."""
    outdated = []
    for name, text in render(kind, values).items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            outdated.append(name)
    return outdated


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
