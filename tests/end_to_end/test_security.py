"""What users pass around cannot run code, leave its folder, or carry secrets away."""

from __future__ import annotations

import ast
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dataset.manifest import DataSetError, resolve_inside
from synthetic import write_data_set
from trainer.checkpoint.format import CheckpointError, read_manifest, step_name, write_manifest
from trainer.run import PROGRAM

PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
SECRETS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN"),
    *("RAY_AUTH_TOKEN", "MY_PASSWORD"),
)


def unsafe(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that could run code out of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names if each.name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in PICKLES:
                yield node.lineno, node.module or ""
            for each in node.names:
                if (node.module, each.name) in {("torch", "load"), ("yaml", "load"), ("numpy", "load")}:
                    yield node.lineno, f"{node.module}.{each.name}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            settings = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in {"eval", "exec", "__import__", "torch.jit.load", "torch.hub.load", "pd.read_pickle"}:
                yield node.lineno, name
            if name == "torch.load" and settings.get("weights_only") != "True":
                yield node.lineno, name
            if name in {"np.load", "numpy.load"} and settings.get("allow_pickle", "False") != "False":
                yield node.lineno, name
            if name in {"yaml.load", "yaml.unsafe_load", "yaml.full_load"} and settings.get("Loader") != "NumberLoader":
                yield node.lineno, name


@pytest.mark.parametrize(
    "code",
    [
        *("torch.load(path)", "torch.load(path, weights_only=False)", "import pickle", "from pickle import load"),
        *("np.load(path, allow_pickle=True)", "yaml.load(text, Loader=yaml.Loader)", "from torch import load"),
        *("eval(text)", "import cloudpickle as c", "torch.hub.load(repo, name)"),
    ],
)
def test_what_could_run_code_is_found(code: str) -> None:
    assert list(unsafe(ast.parse(code)))


def test_nothing_that_users_pass_around_is_unpickled(repository: Path) -> None:
    files = [path for package in ("pipeline", "trainer") for path in (repository / package).rglob("*.py")]
    assert len(files) > 40
    found = [
        f"{path.relative_to(repository)}:{line}: {what}"
        for path in files
        for line, what in unsafe(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    loader = (repository / "pipeline" / "yaml_numbers.py").read_text(encoding="utf-8")
    assert "class NumberLoader(yaml.SafeLoader)" in loader


names = st.lists(st.sampled_from(["..", ".", "", "a", "..b", "~", "a\\b", "\\.."]), min_size=1, max_size=5).map(
    "/".join
)


@given(name=names)
def test_no_name_of_a_data_set_leads_out_of_its_folder(name: str) -> None:
    root = Path("/sets/mine")
    try:
        path = resolve_inside(root, name)
    except DataSetError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(root)


@given(name=names)
def test_no_name_of_a_checkpoint_leads_out_of_its_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("run") / step_name(3)
    folder.mkdir()
    write_manifest(folder, step=3, files={name: {"bytes": 0, "sha256": ""}})
    try:
        read_manifest(folder)
    except CheckpointError:
        return
    assert Path(os.path.normpath(folder / name)).parent == folder


def test_no_secret_of_the_environment_reaches_a_dump_or_a_log(tmp_path: Path, repository: Path) -> None:
    """The real command: a run to its end, and one that fails in a worker; all that they write and print."""
    write_data_set(tmp_path / "data", rows=10, max_seq_length=32, vocabulary_size=256)
    values = {name: f"secret-{secrets.token_hex(16)}" for name in SECRETS}
    common = [
        *(f"data={tmp_path / 'data'}", "batch.pairs=8", "batch.lanes=4", "model.size=tiny", "workers=1"),
        *("precision=fp32", "launcher=processes", "device=cpu", "threads_per_worker=1", "evaluation.max_pairs=8"),
    ]
    config = tmp_path / "config.yaml"
    config.write_text("max_steps: 2\n")
    printed = ""
    failing = ("optimizer.learning_rate=1e30", "optimizer.clip_norm=0", "schedule.name=constant", "max_steps=9")
    for number, (words, status) in enumerate([((), 0), (failing, 2)]):
        command = [sys.executable, PROGRAM, "--config", str(config), *common, f"output={tmp_path / f'run{number}'}"]
        done = subprocess.run(
            [*command, *words],
            cwd=repository,
            env={**os.environ, **values},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == status, done.stderr
        printed += done.stdout + done.stderr
    files = [path for run in ("run0", "run1") for path in (tmp_path / run).rglob("*") if path.is_file()]
    assert {"config.yaml", "state.json", "metrics.jsonl", "bad_steps.jsonl"} <= {path.name for path in files}
    assert json.loads((tmp_path / "run0" / "checkpoints" / step_name(2) / "state.json").read_text())["step"] == 2
    for name, value in values.items():
        assert value not in printed, name
        for path in files:
            assert value.encode() not in path.read_bytes(), (name, path)


def test_docs_make_the_file_of_the_token_for_its_owner_only(repository: Path) -> None:
    """The token lets anybody run code on the cluster."""
    pages = [repository / "README.md", *repository.glob("docs/**/*.md"), repository / "cluster" / "README.md"]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    makes = [line for line in lines if "get-auth-token" in line or "> ~/.ray/auth_token" in line]
    assert makes
    assert all("umask 077" in line for line in makes)
