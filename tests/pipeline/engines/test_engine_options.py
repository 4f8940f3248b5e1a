"""docs/how-to/engines.md: every option of Beam in it is one that Beam has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.engines.local import note_unknown

OTHERS = {
    *(
        "config",
        "engine",
        "port",
        "nthreads",
        "nworkers",
        "address",
        "working-dir",
        "network",
        "worker_pool",
        "wheel",
        "exclude",
    ),
    *("no-cache-dir", "spark-master-url"),
}
"""Options of other commands: of ours, dask, ray, docker, pip, build, and Beam's job server."""


def test_every_option_of_beam_is_known(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beam would drop a misspelt one without a word."""
    from apache_beam.runners.dask.dask_runner import DaskOptions  # noqa: F401 (declares its options)

    text = (repository / "docs" / "how-to" / "engines.md").read_text(encoding="utf-8")
    found = set(re.findall(r"(?<![\w-])--([a-z][\w-]+)", text)) - OTHERS
    assert {
        "flink_master",
        "spark_master_url",
        "sdk_container_image",
        "environment_config",
        "dask_npartitions",
    } <= found
    values = {"flink_version": "1.20", "spark_version": "3", "parallelism": "2", "dask_npartitions": "2"}
    flags = ("flink_submit_uber_jar", "spark_submit_uber_jar")
    numbers = ("dask_partition_size", "max_num_workers", "number_of_worker_harness_threads")
    for name in sorted(found):
        value = values.get(name, "1" if name in numbers else "x")
        note_unknown([f"--{name}" if name in flags else f"--{name}={value}"])
    assert caplog.messages == []
    note_unknown(["--flink_mastr=x"])
    assert "did you mean --flink_master?" in caplog.messages[0]
