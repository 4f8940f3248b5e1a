"""Ctrl-C and SIGTERM: one line, status 130 or 143, no process left, and the same command builds the set afterwards."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from corpora import make_documents, write_text
from pipeline.dataset.manifest import read_manifest
from pipeline.engines import local
from pipeline.run import main
from pipeline.runtime.failures import FAILURE_NAME
from pipeline.signals import TerminatedError, catch_interrupts
from small_builds import write_build


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text for a few seconds, in two files."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(2):
        write_text(folder / f"{number}.txt", make_documents(2_000, seed=number + 1))
    return folder


@pytest.fixture
def folder(tmp_path: Path, text: Path) -> Path:
    write_build(tmp_path)
    (tmp_path / "text").symlink_to(text)
    return tmp_path


def start(folder: Path, *words: str, module: str = "pipeline.run") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, "--config", "c.yaml", "sources.0.path=text/*.txt", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], object], *, process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert process is None or process.poll() is None, "the command ended before it was stopped"
        assert time.monotonic() < end
        time.sleep(0.02)


def session_of(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None


def members(session: int) -> list[int]:
    """Processes of a session but for its leader."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in found if process != session and session_of(process) == session]


def end_by(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """As a terminal sends Ctrl-C, to every process; any other signal to the command alone. Progress is left out of what
    stderr says."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=600)
    lines = [line for line in errors.splitlines(keepends=True) if " s: read " not in line]
    return process.returncode, "".join(lines)


@pytest.mark.parametrize(
    ("workers", "number", "status", "line"),
    [(1, signal.SIGTERM, 143, "terminated"), (2, signal.SIGINT, 130, "interrupted")],
)
def test_a_build_that_is_stopped_says_so_in_one_line(
    folder: Path, workers: int, number: int, status: int, line: str
) -> None:
    process = start(folder, f"workers={workers}")
    wait_for(lambda: list((folder / "out").glob("_tmp/progress/read-*.json")), process=process)
    assert (len(members(process.pid)) > 1) == (workers > 1)
    left, errors = end_by(process, number)
    kept = folder / "out" / "_tmp"
    note = f"{kept}: finished pieces are kept; the same command goes on from them\n" if kept.exists() else ""
    assert (left, errors) == (status, f"{note}{line}\n")
    wait_for(lambda: not members(process.pid))
    assert not (folder / "out" / "manifest.json").exists()
    if workers == 1:
        words = ["--config", str(folder / "c.yaml"), f"sources.0.path={folder}/corpus.txt"]
        places = [f"vocabulary.path={folder}/vocab.txt", f"output={folder}/out"]
        assert main([*words, *places]) == 0
        assert main([*words, *places[:1], f"output={folder}/fresh"]) == 0
        assert read_manifest(folder / "out") == read_manifest(folder / "fresh")


def test_a_build_stopped_while_its_workers_start(folder: Path) -> None:
    process = start(folder, "workers=2")
    wait_for(lambda: members(process.pid), process=process)
    assert end_by(process, signal.SIGTERM) == (143, "terminated\n")
    wait_for(lambda: not members(process.pid))


def test_workers_end_after_a_killed_build(folder: Path) -> None:
    process = start(folder, "workers=2")
    wait_for(lambda: list((folder / "out").glob("_tmp/progress/read-*.json")), process=process)
    assert end_by(process, signal.SIGKILL) == (-signal.SIGKILL, "")
    wait_for(lambda: not members(process.pid))


def test_vocabulary_training_is_stopped_alike(folder: Path) -> None:
    process = start(folder, "workers=2", "vocabulary.path=new/v.txt", module="pipeline.vocabulary")
    wait_for(lambda: list(folder.glob("new/.words-*/read-*.json")), process=process)
    assert end_by(process, signal.SIGTERM) == (143, "terminated\n")
    wait_for(lambda: not members(process.pid))
    assert not list((folder / "new").iterdir())


NUMBERS = [f"--{name}=9" for name in ("max-seq-length", "max-predictions", "dupe-factor", "seed")]
ANYTHING = SimpleNamespace(output="OUT", sources=())
COMMANDS = {
    "pipeline.run": ("build", [], ""),
    "pipeline.vocabulary.__main__": ("read_config", [], ""),
    "pipeline.estimate.__main__": ("estimate", [], ""),
    "pipeline.download.__main__": ("fetch_sample", ["sample", "DIR"], "what is fetched"),
    "pipeline.audit.__main__": ("audit", ["DIR"], ""),
    "trainer.run": ("read_config", [], "the last checkpoint"),
    "trainer.export.__main__": ("export", ["RUN", "OUT"], ""),
    "trainer.demonstrate": ("FillMask", ["EXPORT"], ""),
    "trainer.evaluate": ("evaluate", ["MODEL", "DATA"], ""),
    "trainer.profiling": ("profile_run", [], ""),
    "trainer.checkpoint.command": ("inspect", ["RUN"], ""),
    "pipeline.instances.reference": ("WordTokenizer.from_path", ["TEXT", "--vocab", "V", *NUMBERS], ""),
    "cluster.render.__main__": ("write", [], ""),
    "cluster.local": ("start", ["start"], ""),
    "cluster.submit": ("connect", ["list"], ""),
}
"""Module -> (what works long in it, words of its command line, what the same command goes on from)."""


@pytest.mark.parametrize(("number", "says"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_in_one_line(
    name: str, number: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in a traceback, and never without a word."""
    work, words, goes_on_from = COMMANDS[name]
    module = importlib.import_module(name)

    def stop(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(f"{name}.{work}", stop)
    if hasattr(module, "read_config"):
        monkeypatch.setattr(module, "read_config", stop if work == "read_config" else lambda *_, **__: ANYTHING)
        monkeypatch.setattr(module, "choose_workers", lambda *_, **__: 1, raising=False)
    assert module.main(words) == 128 + number
    rest = f"; the same command goes on from {goes_on_from}" if goes_on_from else ""
    assert capsys.readouterr().err == f"{says}{rest}\n"


def test_sigterm_raises_in_the_body_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminatedError), catch_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with catch_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    handlers = []

    def look() -> None:
        with catch_interrupts():
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [before]


class FailingPipeline:
    """As a Beam pipeline that fails while the thread of a worker is still there to fail, later."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.worker = threading.Thread(target=self.lose, name="run_worker")

    def lose(self) -> None:
        self.gone.wait()
        raise RuntimeError("exited with return code 1")

    def run(self) -> FailingPipeline:
        self.worker.start()
        raise ValueError("the cause")


def test_threads_of_beam_are_quiet_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads are not."""
    heard: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: heard.append(str(arguments.exc_value)))
    monkeypatch.setattr(local, "_LAST_WORDS_S", 0)
    pipeline = FailingPipeline()
    with pytest.raises(ValueError, match="the cause"):
        local._run_watching_workers(pipeline, results_folder=str(tmp_path))
    assert (tmp_path / FAILURE_NAME).exists()
    pipeline.gone.set()
    pipeline.worker.join()
    assert heard == []

    def fail() -> None:
        raise ValueError("of another thread")

    other = threading.Thread(target=fail, name="run_worker")
    other.start()
    other.join()
    assert heard == ["of another thread"]
