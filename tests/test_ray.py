"""Ray Train on a Ray of our own: two workers and Ray Data's ingest on two logical CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import curve, make_config, rows_by_step, run
from synthetic import write_data_set
from worker_group import WorkerGroup

from pipeline.settings import ConfigError
from trainer.launch import StopRequest
from trainer.launch_ray import ray_session, run_on_ray
from trainer.run_directory import write_config


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_a_run_under_ray_stops_goes_on_and_gives_the_bits_of_the_loop_without_it(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session, three fits: stopped on request, resumed to the end, and one whose workers fail."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    data = tmp_path / "data"
    write_data_set(data, shards=2, row_groups=2, rows=10, max_seq_length=32, vocabulary_size=256)
    config = make_config(data, tmp_path / "run", launcher="ray", logging={"every_steps": 1, "row_ids": True})
    said: list[str] = []
    stop = StopRequest()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("step 3/"):
            stop.signal_number = 15

    with ray_session(config) as settled:
        assert settled.device == "cpu"
        write_config(config)
        first = run_on_ray(settled, say=say, stop=stop)
        assert 3 <= first.last_step < 9
        assert not first.finished
        second = run_on_ray(settled, say=say, stop=StopRequest())
        assert (second.first_step, second.last_step, second.finished) == (first.last_step, 9, True)
        assert f"resumed at step {first.last_step} of 9" in "\n".join(said)
        assert said[-1].startswith("held-out next-sentence accuracy")

        broken = make_config(
            data,
            tmp_path / "broken",
            launcher="ray",
            optimizer={"learning_rate": 1e30, "clip_norm": 0.0},
            schedule={"name": "constant"},
        )
        write_config(broken)
        with pytest.raises(ConfigError, match=r"^step \d: loss (nan|inf)"):
            run_on_ray(broken, say=say, stop=StopRequest())

    run(worker_group(2), make_config(data, tmp_path / "whole"))
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    assert rows_by_step(tmp_path / "run") == rows_by_step(tmp_path / "whole")
