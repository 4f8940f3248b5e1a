"""The command: paths, help, first line, reruns, and every refusal with its place and remedy and exit status 2."""

from __future__ import annotations

import bz2
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from corpora import build_text, make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.config.schema import PipelineConfig, SourceConfig, VocabularyConfig
from pipeline.dataset.manifest import read_manifest
from pipeline.engines import base, beam_worker, local
from pipeline.run import main
from pipeline.runtime import command
from pipeline.runtime.failures import Failure, choose_kept, read_failure, report_failure
from pipeline.runtime.progress import ProgressPrinter, WorkReport
from pipeline.shuffle.spill import SpillError
from small_builds import refused, write_build

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">
<siteinfo><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>
<page><title>A</title><ns>0</ns><id>1</id><redirect title="B" /><revision><id>1</id>
<model>wikitext</model><format>text/x-wiki</format><text>#REDIRECT [[B]]</text></revision></page>
</mediawiki>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_build(tmp_path)


# The command line


def test_help_documents_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for cls, prefix in ((PipelineConfig, ""), (SourceConfig, "sources.N."), (VocabularyConfig, "vocabulary.")):
        for name in cls.model_fields:
            assert f"  {prefix}{name}" in text
    assert "-- --beam_option" in text


def test_without_the_sample_the_remedy_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = folder / "pipeline" / "configs" / "sample.yaml"
    config.parent.mkdir(parents=True)
    config.write_text((folder / "c.yaml").read_text())
    monkeypatch.setattr(command, "_ROOT", folder)
    monkeypatch.setattr(command, "SAMPLE_CONFIG", config)
    assert main([]) == 2
    assert capsys.readouterr().err.endswith("the sample corpus is missing; fetch it with `make sample`\n")


def test_paths_are_relative_to_the_current_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert main(["--config", "c.yaml", "output=sub/set"]) == 0
    assert read_manifest(folder / "sub" / "set").num_rows("train") > 0


