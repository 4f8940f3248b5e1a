"""Every report of a fault of such trainers (../shared/docs/PROBLEMS.md) is named in the test that covers it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SECTION = "Training"
_REFERENCE = re.compile(r"([A-Za-z][\w./-]*)?#(\d+)")


def references(text: str) -> set[str]:
    """`ray#1, #2; bert#3` -> {"ray#1", "ray#2", "bert#3"}: a number alone is of the repository before it."""
    found, repository = set(), ""
    for match in _REFERENCE.finditer(text):
        repository = (match[1] or repository).rpartition("/")[2]
        found.add(f"{repository}#{match[2]}")
    return found


def listed(table: Path, *, section: str) -> dict[str, set[str]]:
    """First cell of each row of the section's table -> its references."""
    part = table.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("|")][2:]
    return {row: references(row) for row in rows}


def named(tests: Path) -> set[str]:
    """References in the docstrings of test functions."""
    found: set[str] = set()
    for path in tests.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found |= references(ast.get_docstring(node) or "")
    return found


def test_references_are_read() -> None:
    assert references("google-research/bert#1, #2; DeepSpeed (source); ray#3") == {"bert#1", "bert#2", "ray#3"}


def test_every_report_is_named_in_a_test(repository: Path) -> None:
    table = repository.parent / "shared" / "docs" / "PROBLEMS.md"
    if not table.is_file():
        pytest.skip(f"the table of reports is absent: {table}")
    rows = listed(table, section=SECTION)
    assert len(rows) >= 19
    assert all(rows.values())
    known = named(repository / "tests")
    missing = {row: sorted(wanted - known) for row, wanted in rows.items() if wanted - known}
    assert not missing, "name these in the docstring of the test that covers them"
