"""Korean corpora of five kinds, built together with a vocabulary trained on them: cased, [UNK] below 0.1%."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench.korean_texts import read_korquad, read_nsmc, read_ud
from pipeline.build.recipe import build
from pipeline.config.schema import PipelineConfig
from pipeline.settings import validate


def write_records(path: Path, texts: Iterator[str]) -> dict[str, object]:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return {"kind": "jsonl", "path": str(path), "name": path.stem, "language": "ko"}


def test_korean_builds_with_a_trained_cased_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    korean = shared_data / "korean"
    sources = [
        write_records(tmp_path / "korquad.jsonl", read_korquad(korean / "korquad")),
        write_records(tmp_path / "nsmc.jsonl", islice(read_nsmc(korean / "nsmc"), 0, None, 3)),
        write_records(tmp_path / "ud.jsonl", read_ud(korean / "ud")),
        {"kind": "books", "path": str(korean / "konlpy-corpus"), "name": "law", "language": "ko"},
    ]
    tree = {
        "sources": sources,
        "vocabulary": {"path": str(tmp_path / "ko.txt"), "train": True, "size": 8_000, "lowercase": False},
        "output": str(tmp_path / "out"),
        "max_seq_length": 128,
        "validation_fraction": 0.05,
        "workers": 1,
    }
    manifest = build(validate(PipelineConfig, tree, origin="test"), say=lambda line: None)
    assert manifest.vocabulary_size == 8_000
    assert sorted(manifest.sources) == ["korquad", "law", "nsmc", "ud"]
    for split in ("train", "validation"):
        assert manifest.statistics["splits"][split]["unknown_rate"] < 0.001
    assert manifest.statistics["text"] == {
        "case": "kept",
        "accents": "kept",
        "hangul": "syllables",
        "joiners": "removed",
    }
    assert all(source["rows"] > 0 for source in manifest.statistics["sources"])
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "Cased: capital letters are kept, accents are kept, Hangul syllables are whole." in card
