"""The task for SkyPilot: what it asks for, and what its scripts do on the nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.render import read_values, render


def test_skypilot_watches_spot_nodes_and_asks_for_the_fast_network() -> None:
    values = read_values("skypilot")
    tree = yaml.safe_load(render("skypilot", values)["skypilot/train.yaml"])
    watch = 'python -m cluster.notice --watch --address="$head:6385" > /tmp/notice.log 2>&1 &'
    assert tree["run"].count(watch) == 2, "on the head and on the other nodes"
    assert tree["resources"]["network_tier"] == "best"
    plain = values.model_copy(update={"use_spot": False, "fast_network": False})
    tree = yaml.safe_load(render("skypilot", plain)["skypilot/train.yaml"])
    assert "cluster.notice" not in tree["run"]
    assert "network_tier" not in tree["resources"]
    subprocess.run(["bash", "-n"], input=tree["run"], text=True, check=True)


@pytest.mark.parametrize(("driver", "status"), [("580.95.05", 0), ("595.91.07", 0), ("570.172.08", 1), ("", 9)])
def test_skypilot_ends_a_job_at_once_where_the_driver_is_too_old(tmp_path: Path, driver: str, status: int) -> None:
    """Otherwise torch would see no GPU (skypilot-org/skypilot#9406)."""
    for name, script in (
        ("nvidia-smi", f"[ -n '{driver}' ] || exit 9; echo '{driver}'"),
        ("python3", "echo installed"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    setup = yaml.safe_load(render("skypilot", read_values("skypilot"))["skypilot/train.yaml"])["setup"]
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", setup], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("installed" in done.stdout) == (status == 0)
    assert (f"error: NVIDIA's driver is {driver}, but CUDA 13 needs 580" in done.stderr) == (status == 1)
