"""From values to files.

Invariant: a file under cluster/ that names its values file in the first line is exactly what those values give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cluster import CLUSTER
from cluster.render import batch, kuberay, launcher
from cluster.render.values import ClusterValues
from pipeline.settings import to_tree

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
    """YAML as people write it."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=10_000)


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
