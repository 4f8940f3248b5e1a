"""`python trainer/run.py` puts trainer/ first on the path: no file there may shadow another module."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["pipeline", "trainer"])
def test_no_module_shadows_another(repository: Path, package: str) -> None:
    taken = sys.stdlib_module_names | (set(packages_distributions()) - {"pipeline", "trainer"})
    names = {path.stem for path in (repository / package).iterdir() if path.suffix == ".py" or path.is_dir()}
    names -= {"__init__", "__pycache__"}
    assert names, "found no modules: the test looks in the wrong place"
    assert not names & taken


def test_files_stay_readable(repository: Path) -> None:
    """No Python file over 400 lines, code in ASCII, every module says what it is."""
    files = [path for package in ("pipeline", "trainer", "bench") for path in (repository / package).rglob("*.py")]
    assert len(files) > 20
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400, path
        assert text.isascii(), path
        assert ast.get_docstring(ast.parse(text)), f"{path}: no module docstring"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("trainer.train.loop", ("apache_beam", "mwparserfromhell")),
        ("trainer.data.plan", ("torch", "ray", "deepspeed", "apache_beam")),
        ("trainer.export.folder", ("deepspeed", "ray")),
        ("pipeline.instances.pairs", ("apache_beam", "torch", "ray")),
        ("pipeline.instances.masking", ("apache_beam", "torch", "ray")),
        ("pipeline.dataset.manifest", ("apache_beam", "torch", "ray")),
    ],
)
def test_modules_load_without_what_they_must_not_need(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport {module}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
