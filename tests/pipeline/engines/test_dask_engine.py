"""The same job on Beam's DaskRunner, over a scheduler and workers that are processes of their own: the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from dask.bag import Bag
from distributed import KilledWorker

from corpora import make_documents, write_text, write_vocabulary
from dask_processes import DaskProcesses
from pipeline.dataset.manifest import open_data_set
from pipeline.engines import base as clusters
from pipeline.engines import dask_cluster
from pipeline.engines.dask_runner import BuildRunner, RunContext, check_worker
from pipeline.errors import PassingError
from pipeline.run import main
from pipeline.runtime.failures import FAILURE_NAME, AbandonedError, raise_if_abandoned
from pipeline.versions import describe_code
from pipeline.vocabulary import __main__
from watched_worker import CALLS, KILLS

SPLITS = 6
CLEANING = "cleaning={min_words: 12, near_duplicates: {}, keep_rejects: rejects}"
TRAINED = "vocabulary={size: 150}"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of six files with near duplicates, and c.yaml for two shards of it and one held out."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = make_documents(240)
    documents += [[*document[:-1], "ba be bi bo bu"] for document in documents[:20] if len(document) > 8]
    for number in range(SPLITS):
        write_text(folder / "text" / f"{number:02d}.txt", documents[number::SPLITS])
    write_vocabulary(folder / "vocab.txt")
    (folder / "c.yaml").write_text(
        "sources: [{kind: text, path: text}]\nvocabulary: {path: vocab.txt}\noutput: out\n"
        "max_seq_length: 32\nvalidation_fraction: 0.1\nshards: 2\n"
    )
    return folder


@pytest.fixture
def folder(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(base, tmp_path / "corpus")
    monkeypatch.chdir(tmp_path / "corpus")
    return tmp_path / "corpus"


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    """With one worker, the first; tests that lose it come last."""
    processes = DaskProcesses(tmp_path_factory.mktemp("dask"))
    try:
        processes.start_worker({CALLS: str(processes.folder / "calls")})
        yield processes
    finally:
        processes.close()


def on_dask(dask: DaskProcesses, *words: str) -> int:
    return main(["--config", "c.yaml", "--engine", "dask", f"dask.address={dask.address}", *words])


def take_calls(dask: DaskProcesses) -> list[str]:
    """The splits that workers were given since this was last asked."""
    path = dask.folder / "calls"
    calls = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return calls


def count(lines: str) -> tuple[str, ...]:
    """Documents, millions of characters, rows and shards of the summary line."""
    found = re.search(r"read (.*) documents, (.*) M characters .*; wrote (.*) rows in (.*) shards", lines)
    assert found is not None, lines
    return found.groups()


def assert_same(one: str, other: str) -> None:
    """Byte for byte, and nothing else in the folders."""
    found, whole = open_data_set(one, full=True), open_data_set(other, full=True)
    assert found == whole
    assert [shard.sha256 for shard in found.shards] == [shard.sha256 for shard in whole.shards]
    listed = [sorted(path.relative_to(folder) for path in Path(folder).rglob("*")) for folder in (one, other)]
    assert listed[0] == listed[1]


def test_a_worker_killed_during_the_job_changes_no_byte(
    folder: Path, dask: DaskProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    """Vocabulary, near duplicates, drops, rejects and the counts that are shown: all as on local processes."""
    take_calls(dask)
    assert main(["--config", "c.yaml", "output=whole", "workers=1", CLEANING, TRAINED]) == 0
    whole = count(capsys.readouterr().out)
    rejects = (folder / "rejects" / "rejects.jsonl").read_bytes()
    doomed = dask.start_worker(
        {CALLS: str(dask.folder / "calls"), KILLS: "pipeline.shuffle.spill SpillWriter._flush 1 self"},
    )
    assert on_dask(dask, CLEANING, TRAINED) == 0
    printed = capsys.readouterr()
    assert doomed.wait(60) == -signal.SIGKILL
    assert "2 workers" in printed.out
    assert len(take_calls(dask)) > SPLITS
    assert count(printed.out) == whole
    assert_same("out", "whole")
    assert (folder / "rejects" / "rejects.jsonl").read_bytes() == rejects
    assert rejects
    assert open_data_set("out").drops["near_duplicate"]
    assert "Traceback" not in printed.err


def test_a_cluster_whose_last_worker_has_just_left_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PassingError: what a build has finished stays."""
    client = SimpleNamespace(nthreads=dict)
    monkeypatch.setattr(dask_cluster, "connect", lambda cluster: nullcontext(client))
    monkeypatch.setattr(dask_cluster, "await_worker", lambda *_, **__: None)
    with pytest.raises(PassingError, match=r"dask\.address=tcp://a:1: its last worker has just left"):
        dask_cluster.find_workers("tcp://a:1", wait_s=1, say=print)


