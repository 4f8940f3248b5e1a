"""Words counted by Beam: exact in any memory, the same file for any workers and attempts, nothing left behind."""

from __future__ import annotations

import bz2
import fcntl
import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from corpora import make_config, make_documents, write_text
from pipeline.config.schema import PipelineConfig
from pipeline.documents import Split
from pipeline.runtime import scratch
from pipeline.runtime.scratch import scratch_folder
from pipeline.sources.splits import list_splits
from pipeline.tokenizer.files import word_rules
from pipeline.vocabulary import graph, train, word_counts
from pipeline.vocabulary.__main__ import main
from pipeline.vocabulary.graph import WORDS_NAME, WordContext
from pipeline.vocabulary.train import count_sources, train_vocabulary
from pipeline.vocabulary.word_counts import (
    Run,
    WordCounter,
    join_most_common,
    most_common,
    read_words,
    write_most_common,
)


@pytest.fixture(autouse=True)
def as_many_workers_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_BYTES_WORTH_A_WORKER", 1)
    monkeypatch.setattr(graph, "GROUP_BYTES", 1)


def write_corpus(folder: Path, *, files: int = 5) -> list[Path]:
    return [write_text(folder / f"{number}.txt", make_documents(30, seed=number)) for number in range(files)]


def config_of(folder: Path, paths: list[Path], **settings: object) -> PipelineConfig:
    source = {"kind": "text", "path": [str(path) for path in paths]}
    return make_config(folder, sources=[source], **settings)


def count(config: PipelineConfig, *, folder: Path) -> dict[str, int]:
    return count_sources(config, splits=list_splits(config.sources), folder=str(folder))


def expected_counts(paths: list[Path]) -> Counter[str]:
    return Counter(word for path in paths for word in path.read_text(encoding="ascii").split())


def small_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "WordCounter", partial(WordCounter, max_entries=40))


