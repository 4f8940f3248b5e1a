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
def test_a_run_under_ray_fails_in_one_line_goes_on_and_gives_the_bits_of_the_loop_without_it(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session, two fits: held-out rows are gone when the first wants to evaluate; the second resumes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
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
        evaluation={"every_steps": 5, "max_pairs": 16},
    )
    said: list[str] = []
    with ray_session(config) as settled:
        assert settled.device == "cpu"
        write_config(config)
        held_out.rename(tmp_path / "aside")
        with pytest.raises(ConfigError, match=f"^{held_out}, row group 0: cannot be read"):
            run_on_ray(settled, say=said.append, stop=StopRequest())
        assert len(curve(tmp_path / "run")) == 5
        (tmp_path / "aside").rename(held_out)
        outcome = run_on_ray(settled, say=said.append, stop=StopRequest())
    assert (outcome.first_step, outcome.last_step, outcome.finished) == (5, 9, True)
    assert "resumed at step 5 of 9" in "\n".join(said)
    assert said[-1].startswith("held-out next-sentence accuracy")

    run(worker_group(2), make_config(data, tmp_path / "whole"))
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")
    assert rows_by_step(tmp_path / "run") == rows_by_step(tmp_path / "whole")
