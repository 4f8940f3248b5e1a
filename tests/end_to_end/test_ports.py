"""What the processes of builds and runs listen on: nothing that another machine could reach."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from corpora import make_documents
from ports import beyond_loopback, listeners_of, watch_listeners
from small_builds import write_build_of_files
from synthetic import write_data_set


def environment(repository: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository), "DS_ACCELERATOR": "cpu", **more}


@pytest.mark.parametrize(("address", "is_found"), [("127.0.0.1", False), ("127.0.0.2", False), ("0.0.0.0", True)])
def test_an_open_port_is_found(address: str, is_found: bool) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        found = {each for each in listeners_of(psutil.Process()) if each[1] == port}
        assert len(found) == 1
        assert bool(beyond_loopback(found)) is is_found


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_build_with_several_workers_listens_on_this_machine_only(
    engine: str, tmp_path: Path, repository: Path
) -> None:
    """Beam's servers take pickled code and give out text, without asking who is there; so do Ray's."""
    write_build_of_files(tmp_path, make_documents(60), files=3)
    command = [sys.executable, "pipeline/run.py", "--config", str(tmp_path / "c.yaml"), "--engine", engine, "workers=2"]
    command += [f"sources.0.path={tmp_path / 'text'}", f"vocabulary.path={tmp_path / 'vocab.txt'}"]
    variables = {name: text for name, text in environment(repository).items() if name != "RAY_ADDRESS"}
    found = watch_listeners([*command, f"output={tmp_path / 'out'}"], cwd=repository, env=variables)
    assert len({port for _, port, _ in found}) >= (5 if engine == "local" else 9)
    assert beyond_loopback(found) == []


@pytest.mark.ray
@pytest.mark.parametrize("launcher", ["processes", "ray"])
def test_a_launcher_listens_on_this_machine_only(launcher: str, tmp_path: Path, repository: Path) -> None:
    """The workers' store and collectives, and Ray's own processes."""
    write_data_set(tmp_path / "data", rows=32, max_seq_length=32, vocabulary_size=256)
    (tmp_path / "run.yaml").write_text("max_steps: 3\n")
    words = [
        *(f"data={tmp_path / 'data'}", f"output={tmp_path / 'run'}", "batch.pairs=8", "batch.lanes=4"),
        *("model.size=tiny", "workers=2", "precision=fp32", "device=cpu", f"launcher={launcher}"),
        *("threads_per_worker=1", "evaluation.max_pairs=8"),
    ]
    command = [sys.executable, "trainer/run.py", "--config", str(tmp_path / "run.yaml"), *words]
    variables = {name: text for name, text in environment(repository).items() if name != "RAY_ADDRESS"}
    found = watch_listeners(command, cwd=repository, env=variables)
    assert len({port for _, port, _ in found}) >= (3 if launcher == "processes" else 9)
    assert beyond_loopback(found) == []
