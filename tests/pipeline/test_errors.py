"""What is said of an error: a disk without inodes is not a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import describe_error

FULL = OSError(errno.ENOSPC, "No space left on device")


def state(monkeypatch: pytest.MonkeyPatch, **numbers: int) -> None:
    found = SimpleNamespace(**{"f_files": 500, "f_favail": 0, "f_bavail": 9, **numbers})
    monkeypatch.setattr(os, "statvfs", lambda path: found)


def test_a_lack_of_inodes_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(monkeypatch)
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "a" / "b"))
    assert describe_error(error) == f"{error}; no inode is left there: this disk holds 500 files; remove some"


@pytest.mark.parametrize("numbers", [{"f_favail": 1}, {"f_bavail": 0}, {"f_files": 0}])
def test_a_full_disk_is_one(numbers: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(monkeypatch, **numbers)
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))
    assert describe_error(error) == str(error)


@pytest.mark.parametrize(
    "error", [FULL, ValueError("a"), FileNotFoundError(2, "gone", "/a"), OSError(errno.ENOSPC, "full", 3)]
)
def test_other_errors_are_said_as_they_are(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    state(monkeypatch)
    assert describe_error(error) == str(error)
