"""The rooms: who may import what. The layers themselves are contracts of import-linter (pyproject.toml)."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ONLY_IN = {
    "apache_beam": ("pipeline.build.*", "pipeline.engines.*", "pipeline.vocabulary.*"),
    "ray": ("*.*ray*", "trainer.launch.elastic", "trainer.data.readers", "*.prometheus"),
    "deepspeed": ("trainer.engine.deepspeed_setup",),
    "transformers": (),
}
"""Which modules may import a library, at any place."""


class Import(NamedTuple):
    """One name that a file imports."""

    file: str
    line: int
    module: str
    name: str
    late: bool
    """Inside a function, or for type checkers alone."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: from {self.module} import {self.name}"


def list_imports(root: Path, *folders: str) -> Iterator[Import]:
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            where, late = str(path.relative_to(root)), id(node) not in top
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (Import(where, node.lineno, node.module, alias.name, late) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (Import(where, node.lineno, alias.name, "", late) for alias in node.names)


def room_of(module: str) -> str | None:
    """`pipeline.storage` of `pipeline.storage.files`; None for what is in no room. Relative to the repository."""
    parts = module.split(".")
    if parts[0] not in ("pipeline", "trainer"):
        return None
    rooms = [parts[:count] for count in range(2, len(parts) + 1) if Path(*parts[:count]).is_dir()]
    return ".".join(rooms[-1]) if rooms else None


def test_callers_import_a_room_and_not_its_inside(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that the room's __init__ imports, or a module that its docstring names because it loads much."""
    monkeypatch.chdir(repository)
    wrong, seen = [], 0
    for found in list_imports(repository, "pipeline", "trainer", "cluster"):
        room = room_of(found.module)
        if room is None or room == room_of(found.file.removesuffix(".py").replace("/", ".")):
            continue
        seen += 1
        package = importlib.import_module(room)
        offered = found.name in offers(package) or f"`{found.name}`" in (package.__doc__ or "")
        if found.module != room or not offered:
            wrong.append(str(found))
    assert seen > 300, "found no imports: the test looks in the wrong place"
    assert not wrong


def offers(room: ModuleType) -> set[str]:
    """What a room's __init__ imports or defines."""
    tree = ast.parse(inspect.getsource(room))
    imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return imported | {name for name, value in vars(room).items() if getattr(value, "__module__", "") == room.__name__}


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_where_it_belongs_alone(repository: Path, library: str) -> None:
    users = [
        found
        for found in list_imports(repository, "pipeline", "trainer")
        if found.module.split(".")[0] == library
        and not any(fnmatch(found.file.removesuffix(".py").replace("/", "."), allowed) for allowed in ONLY_IN[library])
    ]
    assert not [str(found) for found in users]