def test_a_failed_build_goes_on_and_reads_each_split_once(
    folder: Path, dask: DaskProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line. What depends on all splits, the plan, is computed once, not in each task that needs it."""
    path = folder / "text" / "03.txt"
    text = path.read_bytes()
    path.write_bytes(text[:-3] + b"\xff\xff\n")
    assert on_dask(dask) == 2
    error = capsys.readouterr().err
    assert "03.txt, line" in error.splitlines()[-1]
    assert "Traceback" not in error
    finished = len(list((folder / "out/_tmp/finished").iterdir()))
    path.write_bytes(text)
    take_calls(dask)
    assert on_dask(dask) == 0
    assert f"resumed: {finished} of {SPLITS} splits and 0 of 3 shards kept" in capsys.readouterr().out
    assert len(take_calls(dask)) == SPLITS
    assert main(["--config", "c.yaml", "output=whole", "workers=1"]) == 0
    assert_same("out", "whole")


def test_an_interrupted_build_takes_its_work_back(
    folder: Path, dask: DaskProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here while the worker is frozen, so that the build cannot be done before."""
    worker = dask.processes[1]

    def interrupt() -> None:
        while not (folder / "out" / "_tmp" / "progress").exists():
            time.sleep(0.05)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    worker.send_signal(signal.SIGSTOP)
    try:
        threading.Thread(target=interrupt).start()
        assert on_dask(dask) == 130
    finally:
        worker.send_signal(signal.SIGCONT)
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert on_dask(dask) == 0


def test_the_command_of_the_vocabulary_takes_the_engine_too(folder: Path, dask: DaskProcesses) -> None:
    words = ["--config", "c.yaml", "vocabulary.size=150"]
    assert __main__.main([*words, "vocabulary.path=a.txt", "--engine=dask", f"dask.address={dask.address}"]) == 0
    assert __main__.main([*words, "vocabulary.path=b.txt"]) == 0
    assert Path("a.txt").read_bytes() == Path("b.txt").read_bytes()


def test_waits_for_workers_and_scheduler_have_an_end(
    folder: Path, dask: DaskProcesses, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The only worker is lost while it works; then there is none; then there is no scheduler."""

    def lose() -> None:
        while not (folder / "out" / "_tmp" / "progress").exists():
            time.sleep(0.05)
        time.sleep(1)
        dask.processes[1].kill()

    monkeypatch.setattr(dask_cluster, "_LOOK_S", 0.1)
    dask.processes[1].send_signal(signal.SIGSTOP)
    threading.Thread(target=lose).start()
    assert on_dask(dask, "dask.worker_wait_s=0.5") == 2
    assert "all workers are gone and none has come back in 0.5 s" in capsys.readouterr().err
    assert on_dask(dask, "dask.worker_wait_s=0.5") == 2
    assert "no worker in 0.5 s: start workers with `dask worker`" in capsys.readouterr().err
    monkeypatch.setattr(dask_cluster, "_CONNECT_S", 0.5)
    dask.processes[0].kill()
    dask.processes[0].wait()
    assert on_dask(dask) == 2
    assert f"no Dask scheduler answers at {dask.address}" in capsys.readouterr().err


def test_a_worker_with_other_code_or_another_storage_is_refused(tmp_path: Path) -> None:
    """Its rows might differ, or be seen by nobody."""
    context = RunContext("run", describe_code(), str(tmp_path), "")
    check_worker(context)
    other = {**context.code, "numpy": "1.0"}
    with pytest.raises(PassingError, match=r"has numpy .*, not 1\.0: its rows might differ"):
        check_worker(RunContext("run", other, str(tmp_path), ""))
    with pytest.raises(PassingError, match=r"gone: the worker on .* does not see this folder"):
        check_worker(RunContext("run", context.code, str(tmp_path / "gone"), ""))


def test_work_in_vain_ends(tmp_path: Path) -> None:
    raise_if_abandoned(str(tmp_path))
    (tmp_path / FAILURE_NAME).write_text("{}")
    with pytest.raises(AbandonedError, match="has failed elsewhere"):
        raise_if_abandoned(str(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "dask"], "engine=dask needs dask.address"),
        (["--engine=dask", "dask.address=tcp://x:1", "--", "--runner=X"], "--runner=X both choose a runner; remove"),
        (["--engine=dask", "dask.address=nowhere"], "no Dask scheduler answers at nowhere"),
        (["--engine"], "--engine needs a value"),
        (["--engine=flink"], "engine='flink'"),
    ],
)
def test_what_cannot_be_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.setattr(dask_cluster, "_CONNECT_S", 0.5)
    assert main(["--config", "c.yaml", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_an_engine_that_is_not_installed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clusters, "find_spec", lambda name: None)
    assert main(["--config", "c.yaml", "--engine=ray"]) == 2
    assert (
        "engine=ray needs cryptography, dask, distributed, ray, not installed here; install" in capsys.readouterr().err
    )


def test_losses_are_explained() -> None:
    """What Dask says of them names keys and states."""
    killed = KilledWorker("run_step-1", SimpleNamespace(address="tcp://x:1"), 3)
    assert "4 workers were lost one after another over the same piece of work" in str(dask_cluster._explain(killed))
    absent = ModuleNotFoundError("No module named 'pipeline'")
    assert "this package is not installed on the Dask scheduler" in str(dask_cluster._explain(absent))
    other = OSError("disk")
    assert dask_cluster._explain(other) is other


def test_a_value_is_combined_by_a_tree_of_small_tasks() -> None:
    """One task that reads every partition holds all values: 4 GB of counts for 16,000 shards."""
    pipeline = beam.Pipeline(runner=RecordingRunner(partitions=1000))
    numbers = pipeline | beam.Create(range(5000), reshuffle=False)
    _ = numbers | beam.CombineGlobally(sum) | beam.Map(lambda total: [total])
    pipeline.run(test_runner_api=False)
    graphs = [dict(bag.__dask_graph__()) for bag in pipeline.runner.results]
    reads = [len(getattr(task, "dependencies", ())) for graph in graphs for task in graph.values()]
    assert max(reads) <= 16
    assert sum(map(len, graphs)) < 5 * 1000
    assert pipeline.runner.results[-1].compute(scheduler="synchronous") == [[sum(range(5000))]]
    assert len(graphs[-1]) < 10  # what comes after a combination does not depend on what came before: Dask's ordering


class RecordingRunner(BuildRunner):
    """Keeps the bags that it would send to a cluster."""

    def __init__(self, *, partitions: int) -> None:
        self.results: list[Any] = []
        client = SimpleNamespace(compute=self.compute, persist=self.persist)
        super().__init__(client, context=RunContext("run", {}, "/", ""), partitions=partitions)

    def compute(self, bags: tuple[Bag]) -> list[Any]:
        """Keep the last bag."""
        self.results.extend(bags)
        return []

    def persist(self, bag: Bag) -> Bag:
        """Compute it here."""
        self.results.append(bag)
        return Bag({(f"{bag.name}-done", 0): bag.compute(scheduler="synchronous")}, f"{bag.name}-done", 1)
