"""Commands outside of the environment say in one line what is missing; python -S has the standard library alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__main__")
    for package in ("pipeline", "trainer", "cluster", "bench")
    for path in (ROOT / package).rglob("*.py")
    if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
MODULES.remove("bench.lddl_job")  # a child that runs in LDDL's environment
REMEDY = r"is not installed for \S+; run `make setup` once, then `\. \.venv/bin/activate`, or use .*\n"


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-S", *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_all_commands_are_found() -> None:
    assert {"pipeline.run", "pipeline.audit", "trainer.export", "cluster.submit", "bench.run"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_missing_package_is_one_line(module: str) -> None:
    result = run("-m", module, "--help")
    if result.returncode == 0:  # needs nothing but the standard library to say how it is called
        assert not result.stderr
        return
    assert re.fullmatch(rf"error: the package \w+ {REMEDY}", result.stderr), result.stderr
    assert result.returncode == 2


@pytest.mark.parametrize("script", ["pipeline/run.py", "trainer/run.py"])
def test_a_script_says_it_too_from_any_folder(tmp_path: Path, script: str) -> None:
    for words, cwd in (([script], ROOT), ([str(ROOT / script)], tmp_path)):
        result = run(*words, cwd=cwd)
        assert re.fullmatch(rf"error: the package \w+ {REMEDY}", result.stderr), result.stderr
        assert result.returncode == 2


def test_other_programs_keep_their_tracebacks(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport pipeline\nimport no_such_package"
    result = run("-c", program, cwd=tmp_path)
    assert result.stderr.startswith("Traceback")


def test_a_module_of_our_own_that_is_missing_is_a_fault_of_the_code(tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = [{str(ROOT / 'pipeline' / 'run.py')!r}]\n"
        f"import pipeline\nimport pipeline.no_such_module"
    )
    result = run("-c", program, cwd=tmp_path)
    assert result.stderr.startswith("Traceback")