def test_counts_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in bounded memory, from many small runs (tokenizers#499)."""
    paths = write_corpus(tmp_path / "text")
    small_counters(monkeypatch)
    monkeypatch.setattr(word_counts, "_MAX_OPEN_RUNS", 3)
    (tmp_path / "scratch").mkdir()
    counts = count(config_of(tmp_path, paths), folder=tmp_path / "scratch")
    expected = expected_counts(paths)
    assert counts == expected
    assert list(counts) == sorted(expected, key=lambda word: (-expected[word], word))
    assert len(list((tmp_path / "scratch").glob("0.txt-*.tsv"))) > 3, "one run only"
    assert not list((tmp_path / "scratch").glob("merged-*.tsv"))


def test_the_file_is_the_same_for_any_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in parallel (tokenizers#499), and the same bytes every time (tokenizers#1794), in any order of the files
    and with attempts whose results nobody asks for (every bundle twice)."""
    paths = write_corpus(tmp_path / "text")
    (tmp_path / "out").mkdir()
    written = []
    for workers, order, options in (
        (1, 1, []),
        (1, -1, ["--direct_runner_bundle_repeat=1"]),
        (2, -1, []),
        (4, 1, []),
    ):
        config = config_of(tmp_path, paths[::order], workers=workers, vocabulary={"path": "x", "size": 300})
        path = tmp_path / "out" / "vocab.txt"
        train_vocabulary(config, splits=list_splits(config.sources), path=path, beam_options=options)
        written.append(path.read_bytes())
        assert [entry.name for entry in path.parent.iterdir()] == ["vocab.txt"], "something is left behind"
    assert written[0].count(b"\n") == 300
    assert written == written[:1] * 4


def test_small_splits_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = [Split(0, f"{size}", 0, -1, size, size) for size in (9, 6, 5, 4, 3, 2, 1)]
    monkeypatch.setattr(graph, "GROUP_BYTES", 7)
    groups = graph.group_splits(splits)
    assert [[split.text_bytes for split in group] for group in groups] == [[9], [6, 5], [4, 3], [2, 1]]
    assert graph.group_splits([]) == []


def test_only_the_most_frequent_words_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_corpus(tmp_path / "text")
    monkeypatch.setattr(train, "MAX_WORDS", 7)
    counts = count(config_of(tmp_path, paths), folder=tmp_path)
    expected = expected_counts(paths)
    assert list(counts) == sorted(expected, key=lambda word: (-expected[word], word))[:7]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_is_one_line_with_file_and_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    text = write_corpus(tmp_path / "text", files=1)[0]
    whole = bz2.compress(os.urandom(5_000).hex().encode() * 20)
    cut = tmp_path / "cut.xml.bz2"
    cut.write_bytes(whole[: len(whole) // 2])
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: {text}}}, {{kind: wikipedia, path: {cut}}}]\noutput: x\n"
        f"vocabulary: {{path: {tmp_path}/new/vocab.txt}}\n"
    )
    assert main(["--config", str(tmp_path / "c.yaml"), f"workers={workers}"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if " s: read " not in line]
    assert line.startswith(f"error: {cut}: ")
    assert not list((tmp_path / "new").iterdir())


def test_beam_options_pass_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = write_corpus(tmp_path / "text", files=1)[0]
    (tmp_path / "c.yaml").write_text(
        f"sources: [{{kind: text, path: {text}}}]\noutput: x\nvocabulary: {{path: {tmp_path}/v.txt, size: 200}}\n"
    )
    words = ["--config", str(tmp_path / "c.yaml"), "--"]
    assert main([*words, "--runner=NoSuchRunner", "--job_nam=x"]) == 2
    assert "NoSuchRunner" in capsys.readouterr().err
    assert "does not know the option --job_nam; did you mean --job_name?" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "text"]
    runner = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    assert main([*words, "--runner", runner]) == 0
    assert (tmp_path / "v.txt").read_text().count("\n") == 200


# Files


def counter_in(folder: Path, **settings: int) -> WordCounter:
    normalizer, splitter = word_rules(make_config(folder, sources=[{"kind": "text", "path": "x"}]).vocabulary)
    return WordCounter(normalizer=normalizer, splitter=splitter, folder=folder / "runs", name="w", **settings)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    (tmp_path / "runs").mkdir()
    with counter_in(tmp_path) as counter:
        counter.add(["b a \u00e9 b", "\U0001f600 \uffee a b"])
        return counter.finish()


def test_a_failed_attempt_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()

    def fail_in_the_midst() -> None:
        with counter_in(tmp_path, max_entries=2) as counter:
            for number in range(9):
                counter.add([f"w{number} x{number}"])
            assert list((tmp_path / "runs").iterdir())
            raise ValueError("in the midst")

    with pytest.raises(ValueError, match="in the midst"):
        fail_in_the_midst()
    assert not list((tmp_path / "runs").iterdir())


def test_a_failed_merge_leaves_no_file(tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that ends after files of its own."""
    kept = set((tmp_path / "runs").iterdir())
    broken = runs[0]._replace(stop=10**6)
    with pytest.raises(ValueError, match=rf"{broken.path}: the file ends before byte 1000000; run the command again"):
        join_most_common(
            [str(write_most_common([broken], folder=tmp_path / "runs", limit=9))], folder=tmp_path, limit=9
        )
    monkeypatch.setattr(word_counts, "_MAX_OPEN_RUNS", 2)
    with pytest.raises(ValueError, match="ends before byte"):
        most_common([*runs, *runs, broken], folder=tmp_path / "runs", limit=9)
    assert set((tmp_path / "runs").iterdir()) == kept


def test_files_are_ordered_by_count_then_code_point(tmp_path: Path, runs: list[Run]) -> None:
    """Not by UTF-16, in which U+1F600 comes before U+FFEE."""
    ordered = {"b": 3, "a": 2, "e": 1, "\uffee": 1, "\U0001f600": 1}
    found = most_common(runs, folder=tmp_path, limit=9)
    assert list(found.items()) == list(ordered.items())
    half = len(runs) // 2
    parts = [str(write_most_common(part, folder=tmp_path, limit=9)) for part in (runs[:half], runs[half:])]
    assert list(read_words(join_most_common(parts, folder=tmp_path, limit=4)).items()) == list(ordered.items())[:4]


def test_no_words_are_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "blank.txt"
    path.write_text("\u200b\n", encoding="utf-8")
    assert count(config_of(tmp_path, [path]), folder=tmp_path) == {}
    assert (tmp_path / WORDS_NAME).read_bytes() == b""


def test_what_the_filters_leave_out_is_not_counted(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", [["rare word"], ["many other words stand here"]])
    config = config_of(tmp_path, [path], cleaning={"min_words": 3})
    splits = list_splits(config.sources)
    runs = graph.count_splits(splits, context=WordContext(config=config, folder=str(tmp_path), limit=9))
    assert set(most_common(runs, folder=tmp_path, limit=9)) == {"many", "other", "words", "stand", "here"}


# Scratch folders


def test_scratch_of_ended_processes_is_swept_and_that_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".words-left"
    left.mkdir()
    (left / "run.tsv").write_text("a\t1\n")
    (tmp_path / ".words-file").write_text("no folder")
    (tmp_path / ".words-link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    with scratch_folder(tmp_path, prefix=".words-") as first:
        (Path(first) / "x").write_text("x")
        assert not left.exists()
        with scratch_folder(tmp_path, prefix=".words-") as second:
            assert first != second
            assert (Path(first) / "x").exists()
    assert {path.name for path in tmp_path.iterdir()} == {".words-file", ".words-link", "elsewhere"}

    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    left.mkdir()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with scratch_folder(tmp_path, prefix=".words-"):
        assert left.exists()


def test_a_folder_swept_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, swept = fcntl.flock, []

    def sweep_first(lock: int, operation: int) -> None:
        if not swept:
            swept.append(next(tmp_path.glob(".words-*")))
            swept[0].rmdir()
        flock(lock, operation)

    monkeypatch.setattr(scratch.fcntl, "flock", sweep_first)
    with scratch_folder(tmp_path, prefix=".words-") as folder:
        assert Path(folder).exists()
        assert Path(folder) != swept[0]