def test_the_sample_config_is_relative_to_the_repository(
    folder: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    made: list[PipelineConfig] = []
    monkeypatch.setattr("pipeline.run.build", lambda config, **_: made.append(config))
    assert main(["seed=7"]) == 0
    assert main(["output=mine", "sources.1.path=corpus.txt"]) == 0
    first, second = made
    assert first.output == str(repository / "data/sample-set")
    assert first.vocabulary.path == str(repository / "data/sample/vocabulary/vocab.txt")
    assert all(path.startswith(str(repository / "data/sample/")) for source in first.sources for path in source.paths)
    assert second.output == str(folder / "mine")
    assert second.sources[1].paths == (str(folder / "corpus.txt"),)
    assert second.sources[0] == first.sources[0]
    line = f"no --config given: using {repository}/pipeline/configs/sample.yaml"
    assert capsys.readouterr().out.splitlines()[0] == line


def test_a_missing_sample_is_named_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_ROOT", folder)
    assert main([]) == 2
    message = f"error: {folder}/data/sample: the sample corpus is missing; fetch it with `make sample`"
    assert capsys.readouterr().err.strip() == message


def test_the_module_runs_from_another_folder(folder: Path, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.run", "--config", "c.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 worker" in done.stdout.splitlines()[0]
    assert "training rows" in done.stdout.splitlines()[-1]


def test_unknown_words_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --config" in refused(folder, "--confg", capsys=capsys)
    assert "did you mean 'max_seq_length'" in refused(folder, "max_sequence_length=3", capsys=capsys)
    assert "max_seq_length='long'" in refused(folder, "max_seq_length=long", capsys=capsys)


def test_beam_options_pass_through(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every bundle twice, as after a failed attempt: the same set, nothing counted twice."""
    monkeypatch.chdir(folder)
    words = ["--config", "c.yaml"]
    runner = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    assert main([*words, "output=one", "--", runner, "--direct_runner_bundle_repeat=1", "--job_nam=x"]) == 0
    assert "does not know the option --job_nam; did you mean --job_name?" in caplog.text
    assert main([*words, "output=two"]) == 0
    assert read_manifest("one") == read_manifest("two")
    assert main([*words, "output=three", "--", "--runner=NoSuchRunner"]) == 2
    assert "NoSuchRunner" in capsys.readouterr().err
    assert not (folder / "three").exists()


def test_more_workers_than_cores_is_a_warning(folder: Path) -> None:
    """All cores by default (bert#616, #89)."""
    cores = len(os.sched_getaffinity(0))
    lines: list[str] = []
    config = make_config(folder, sources=[{"kind": "text", "path": str(folder / "corpus.txt")}])
    assert base.choose_workers(config.model_copy(update={"workers": cores + 1}), say=lines.append) == cores + 1
    assert lines == [f"warning: workers={cores + 1} exceeds the {cores} cores of this machine"]
    assert base.choose_workers(config.model_copy(update={"workers": None}), say=lines.append) == cores
    assert len(lines) == 1


# Input


def test_bad_input_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert "nothing.txt" in refused(folder, "sources.0.path=nothing.txt", capsys=capsys)
    assert "*.md" in refused(folder, "sources.0.path=*.md", capsys=capsys)
    assert "no such vocabulary file" in refused(folder, "vocabulary.path=none.txt", capsys=capsys)
    (folder / "empty.txt").write_text("")
    assert "empty.txt" in refused(folder, "sources.0.path=empty.txt", capsys=capsys)
    (folder / "blank.txt").write_text("\n\n  \n")
    assert "blank.txt" in refused(folder, "sources.0.path=blank.txt", capsys=capsys)
    (folder / "bad.txt").write_text("[PAD]\n[PAD]\n")
    assert "bad.txt, line 2" in refused(folder, "vocabulary.path=bad.txt", capsys=capsys)


def test_urls_are_not_taken_for_local_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for setting in ("output", "sources.0.path", "vocabulary.path"):
        error = refused(folder, f"{setting}=hdfs://host/x", capsys=capsys)
        assert f"{setting}: hdfs://...: this kind of store is not supported" in error


def test_a_dump_without_articles_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also beside a source that has documents."""
    monkeypatch.chdir(folder)
    (folder / "dump.xml.bz2").write_bytes(bz2.compress(DUMP.encode()))
    sources = "sources=[{kind: text, path: corpus.txt}, {kind: wikipedia, path: dump.xml.bz2}]"
    error = refused(folder, sources, capsys=capsys)
    assert "dump.xml.bz2" in error
    assert "article" in error
    assert "1 redirect" in error


def test_too_few_documents_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validated, not no output or a crash (transformers#452, #762, PR#7161)."""
    monkeypatch.chdir(folder)
    document = make_documents(1)[0]
    write_text(folder / "one.txt", [document, document])
    error = refused(folder, "sources.0.path=one.txt", capsys=capsys)
    assert "1 distinct document" in error
    assert "at least 2" in error
    error = refused(folder, "validation_fraction=0.001", capsys=capsys)
    assert "the smallest value that works here is" in error
    fraction = error.split("works here is ")[1].split(";")[0]
    assert main(["--config", "c.yaml", f"validation_fraction={fraction}"]) == 0
    assert read_manifest("out").statistics["splits"]["validation"]["documents"] == 2


def test_unbalanced_labels_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A blank line after every word: no document has a next sentence."""
    monkeypatch.chdir(folder)
    words = sorted({word for document in make_documents(60) for sentence in document for word in sentence.split()})
    write_text(folder / "words.txt", [[word] for word in words])
    error = refused(folder, "sources.0.path=words.txt", capsys=capsys)
    assert "rows has a next-sentence label: no document has a next sentence" in error
    assert "blank line after every sentence" in error
    assert main(["--config", "c.yaml", "sources.0.path=words.txt", "next_sentence=none"]) == 0


def test_errors_in_worker_processes_come_out_as_one_line(folder: Path) -> None:
    sources = "sources=[{kind: text, path: corpus.txt}, {kind: wikipedia, path: cut.xml.bz2}]"
    whole = bz2.compress(b"x" * 10 + DUMP.encode() * 2000)
    (folder / "cut.xml.bz2").write_bytes(whole[: len(whole) // 2])
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.run", "--config", "c.yaml", "workers=2", sources],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    *progress, error = done.stderr.strip().splitlines()
    kept = "out/_tmp: finished pieces are kept"  # the other file's split, where it was finished by then
    assert all(" s: read " in line or kept in line for line in progress), done.stderr
    assert error.startswith("error: ")
    assert "cut.xml.bz2" in error
    left = {path.name for path in (folder / "out").iterdir()} if (folder / "out").exists() else set()
    assert left in (set(), {"_tmp", "_build.json"})


def test_a_killed_worker_ends_the_build_with_a_clear_error(folder: Path) -> None:
    """Killed while it starts: Beam alone would wait for it for ever."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.run", "--config", "c.yaml", "workers=2", "shards=2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    workers: list[int] = []
    while len(workers) < 2 and process.poll() is None:
        workers = children(process.pid)
        time.sleep(0.02)
    os.kill(workers[0], signal.SIGKILL)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 2, error
    assert error.strip().splitlines()[-1].startswith("error: a worker process ended without an error message")
    assert not (folder / "out").exists()
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_a_worker_whose_build_is_gone_ends_at_once() -> None:
    """It was born too late to see its parent die, and would wait for it for ever."""
    code = (
        "import os, time; from pipeline.engines import beam_worker\n"
        "beam_worker.silence_beam = lambda: (time.sleep(20), os._exit(7))\n"
        "beam_worker.main()"
    )
    environment = {**os.environ, beam_worker.BUILD_VARIABLE: "1"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 1


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == parent and b"pipeline.engines.beam_worker" in command:
                found.append(int(entry.name))
    return found


def test_traceback_shows_where_it_came_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "blank.txt").write_text("\n\n  \n")
    assert main(["--config", "c.yaml", "--traceback", "sources.0.path=blank.txt"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "refuse_empty_source" in error


def test_our_own_mistakes_keep_their_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr("pipeline.build.graph.spill_split", broken)
    with pytest.raises(Exception, match="a mistake"):
        main(["--config", "c.yaml"])
    assert not (folder / "out").exists()


def test_a_full_disk_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipeline.build.graph.spill_split", full_disk)
    error = refused(
        folder,
        f"output={folder}/out",
        f"sources.0.path={folder}/corpus.txt",
        f"vocabulary.path={folder}/vocab.txt",
        capsys=capsys,
    )
    assert error.startswith(f"error: {folder}/out")
    assert "cannot be written (No space left on device); free space" in error


def test_the_first_failure_of_several_workers_is_kept(tmp_path: Path) -> None:
    assert read_failure(str(tmp_path)) is None
    for message in ("first", "second"):
        with pytest.raises(OSError, match=message), report_failure(str(tmp_path)):
            raise OSError(message)
    failure = read_failure(str(tmp_path))
    assert isinstance(failure, Failure)
    assert (failure.message, failure.is_users, failure.keeps) == ("first", True, "all")
    assert "raise OSError(message)" in failure.details
    with pytest.raises(ValueError, match="still raised"), report_failure(str(tmp_path / "no folder")):
        raise ValueError("still raised")


def test_what_is_kept_follows_from_what_is_to_blame() -> None:
    """Settings: nothing. Anything that may pass: all. The worker's word survives the way to the main process."""
    assert choose_kept(ValueError("a setting")) == "nothing"
    assert choose_kept(OSError("a disk")) == choose_kept(KeyboardInterrupt()) == choose_kept(KeyError("ours")) == "all"
    assert choose_kept(SpillError("damaged")) == "all"
    assert choose_kept(local.WorkerError("cut.bz2", details="", keeps="unchanged_input")) == "unchanged_input"


# Progress


def test_progress_sums_what_workers_report(tmp_path: Path) -> None:
    """650 MB takes a day with no sign of life (bert#616, #89): parallel by default, and what was done is told."""
    printer = ProgressPrinter(tmp_path, num_splits=2)
    with WorkReport(tmp_path, stage="read") as report:
        report.add(documents=3, characters=2_000_000)
    assert "read 3 documents, 2.0 M characters" in printer.line()
    assert "1 of 2 splits" in printer.line()
    with suppress(RuntimeError), WorkReport(tmp_path, stage="read") as report:
        report.add(documents=100, characters=5)
        raise RuntimeError("failed")
    assert "read 3 documents" in printer.line()
    with WorkReport(tmp_path, stage="read") as report, WorkReport(tmp_path, stage="shard") as shard:
        report.add(documents=1, characters=0)
        shard.add(rows=50)
    assert "read 4 documents, 2.0 M characters" in printer.summary()
    assert "wrote 50 rows in 1 shard" in printer.summary()


def test_the_build_tells_its_story(tmp_path: Path) -> None:
    lines: list[str] = []
    path = write_text(tmp_path / "a.txt", make_documents(40))
    build(make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}]), say=lines.append)
    assert re.match(r"1 split, \d\S* kB of input, 1 worker$", lines[0])
    assert "read 40 documents" in lines[-2]
    assert "report.html" in lines[-1]
    again: list[str] = []
    build(make_config(tmp_path, sources=[{"kind": "text", "path": str(path)}]), say=again.append)
    assert again == [f"{tmp_path}/out: already complete, nothing to do"]
    assert build_text(tmp_path / "b", make_documents(3)).num_rows("train") > 0
