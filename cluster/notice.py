"""Tells Ray that this node will end: `python -m cluster.notice --seconds 90`. `--watch` waits for the cloud's notice.

The trainer then writes a checkpoint before the node ends. Use this in the preStop hook of a worker's pod, in a Slurm
epilogue, or on a spot machine. The head has its own command, cluster.head.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from multiprocessing import get_context
from pathlib import Path

import psutil

AWS = "http://169.254.169.254"
GCP = "http://metadata.google.internal"
POLL_S = 5.0
ANSWER_TIMEOUT_S = 2.0
"""Longest wait in seconds for an answer of the cloud's metadata service. The service is near the machine, so it answers
fast if there is one."""
HEAD_SILENT_S = 10.0
"""Seconds without an answer of Ray's head after which it counts as gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell Ray that the node will end. With --watch, first wait until the cloud gives notice.

    Return the exit status: 0, or 1 if Ray refuses to drain the node (move work off it), or if the head is gone.
    """
    parser = argparse.ArgumentParser(prog="python -m cluster.notice", description=__doc__)
    parser.add_argument("--seconds", type=int, default=90, help="seconds until the node ends (default: 90)")
    parser.add_argument("--node-id", help="Ray's id of the node (default: this node)")
    parser.add_argument("--address", default="auto", help="address of Ray's head (default: this node's)")
    parser.add_argument("--watch", action="store_true", help="first wait for the notice of AWS or Google Cloud")
    parser.add_argument("--metadata", nargs=2, default=(AWS, GCP), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    seconds = options.seconds
    if options.watch:
        aws, gcp = options.metadata
        seconds = wait_for_notice([lambda: ask_aws(aws), lambda: ask_gcp(gcp)])
    return drain(options.address, node_id=options.node_id, seconds=seconds)


def wait_for_notice(clouds: Sequence[Callable[[], int | None]], *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Call the functions `clouds` in turn, every POLL_S seconds. When a function returns how many seconds this machine
    still has, return this number."""
    while True:
        for ask in clouds:
            left = ask()
            if left is not None:
                return left
        sleep(POLL_S)


def ask_aws(address: str) -> int | None:
    """Return the seconds until this spot instance ends, or None if AWS has given no notice. AWS gives notice two
    minutes ahead. `address` is the address of the metadata service."""
    token = _fetch(f"{address}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    if token is None:
        return None
    action = _fetch(f"{address}/latest/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token})
    try:
        notice = json.loads(action or "{}")
    except ValueError:  # the next poll asks again
        return None
    return 110 if isinstance(notice, dict) and "action" in notice else None


def ask_gcp(address: str) -> int | None:
    """Return the seconds until this spot machine ends, or None if Google has given no notice. Google gives notice 30
    seconds ahead. `address` is the address of the metadata service."""
    answer = _fetch(f"{address}/computeMetadata/v1/instance/preempted", headers={"Metadata-Flavor": "Google"})
    return 25 if answer is not None and answer.strip() == "TRUE" else None


def _fetch(url: str, *, headers: dict[str, str], method: str = "GET") -> str | None:
    try:
        request = urllib.request.Request(url, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (OSError, HTTPException, UnicodeDecodeError):  # no service, no notice, or no complete answer in time
        return None


def drain(address: str, *, node_id: str | None, seconds: float) -> int:
    """Drain a node (let Ray move work off it), and wait at most `seconds` until the node has left the cluster. Return
    0, also if no Ray runs on this node, or 1 if Ray refuses or the time is over.

    `address` is the address of Ray's head. `node_id` is Ray's id of the node; None is this node. A process of its own
    talks to Ray, because a connection to a head that is gone may wait for longer than `seconds`. The wait ends early if
    the head is known (by `address` or RAY_ADDRESS) and does not answer for HEAD_SILENT_S seconds.
    """
    if node_id is None and not has_raylet():
        print("no Ray runs on this node; nothing is left to drain", flush=True)
        return 0
    head = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    # A daemon, so that it ends with this process.
    process = get_context("spawn").Process(target=_drain, args=(address, node_id, seconds), daemon=True)
    process.start()
    heard = time.monotonic()
    deadline = heard + seconds
    why = f"the node is still there after {seconds:g} s"
    while process.is_alive() and time.monotonic() < deadline:
        process.join(timeout=min(1.0, max(0.0, deadline - time.monotonic())))
        if not head or "://" in head or answers(head):  # a URL is the dashboard's, not the head's
            heard = time.monotonic()
        elif time.monotonic() - heard > HEAD_SILENT_S:
            why = f"the head at {head} is gone"
            break
    if process.is_alive():
        process.kill()
        process.join()
        print(f"error: {why}", file=sys.stderr)
        return 1
    return 1 if process.exitcode else 0


def has_raylet() -> bool:
    """Whether a raylet, the process of Ray that each node has, runs on this machine or in this container.

    The autoscaler drains an idle node before it ends the node. Then no raylet is left, but `ray start --block` still
    runs, so Kubernetes runs the pod's preStop hook, and Ray would search for the raylet for a minute.
    """
    return any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"]))


def answers(address: str) -> bool:
    """Whether something listens at `address`, HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_S):
            return True
    except (OSError, ValueError):  # no such host, nobody there, or no answer in time
        return False


def _drain(address: str, node_id: str | None, seconds: float) -> None:
    """Drain a node, and wait until it has left the cluster. End the process with status 1 if Ray refuses."""
    import ray

    deadline = time.monotonic() + seconds
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    node = node_id or ray.get_runtime_context().get_node_id()
    command = [
        *(str(Path(sys.executable).with_name("ray")), "drain-node", f"--node-id={node}"),
        *(f"--address={ray.get_runtime_context().gcs_address}", "--reason=DRAIN_NODE_REASON_PREEMPTION"),
        *("--reason-message=notice", f"--deadline-remaining-seconds={seconds:.0f}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"error: Ray refuses to drain {node}: {done.stdout}{done.stderr}", file=sys.stderr)
        sys.exit(1)
    while time.monotonic() < deadline and any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):
        time.sleep(1.0)
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
