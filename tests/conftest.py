"""Fixtures that more than one test module uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worker_group import WorkerGroup

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait for whole commands first: they would else run alone at the end."""
    items.sort(key=lambda item: item.path.name not in ("test_jobs.py", "test_trainer_run.py"))


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
