"""A run whose starts have other settings of `recompute` has the bits of a run that stores activations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from small_runs import curve, make_config, run, write_small_set
from trainer.launch.preflight import check
from worker_group import WorkerGroup


def test_recomputation_may_change_when_a_run_goes_on(
    worker_group: Callable[[int], WorkerGroup], tmp_path: Path
) -> None:
    data = write_small_set(tmp_path / "data")
    run(worker_group(2), make_config(data, tmp_path / "whole"))
    parts = tmp_path / "parts"
    for stop, recompute in ((3, "layers"), (6, "none"), (None, "auto")):
        checked = check(make_config(data, parts, recompute=recompute))
        assert checked.config.recompute == ("layers" if recompute == "layers" else "none")
        run(worker_group(2), checked.config, stop_at=stop)
    assert curve(parts) == curve(tmp_path / "whole")
