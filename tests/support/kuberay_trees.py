"""The files for Kubernetes as trees, as shipped and with all options, and the parts of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cluster.render import read_values, render
from cluster.render.pods import Toleration

Tree = dict[str, Any]
KUBERNETES = "1.33"
"""The oldest version that is supported."""
OPTIONS: Tree = {
    "efa_interfaces": 32,
    "service_account": "cloze",
    "cpu_node_selector": {"pool": "cpu"},
    "gpu_node_selector": {},
    "retries": 0,
    "image_pull_secrets": ("registry",),
    "gpu_tolerations": (Toleration(key="a", operator="Equal", value="b"), Toleration(effect=None)),
    "cpu_tolerations": (Toleration(key="pool"),),
    "gpu_devices": {"rdma/hca": 8},
    "priority_class": "high",
    "grace_s": 600,
    "log_folder": None,
    "kueue_autoscaling": True,
    "monitor_labels": {"release": "prometheus"},
}


def render_trees() -> dict[str, Tree]:
    """Every file, as shipped and with all options."""
    values = read_values("kubernetes")
    return {
        f"{Path(name).stem}{label}": yaml.safe_load(text)
        for label, update in (("", {}), ("-options", OPTIONS))
        for name, text in render("kubernetes", values.model_copy(update=update)).items()
    }


ALL = render_trees()
TREES = {name: tree for name, tree in ALL.items() if tree["kind"] in ("RayCluster", "RayJob")}
JOBS = {name: tree for name, tree in TREES.items() if tree["kind"] == "RayJob"}


def cluster_of(tree: Tree) -> Tree:
    spec: Tree = tree["spec"]["rayClusterSpec"] if tree["kind"] == "RayJob" else tree["spec"]
    return spec


def groups_of(tree: Tree) -> list[Tree]:
    spec = cluster_of(tree)
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def pods_of(tree: Tree) -> Iterator[Tree]:
    for group in groups_of(tree):
        yield group["template"]["spec"]
    if tree["kind"] == "RayJob":
        yield tree["spec"]["submitterPodTemplate"]["spec"]
