"""The benches of size: a simulated cluster, the choice among near duplicates, and the audit of many shards."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from bench import audit, cluster, cluster_workers, matches, step_results
from bench.repeats import Texts
from corpora import SYLLABLES, make_documents, write_vocabulary
from pipeline.build import graph
from pipeline.config import PipelineConfig
from pipeline.documents import Split
from pipeline.engines import dask_runner
from pipeline.runtime import BuildContext
from pipeline.settings import validate
from pipeline.shuffle import Buckets, divide_buckets
from pipeline.tally import results_to_tree


def make_texts(articles: int) -> Texts:
    texts = [". ".join(document) + "." for document in make_documents(articles, sentences=(6, 14))]
    return Texts((), tuple((f"{SYLLABLES[number % 70]} {number}", text) for number, text in enumerate(texts)), "en")


def small_config(folder: Path) -> PipelineConfig:
    tree = {
        "sources": [{"kind": "wikipedia", "path": "unused"}],
        "vocabulary": {"path": str(write_vocabulary(folder / "vocab.txt"))},
        "output": "unused",
        "max_seq_length": 64,
    }
    return validate(PipelineConfig, tree, origin="test")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> step_results.StepResults:
    monkeypatch.setattr(step_results, "TEXT_BYTES_PER_BUCKET", 100_000)
    return step_results.make_results(
        make_texts(40),
        config=small_config(tmp_path),
        buckets=Buckets(1_100, 0, 0.0),
        split_bytes=200_000,
        num_splits=50,
        folder=tmp_path / "steps",
    )


def test_the_results_of_steps_are_those_of_real_text(results: step_results.StepResults) -> None:
    assert results.split.tally.characters.total() == pytest.approx(200_000, rel=0.05)
    (shard,) = results.shard.shards
    assert results.count.documents > 100
    assert shard.rows == results.shard.tallies["train"].rows > 500
    assert results.joined is not None
    rows, joins = divide_buckets(Buckets(1_100, 0, 0.0))
    assert results.split.spills[0].buckets == rows
    assert results.joined.buckets == joins[0].buckets
    assert len(results.extents) * 4 == results.joined.table.columns
    assert results.sizes()["shard"] == len(pickle.dumps(results.shard)) > 8000


def test_stubs_return_the_real_results_under_new_names(
    results: step_results.StepResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("spill_split", "join_spills", "find_extents", "count_bucket", "write_shard", "WordTokenizer")
    monkeypatch.setattr(dask_runner, "describe_code", dask_runner.describe_code)
    for name in (*names, "split_key", "refuse_empty_source", "_report_work"):
        monkeypatch.setattr(graph, name, getattr(graph, name))
    cluster_workers.leave_out_work(pickle.dumps(results))
    context = BuildContext(
        small_config(tmp_path), Buckets(1_100, 0, 0.0), "", vocabulary_size=0, work="", build="", inputs={}
    )
    splits = [Split(0, f"/corpus/{number}.jsonl", 0, -1, 1, 1) for number in range(64)]
    read = [graph.spill_split(split, context=context, tokenizer=None, report=None) for split in splits]
    assert all(result.tally == results.split.tally for result in read)
    files = [file for result in read for file in result.spills]
    assert len({file.name for file in files}) == len({file.key for file in files}) == 64
    _, joins = divide_buckets(context.buckets)
    joined = [graph.join_spills(join, files=files, folder="", buckets=context.buckets, id_type=None) for join in joins]
    found = Counter(
        extent.path for bucket in (0, 1_099) for extent in graph.find_extents(joined, folder="f", bucket=bucket)
    )
    assert len(found) == 2 * joins[0].parts
    assert set(found.values()) == {len(results.extents)}
    shard = graph.write_shard((), context=context, tokenizer=None, split="train", name="a", near={}, report=None)
    assert shard.shards[0].path == "a"
    assert results_to_tree(shard)["rows"] == results_to_tree(results.shard)["rows"]


def test_a_cluster_is_simulated_to_the_end(
    results: step_results.StepResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.pickle"
    path.write_bytes(pickle.dumps(results))
    monkeypatch.setattr(cluster, "choose_config", lambda: small_config(tmp_path))
    (tmp_path / "run").mkdir()
    found = cluster.simulate(
        tmp_path / "run", workers=4, present=2, splits=64, text_bytes=1_100 * 64_000_000, hosts=1, results=path
    )
    assert (found.buckets, found.splits, found.present) == (1_100, 64, 2)
    assert found.tasks > 3 * 32
    assert "1,100 buckets" in cluster.format_found(found)[0]


def test_the_choice_is_measured_on_about_so_many_matches(tmp_path: Path) -> None:
    found = matches.measure_choice(20_000, folder=tmp_path, buckets=Buckets(40, 0, 0.0))
    assert found.matches == pytest.approx(20_000, rel=0.05)
    assert found.documents == 7_999
    assert 0 < found.dropped < found.documents
    assert found.cpu_s > 0
    assert found.peak_bytes > 20 << 20


def test_a_set_of_many_shards_is_audited_with_few_files(tmp_path: Path) -> None:
    found = audit.measure_audit(60, workers=2, folder=tmp_path)
    assert found.shards == pytest.approx(60, abs=3)
    assert 0 < found.most_files <= 3 * 2 * 2
