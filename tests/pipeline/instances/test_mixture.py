"""sources[].weight: exact numbers of passes by hash, drops counted, the same bytes for any number of workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from corpora import make_config, make_documents, read_rows, write_text
from pipeline.build.recipe import build
from pipeline.dataset.manifest import Manifest
from pipeline.instances.mixture import passes_of
from pipeline.settings import ConfigError

IDS = [number.to_bytes(16, "little") for number in range(20_000)]


@pytest.mark.parametrize(
    ("weight", "passes", "counts"),
    [
        (1.0, 3, {3: 1.0}),
        (2.5, 1, {2: 0.5, 3: 0.5}),
        (2.5, 2, {5: 1.0}),
        (0.25, 1, {0: 0.75, 1: 0.25}),
        (0.25, 8, {2: 1.0}),
    ],
)
def test_passes_are_the_product_and_its_rest_by_hash(weight: float, passes: int, counts: dict[int, float]) -> None:
    found = Counter(passes_of(name, weight=weight, passes=passes, seed=1) for name in IDS)
    assert found.keys() == counts.keys()
    for number, share in counts.items():
        assert found[number] / len(IDS) == pytest.approx(share, abs=0.015)  # 4 standard deviations


def test_a_greater_weight_keeps_what_a_smaller_one_kept() -> None:
    """So a text that stands in two sources is kept by the heavier one wherever the lighter one keeps it."""
    for name in IDS[:500]:
        numbers = [passes_of(name, weight=weight, passes=1, seed=1) for weight in (0.1, 0.4, 0.9, 1.0, 1.7, 2.0)]
        assert numbers == sorted(numbers)
    assert {
        passes_of(name, weight=0.5, passes=1, seed=1) == passes_of(name, weight=0.5, passes=1, seed=2)
        for name in IDS[:50]
    } == {
        True,
        False,
    }


def build_mixture(folder: Path, *, workers: int = 1, turn: bool = False, **weights: float) -> Manifest:
    documents = {"a": make_documents(30, seed=1), "b": make_documents(40, seed=2)}
    documents["b"] += documents["a"][:5]
    sources: list[dict[str, Any]] = []
    for name, weight in weights.items():
        path = write_text(folder / name / "x.txt", documents[name])
        sources.append({"kind": "text", "path": str(path), "name": name, "weight": weight})
    config = make_config(
        folder, sources=sources[::-1] if turn else sources, shards=2, validation_fraction=0.15, workers=workers
    )
    return build(config, say=lambda line: None)


def test_a_mixture_by_document(tmp_path: Path) -> None:
    """Training documents have exactly the passes of their weight, held-out ones one; duplicates go to the heavier."""
    manifest = build_mixture(tmp_path, a=2.5, b=0.5)
    assert manifest.sources == ("a", "b")
    rows = read_rows(tmp_path / "out", manifest).to_pylist()
    passes: dict[bytes, set[int]] = {}
    for row in rows:
        passes.setdefault(row["document_id"], set()).add(row["pass_number"])
    source = {row["document_id"]: row["source"] for row in rows}
    held_out = {row["document_id"] for row in rows[manifest.num_rows("train") :]}
    for name, found in passes.items():
        expected = passes_of(name, weight=(2.5, 0.5)[source[name]], passes=1, seed=12_345)
        assert found == set(range(1 if name in held_out else expected))
    assert len(held_out) >= 2
    assert Counter(source.values())[0] == 30, "the five duplicates belong to the heavier source"
    first, second = manifest.statistics["sources"]
    assert (first["name"], first["weight"], first["documents"], first["dropped_by_weight"]) == ("a", 2.5, 30, 0)
    assert second["documents"] + second["dropped_by_weight"] == 45
    assert manifest.drops["weight"] == second["dropped_by_weight"] > 10
    assert first["rows"] + second["rows"] == manifest.num_rows("train")
    train = rows[: manifest.num_rows("train")]
    assert first["rows"] == sum(row["source"] == 0 for row in train)
    assert first["tokens"] == sum(row["num_tokens"] for row in train if row["source"] == 0)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| a | text | en | 2.5 | 30 |" in card
    assert "mean number of passes" in card
    read = json.loads((tmp_path / "out" / "report.json").read_text())["sources"]
    assert "duplicate" not in read[0]["drops"], "what the heavier source keeps was not left out of it"
    assert read[1]["drops"]["duplicate"] == manifest.drops["duplicate"] > 0
    assert f"{second['dropped_by_weight']} weight" in (tmp_path / "out" / "report.html").read_text()


def test_any_number_of_workers_and_any_order_give_the_same_set(tmp_path: Path) -> None:
    one = build_mixture(tmp_path / "1", a=1.5, b=0.5)
    two = build_mixture(tmp_path / "2", workers=2, turn=True, a=1.5, b=0.5)
    assert [shard.sha256 for shard in one.shards] == [shard.sha256 for shard in two.shards]
    assert one.hash == two.hash


def test_a_source_that_its_weight_empties_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no document in this source .*dropped: 45 weight"):
        build_mixture(tmp_path, a=1.0, b=1e-9)


@pytest.mark.parametrize(
    ("sources", "settings", "message"),
    [
        ([{}, {"weight": 2}], {}, "two sources are called text-en but have weights 1 and 2; give one of them a name"),
        (
            [{"weight": 0.5}],
            {"mode": "reference", "masks_per_pair": 1},
            "mode: reference reads .* weight=0.5; remove it",
        ),
        ([{"weight": 900}], {"passes": 100}, r"weight=900 times passes=100 exceeds 65,534"),
        ([{"weight": 0}], {}, "weight"),
        ([{"name": "a b"}], {}, "name"),
    ],
)
def test_weights_that_make_no_sense_are_refused(
    tmp_path: Path, sources: list[dict[str, Any]], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, sources=[{"kind": "text", "path": "x", **source} for source in sources], **settings)


def test_sources_in_three_languages_make_one_set(tmp_path: Path) -> None:
    """Each keeps its name, is trained on and held out."""
    documents = make_documents(90)
    sources = []
    for number, language in enumerate(("en", "es", "fr")):
        path = tmp_path / f"{language}.jsonl"
        texts = [" ".join(document) for document in documents[number::3]]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        sources.append({"kind": "jsonl", "path": str(path), "language": language})
    manifest = build(make_config(tmp_path, sources=sources, validation_fraction=0.3), say=lambda line: None)
    assert manifest.sources == ("jsonl-en", "jsonl-es", "jsonl-fr")
    rows = read_rows(tmp_path / "out", manifest)["source"].to_pylist()
    first = manifest.num_rows("train")
    assert set(rows[:first]) == set(rows[first:]) == {0, 1, 2}
