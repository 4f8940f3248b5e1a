"""A run whose starts have other settings of `recompute` has the bits of a run that stores activations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.settings import ConfigError, load_settings
from small_runs import curve, make_config, run, write_small_set
from trainer.config import TrainerConfig
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


def test_what_zero_3_cannot_compile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "data: d\noutput: o\nbatch: {pairs: 8}\nmax_steps: 9\nzero_stage: 3\ncompile: true\nrecompute: layers\n"
    )
    message = (
        r"recompute=layers with zero_stage=3 and compile=True is not supported; leave compile out, or set zero_stage=2"
    )
    with pytest.raises(ConfigError, match=message):
        load_settings(TrainerConfig, file=tmp_path / "c.yaml")
    load_settings(TrainerConfig, file=tmp_path / "c.yaml", overrides=["compile=null"])
