"""Renders the files of clusters from values. A comment in each file says to edit the values and not the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import yaml

from cluster.render import batch, kuberay, launcher, policies
from cluster.render.texts import is_unfilled
from cluster.render.values import ClusterValues
from pipeline.settings import to_tree

FILES: dict[str, dict[str, Callable[[Any], Any]]] = {
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
        "kubernetes/network-policy.yaml": policies.render_network_policy,
        "kubernetes/pod-monitor.yaml": policies.render_pod_monitor,
    },
    "slurm": {
        "slurm/preprocess.sbatch": partial(batch.render_slurm, work="preprocess"),
        "slurm/train.sbatch": partial(batch.render_slurm, work="train"),
    },
    "skypilot": {"skypilot/train.yaml": batch.render_skypilot},
}
"""Maps each kind of cluster to its files, and each file to the function that makes its content from the values. The
function returns the text of a script, or nested dicts and lists that become YAML."""


def render(kind: str, values: ClusterValues, *, origin: str = "", command: str = "make cluster") -> dict[str, str]:
    """Return the texts of all files of a kind of cluster: a dict from path under cluster/ to text.

    The first comment of each file names `origin`, the file of the values (the shipped one, if empty), and `command`,
    which makes the files again.
    """
    note = f"# Made by `{command}` from {origin or f'cluster/values/{kind}.yaml'}: change that, not this.\n"
    texts = {}
    for name, make in FILES[kind].items():
        made = make(values)
        texts[name] = f"#!/usr/bin/env bash\n{note}{made}" if isinstance(made, str) else note + dump(made)
    return texts


def dump(tree: Any) -> str:
    """Return `tree` (nested dicts and lists) as readable YAML: a text of several lines becomes a block, and values that
    occur twice are written twice, without anchors."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=10_000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def list_unfilled(values: ClusterValues) -> list[str]:
    """Return the keys, as `section.name`, whose values the user must still give."""
    return list(find_unfilled(values))


def find_unfilled(values: ClusterValues) -> dict[str, Any]:
    """Return the values that the user must still give: a dict from key, as `section.name`, to value."""
    return {key: value for key, value in _walk(to_tree(values)) if is_unfilled(f"{key} {value}")}


def _walk(tree: dict[str, Any], *, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _walk(value, prefix=f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
