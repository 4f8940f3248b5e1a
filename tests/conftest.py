"""Fixtures that more than one test module uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import hub_server
from hub_server import Hub
from ray_head import AS_OTHERS
from worker_group import WorkerGroup

REPOSITORY = Path(__file__).resolve().parent.parent


RAY = (
    "test_jobs",
    "test_autoscaling",
    "test_local_cluster",
    "test_ray",
    "test_ray_engine",
    "test_ingest_faults",
    "test_head_ends",
    "test_finetune_ray",
    "test_ports",
    "test_memory_shortage",
)
"""Files that start Ray: one after another, since two Rays on two cores take more than twice the time of one."""
STEP_BACK = 5
"""By this much a process is nicer (nice(2)) once it runs anything else than RAY."""
FIRST = (*RAY, "test_chaos", "test_trainer_signals", "test_dask_engine", "test_interrupts", "test_resume_build")
"""Files that take longest: first, since they would else run alone at the end."""

os.environ.update(AS_OTHERS)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models take longer with two threads on a busy machine
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")  # a busy machine fails no test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files stay together in one process, those of RAY all in the same."""
    from xdist.scheduler import LoadFileScheduling  # absent where tests run in one process

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "ray" if Path(file).stem in RAY else file

    return Scheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """The process that begins with RAY has the longest way to go: others, and it afterwards, step back."""
    if "PYTEST_XDIST_WORKER" in os.environ and item.path.stem not in RAY and os.nice(0) < STEP_BACK:
        os.nice(STEP_BACK)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """FIRST first."""
    order = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Take back the environment variables that commands set in this process (such as RAY_AUTH_MODE)."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder ../shared/data with real dumps, books and golden outputs; skips where it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real test data is absent: {folder}")
    return folder


@pytest.fixture(scope="session")
def worker_group() -> Iterator[Callable[[int], WorkerGroup]]:
    """worker_group(n): n processes joined by gloo that run functions; kept for all tests of the session."""
    groups: dict[int, WorkerGroup] = {}

    def group_of(world_size: int) -> WorkerGroup:
        return groups.setdefault(world_size, WorkerGroup(world_size))

    yield group_of
    for group in groups.values():
        group.close()


@pytest.fixture(scope="session")
def clean_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built data set for the auditor's tests (audit_sets.build_clean_set); never changed."""
    from audit_sets import build_clean_set  # the pipeline may be absent where GPUs are

    return build_clean_set(tmp_path_factory.mktemp("audit"))


@pytest.fixture
def copied(clean_set: Path, tmp_path: Path) -> Path:
    """A copy of it to plant faults in."""
    from planting import copy_set

    return copy_set(clean_set, tmp_path / "set")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A Hugging Face Hub of this test alone, which huggingface_hub then takes for the real one."""
    from huggingface_hub import constants

    with hub_server.serve() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path_factory.mktemp("hub") / "token"))
        monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
        yield server


@pytest.fixture
def disk_events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`sync PATH` and `name PATH`, as files and folders reach the disk (fsync) and take their names (replace)."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        events.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        fsync(descriptor)

    def note_name(source: str | Path, target: str | Path) -> None:
        events.append(f"name {os.path.abspath(target)}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_name)
    return events
