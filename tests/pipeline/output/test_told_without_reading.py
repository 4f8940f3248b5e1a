"""What a build says of rules that tell next sentences without reading: report, warnings, and when it fails."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora import make_config, make_documents, read_rows, write_text
from pipeline.build.recipe import build
from pipeline.config import PipelineConfig
from pipeline.output.shortcuts import check_shortcuts, list_shortcut_warnings, measure_shortcuts
from pipeline.tally import BuildResult, RowTally, results_from_tree, results_to_tree

SETTINGS: dict[str, Any] = {"max_seq_length": 32, "passes": 4, "masks_per_pair": 1}


def two_sources(folder: Path) -> list[dict[str, Any]]:
    """Many short documents in one language, a few long ones in another."""
    short, long = folder / "short.txt", folder / "long.txt"
    write_text(short, make_documents(300, sentences=(2, 5)))
    write_text(long, make_documents(6, seed=1, sentences=(150, 250)))
    return [
        {"kind": "text", "path": str(short), "language": "en"},
        {"kind": "text", "path": str(long), "language": "de"},
    ]


def config_of(**settings: Any) -> PipelineConfig:
    return make_config(Path("/tmp"), sources=[{"kind": "text", "path": "x"}], vocabulary={}, **settings)


def counted(right: int, wrong: int) -> BuildResult:
    """A result whose rows of short length follow in `right` of right + wrong cases, those of long length alike not."""
    tally = RowTally(np.zeros(33, np.int64), np.zeros(9, np.int64))
    for half in (0, 1):
        cells = {0: (right, wrong), 4: (wrong, right)}
        found = {code + 2 * half + label: counts[label] for code, counts in cells.items() for label in (0, 1)}
        tally.add_shortcuts({"total": Counter(found)})
    return BuildResult([], {"train": tally})


def test_sources_and_lengths_tell_nothing_of_a_built_set(tmp_path: Path) -> None:
    said: list[str] = []
    manifest = build(make_config(tmp_path, sources=two_sources(tmp_path), **SETTINGS), say=said.append)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    shown = {rule["rule"]: rule for rule in report["next_sentence"]["shortcuts"]["rules"]}
    assert list(shown) == ["source", "language", "total", "second", "both", "place", "words"]
    assert all(rule["accuracy"] < 0.53 for rule in shown.values()), shown
    assert [name for name, rule in shown.items() if not rule["judged"]] == ["words"]
    assert manifest.statistics["shortcuts"] == {
        rule["rule"]: rule["accuracy"] for rule in shown.values() if rule["judged"]
    }
    assert manifest.best_shortcut == max(rule["accuracy"] for rule in shown.values() if rule["judged"])
    assert "Told without reading" in (tmp_path / "out" / "report.html").read_text()
    assert not any("without reading" in line for line in said)
    table = read_rows(tmp_path / "out", manifest)
    of = dict(zip(table["document_id"].to_pylist(), table["source"].to_pylist(), strict=True))
    second = [of[name] for name in table["second_document_id"].drop_null().to_pylist()]
    first = table.filter(table["second_document_id"].is_valid())["source"].to_pylist()
    assert second == first
    assert set(first) == {0, 1}


def test_published_pairs_keep_their_shortcuts_and_show_them(tmp_path: Path) -> None:
    said: list[str] = []
    build(make_config(tmp_path, sources=two_sources(tmp_path), **SETTINGS, mode="reference"), say=said.append)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    shown = {rule["rule"]: rule for rule in report["next_sentence"]["shortcuts"]["rules"]}
    assert shown["source"]["accuracy"] > 0.65
    assert not any(rule["judged"] for rule in shown.values())
    assert not any("without reading" in line for line in said)


def test_a_document_alone_in_its_source_is_counted_and_warned_of(tmp_path: Path) -> None:
    sources = two_sources(tmp_path)
    write_text(tmp_path / "long.txt", make_documents(1, seed=1, sentences=(150, 250)))
    said: list[str] = []
    manifest = build(make_config(tmp_path, sources=sources, **SETTINGS), say=said.append)
    count = manifest.statistics["notes"]["row_without_label_alone_in_source"]
    table = read_rows(tmp_path / "out", manifest)
    assert count == table["next_sentence_label"].null_count > 100
    (warning,) = [line for line in said if "no next-sentence label" in line]
    assert f"{count:,} of {len(table):,} rows" in warning
    assert "text-de" in warning
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["next_sentence"]["shortcuts"]["without_label"]["row_without_label_alone_in_source"] == count


def test_a_build_warns_of_a_rule_that_tells_and_fails_for_one_that_tells_much() -> None:
    config = config_of()
    (fair,) = measure_shortcuts(counted(540, 460), config=config)
    assert (fair.rule, fair.accuracy, fair.rows) == ("total", 0.54, 4_000)
    assert list_shortcut_warnings(counted(540, 460), config=config) == []
    check_shortcuts(counted(640, 360), config=config)
    (warning,) = list_shortcut_warnings(counted(640, 360), config=config)
    assert "tokens in the row, by source 64.0% (55% or less is usual)" in warning
    with pytest.raises(ValueError, match=r"by tokens in the row, by source 66\.0% \(at most 65% may be\)"):
        check_shortcuts(counted(660, 340), config=config)
    check_shortcuts(counted(60, 30), config=config)  # too few rows to tell
    for settings in ({"mode": "reference", "masks_per_pair": 1}, {"next_sentence": "sentence_order"}):
        check_shortcuts(counted(660, 340), config=config_of(**settings))
        assert list_shortcut_warnings(counted(660, 340), config=config_of(**settings)) == []


def test_counts_of_rules_are_the_same_after_a_restart() -> None:
    result = counted(3, 2)
    result.tallies["train"].text_at = result.tallies["train"].masked_at = np.zeros(32, np.int64)
    again = results_from_tree(results_to_tree(result), folder="x")
    assert again.tallies["train"].shortcuts == result.tallies["train"].shortcuts


def test_a_name_for_two_languages_is_refused() -> None:
    sources = [{"kind": "text", "path": "x", "name": "all", "language": code} for code in ("en", "ko")]
    with pytest.raises(ValueError, match="two sources are called all but have languages en and ko"):
        make_config(Path("/tmp"), sources=sources, vocabulary={})
