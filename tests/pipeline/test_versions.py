"""The hash of our code covers what shapes the data, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline import versions
from pipeline.versions import SHAPING, hash_sources

PACKAGE = Path(versions.__file__).parent
OTHERS = {
    *("audit", "configs", "download", "engines", "estimate", "hub", "output", "runtime", "storage", "torch_data"),
    *("__init__.py", "console.py", "errors.py", "front_matter.py", "processes.py", "push.py", "py.typed", "run.py"),
    *("markdown_text.py", "ray_loopback.py", "settings.py", "signals.py", "units.py", "versions.py", "yaml_numbers.py"),
}
"""What of the package shapes no data."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "pipeline"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def is_seen(name: str, *, folder: Path) -> bool:
    """Whether a change of the file changes the hash."""
    before, text = hash_sources(folder), (folder / name).read_bytes()
    (folder / name).write_bytes(text + b"# changed\n")
    after = hash_sources(folder)
    (folder / name).write_bytes(text)
    assert hash_sources(folder) == before
    return after != before


@pytest.mark.parametrize(
    "name",
    [
        *("cleaning/characters.py", "wikitext/templates.tsv", "wikitext/countries.tsv", "instances/pairs.py"),
        *("sources/wikipedia.py", "build/write_shard.py", "tally.py", "engines/dask_runner.py", "dataset/schema.py"),
    ],
)
def test_a_change_of_what_shapes_the_data_is_seen(copied: Path, name: str) -> None:
    assert is_seen(name, folder=copied)


@pytest.mark.parametrize(
    "name",
    ["audit/masks.py", "output/report.py", "download/dump.py", "estimate/cost.py", "engines/ray_cluster.py", "run.py"],
)
def test_a_change_of_anything_else_is_not(copied: Path, name: str) -> None:
    """A new report must not make a build of days start anew."""
    assert not is_seen(name, folder=copied)


def test_every_room_is_decided() -> None:
    found = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert found == OTHERS | {name for name in SHAPING if "/" not in name}
    assert all((PACKAGE / name).exists() for name in SHAPING)
