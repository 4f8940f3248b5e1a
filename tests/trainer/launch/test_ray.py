"""Ray Train on a Ray of our own: two workers and Ray Data's ingest on two logical CPUs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import ray
from ray.exceptions import RaySystemError

from pipeline.settings import ConfigError
from pipeline.signals import StopRequest
from processes import command_of
from small_runs import curve, make_config, rows_by_step, run
from synthetic import write_data_set
from trainer.checkpoint.load import find_checkpoints
from trainer.config.schema import TrainerConfig
from trainer.launch import ray_link, ray_train
from trainer.launch.elastic import GroupWatch, look_at_nodes, wait_for_node_list
from trainer.launch.failures import ClusterError
from trainer.launch.mailbox import DriverMailbox
from trainer.launch.ray_train import ray_session, run_on_ray
from trainer.launch.restarts import run_attempts
from trainer.launch.run_directory import write_config
from worker_group import WorkerGroup

MAX_STEPS = 60
"""Far more than are taken while a line is on its way to the driver."""


@pytest.mark.ray
def test_a_run_under_ray_goes_on_after_a_loss_fails_in_one_line_and_has_the_bits_of_the_loop_without_it(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session: a worker of the first group is killed; the held-out rows are gone when the second evaluates.

    ray#22349: the survivors of a lost worker end too, and the group goes on from the last checkpoint.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    data = tmp_path / "data"
    manifest = write_data_set(data, shards=2, row_groups=2, rows=10, max_seq_length=32, vocabulary_size=256)
    (held_out,) = [data / shard.path for shard in manifest.shards_of("validation")]
    config = make_config(
        data,
        tmp_path / "run",
        launcher="ray",
        logging={"every_steps": 1, "row_ids": True},
        checkpoint={"every_steps": 5},
        evaluation={"every_steps": 10, "max_pairs": 16},
        max_steps=MAX_STEPS,
    )
    said: list[str] = []
    killed: list[int] = []

    def say(line: str) -> None:
        said.append(line)
        if re.match(r"step ", line) and not killed and find_checkpoints(config.output).newest_step:
            killed.append(kill_a_worker())
            held_out.rename(tmp_path / "aside")

    with ray_session(config) as settled:
        assert settled.device == "cpu"
        write_config(config)
        attempt = partial(run_on_ray, settled, say=say, stop=StopRequest())
        with pytest.raises(ConfigError, match=f"^{held_out}, row group 0: cannot be read"):
            run_attempts(
                attempt, config=config, checkpoints=find_checkpoints(config.output), say=say, stop=StopRequest()
            )
        assert_start_is_bounded(settled, monkeypatch=monkeypatch)
        assert_crashed_mailbox_is_replaced(tmp_path / "crashed", monkeypatch=monkeypatch)
    with pytest.raises(RaySystemError, match="Ray has not been started yet"):
        ray.get(ray.put(1))  # as a thread may that was not told of the end: no other Ray is started
    (loss,) = [line for line in said if "starting the workers again" in line]
    start = re.match(
        r"worker \d was lost: .*; starting the workers again from the checkpoint of step (\d+) \(1 of", loss
    )
    assert start is not None
    last = 10 * (int(start[1]) // 10 + 1)  # the next evaluation

    (tmp_path / "aside").rename(held_out)
    run(worker_group(2), make_config(data, tmp_path / "whole", max_steps=MAX_STEPS))
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")[:last]
    rows = rows_by_step(tmp_path / "run")
    assert rows == {step: taken for step, taken in rows_by_step(tmp_path / "whole").items() if step <= last}


def assert_crashed_mailbox_is_replaced(crashed: Path, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """`crashed`: a file that the process of the first actor makes before it ends."""

    def start(self: DriverMailbox) -> None:
        if not crashed.exists():
            crashed.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        DriverMailbox.__init__(self)

    monkeypatch.setattr(ray_link, "DriverMailbox", type("Crashing", (DriverMailbox,), {"__init__": start}))
    mailbox = ray_link.start_mailbox()
    assert crashed.exists()
    assert ray.get(mailbox.failures.remote()) == []


def kill_a_worker() -> int:
    """SIGKILL of one training worker of this process's Ray; returns its process id."""
    ours = psutil.Process().children(recursive=True)
    workers = [process for process in ours if process.is_running() and "RayTrainWorker" in command_of(process)]
    assert [process.nice() for process in workers] == 2 * [os.nice(0)], "Ray's own would be nicer by 15"
    workers[1].kill()
    return workers[1].pid


def assert_start_is_bounded(config: TrainerConfig, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit in which no worker starts is given up; and the nodes are as Ray shows them."""
    (node,) = look_at_nodes().total
    assert look_at_nodes().total[node]["CPU"] == 2.0
    assert look_at_nodes().leaving == {}
    wait_for_node_list([node])
    monkeypatch.setattr(ray_train, "WAITING_LINE_S", 0.0)
    monkeypatch.setattr(ray_train, "NODE_CHECK_S", 0.0)
    mailbox = ray.remote(num_cpus=0)(DriverMailbox).remote()
    fit = cast(Any, SimpleNamespace(is_alive=lambda: True))
    short = config.model_copy(update={"start_timeout_s": 1})
    watch = GroupWatch(short, per_worker=ray_train.resources_of(short))
    with pytest.raises(ClusterError, match=r"Ray started no worker in start_timeout_s=1: waiting for Ray to start 2"):
        ray_train.serve_workers(fit, mailbox=mailbox, config=short, watch=watch, say=print, stop=StopRequest())
