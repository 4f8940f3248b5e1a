"""Every check of the auditor fires on a planted fault and names its place; what a build makes is clean.

Each check was also seen silent on its planted fault once, with its comparison taken out.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit_sets import FIRST_WORD, change, faults, first, notes, shard_name
from corpora import build_text, make_documents
from pipeline.audit.__main__ import main
from pipeline.audit.findings import CHECKS, Findings, Place
from pipeline.audit.run import audit
from pipeline.dataset.manifest import file_sha256, read_manifest, write_manifest
from pipeline.dataset.schema import METADATA_SCHEMA_VERSION, METADATA_VOCABULARY_HASH
from pipeline.tokenizer.tokenizer import WordTokenizer
from planting import Rows, copy_set, edit_rows, mend

# Clean sets


def test_a_build_is_clean_and_everything_was_looked_at(clean_set: Path) -> None:
    found = audit(clean_set, workers=1)
    assert faults(found) == {}
    assert {name for name, finding in found.findings.by_check.items() if not finding.looked_at} == set()
    manifest = read_manifest(clean_set)
    assert (found.rows, found.shards) == (sum(shard.rows for shard in manifest.shards), 4)
    assert found.findings.by_check["identical rows"].looked_at == found.rows
    assert found.findings.by_check["documents"].looked_at == 200
    masked = sum(shard.masked for shard in manifest.shards)
    assert found.findings.by_check["80/10/10"].looked_at == masked


@pytest.mark.parametrize(
    ("next_sentence", "masking"),
    [*itertools.product(["sentence_order", "none"], ["whole_word", "token", "span"]), ("random_document", "span")],
)
def test_all_alternatives_are_clean(tmp_path: Path, next_sentence: str, masking: str) -> None:
    documents = make_documents(120)
    build_text(tmp_path, documents, next_sentence=next_sentence, masking=masking, passes=2, shards=2)
    assert faults(audit(tmp_path / "out", workers=1)) == {}


def test_a_token_masked_build_drawn_by_piece_is_clean(tmp_path: Path) -> None:
    settings = {"masking": "token", "replacement_draw": "piece", "max_seq_length": 32, "masks_per_pair": 3}
    build_text(tmp_path, make_documents(120), **settings)
    assert faults(audit(tmp_path / "out", workers=1)) == {}


@pytest.mark.parametrize("masking", ["whole_word", "token"])
def test_published_quirks_are_notes(tmp_path: Path, masking: str) -> None:
    """mode: reference: labels above one half random, [UNK] as target, special tokens as replacement."""
    documents = make_documents(300)
    documents = [[sentence + " qu" for sentence in document] for document in documents]  # qu is [UNK]
    build_text(tmp_path, documents, mode="reference", masks_per_pair=1, passes=2, masking=masking)
    found = audit(tmp_path / "out", workers=1)
    assert faults(found) == {}
    assert {"label balance", "special targets", "special replacements"} <= notes(found).keys()
    assert main([str(tmp_path / "out"), "--workers", "1"]) == 0
    assert main([str(tmp_path / "out"), "--workers", "1", "--strict"]) == 1
    copied = copy_set(tmp_path / "out", tmp_path / "strict")
    mend(copied, config=read_manifest(copied).config | {"mode": "strict", "replacement_draw": "piece"})
    assert notes(found).keys() - {"shortcuts"} <= faults(audit(copied, workers=1)).keys()


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "byte_level_bpe"])
def test_words_are_known_for_every_kind_of_vocabulary(tmp_path: Path, algorithm: str) -> None:
    """Word boundaries by the pieces' marks, or by the tokenizer (transformers#11768)."""
    build_text(tmp_path, make_documents(80), vocabulary={"size": 420, "algorithm": algorithm}, masks_per_pair=3)
    copied = tmp_path / "out"
    found = audit(copied, workers=1)
    assert faults(found) == {}
    assert found.findings.by_check["whole words"].looked_at == 3 * (
        200 if algorithm == "byte_level_bpe" else found.rows
    )

    def cut(rows: Rows) -> None:
        for row in rows:
            for positions, inputs in zip(row["masked_positions"], row["masked_inputs"], strict=True):
                if len(positions) > 1 and positions[-1] == positions[-2] + 1:
                    del positions[-1], inputs[-1]

    edit_rows(copied, cut)
    assert "whole words" in faults(audit(copied, workers=1))


def test_processes_find_the_same(clean_set: Path) -> None:
    assert audit(clean_set, workers=2) == audit(clean_set, workers=1)


def test_an_unknown_column_is_a_fault(copied: Path) -> None:
    path = copied / shard_name(copied, 0)
    table = pq.read_table(path)
    table = table.append_column("stranger", pa.array([0] * table.num_rows, pa.uint16()))
    pq.write_table(table, path, write_page_checksum=True)
    mend(copied)
    found = audit(copied, workers=1)
    assert faults(found) == {"schema": 1}
    assert first(found, "schema") == (Place(shard_name(copied, 0)), "unknown column stranger")


# Files


def test_changed_missing_and_unlisted_files(copied: Path) -> None:
    (copied / "data" / "train-00099-of-00100.parquet").write_bytes((copied / shard_name(copied, 0)).read_bytes())
    (copied / "tokenizer" / "tokenizer_config.json").write_text("{}")
    (copied / shard_name(copied, 1)).unlink()
    (copied / "token_counts.parquet").unlink()
    found = audit(copied, workers=1)
    assert faults(found)["unlisted files"] == 1
    assert first(found, "unlisted files")[0] == Place("data/train-00099-of-00100.parquet")
    assert faults(found)["files"] == 3
    assert first(found, "files")[0] == Place(shard_name(copied, 1))


def test_a_flipped_bit_is_found_by_hash_and_page_checksum(copied: Path) -> None:
    """A flipped bit in Parquet reads as wrong data without an error (arrow#37242)."""
    path = copied / shard_name(copied, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    found = audit(copied, workers=1)
    assert faults(found)["files"] == 1
    assert faults(found)["pages"] == 1
    assert first(found, "pages")[0] == Place(shard_name(copied, 2), 0)
    edit_rows(copied, lambda rows: None, index=1)
    path.write_bytes(path.read_bytes()[:-50])
    assert first(audit(copied, workers=1), "pages")[0] == Place(shard_name(copied, 2))


def test_schema_version_columns_and_hash(copied: Path) -> None:
    def rewrite(index: int, change: Callable[[pa.Table], pa.Table]) -> None:
        path = copied / shard_name(copied, index)
        pq.write_table(change(pq.read_table(path)), path, write_page_checksum=True)
        mend(copied)

    def with_metadata(table: pa.Table, key: bytes) -> pa.Table:
        return table.replace_schema_metadata({**table.schema.metadata, key: b"9"})

    rewrite(0, lambda table: with_metadata(table, METADATA_SCHEMA_VERSION))
    rewrite(1, lambda table: with_metadata(table, METADATA_VOCABULARY_HASH))
    rewrite(2, lambda table: table.set_column(1, "num_tokens", table["num_tokens"].cast(pa.int32())))
    rewrite(3, lambda table: table.drop_columns(["pass_number"]))
    found = audit(copied, workers=1)
    assert faults(found)["schema"] == 4
    assert first(found, "schema") == (Place(shard_name(copied, 0)), "metadata cloze.schema_version is 9, not 2")


def test_an_absent_value_is_a_fault_of_the_schema(copied: Path) -> None:
    path = copied / shard_name(copied, 0)
    table = pq.read_table(path)
    values = table["document_id"].to_pylist()
    values[5] = None
    values[7] = b"short"
    column = pa.field("document_id", pa.binary())
    pq.write_table(table.set_column(6, column, pa.array(values, pa.binary())), path, write_page_checksum=True)
    mend(copied)
    found = audit(copied, workers=1)
    assert faults(found)["schema"] == 2
    assert first(found, "schema") == (Place(shard_name(copied, 0), 0, 5), "document_id is null")


def test_another_vocabulary(copied: Path) -> None:
    tokens = (copied / "tokenizer" / "vocab.txt").read_text().split()
    tokens[10], tokens[11] = tokens[11], tokens[10]
    (copied / "v.txt").write_text("\n".join(tokens))
    WordTokenizer.from_path(copied / "v.txt", lowercase=True).save(copied / "tokenizer", longest=64)
    (copied / "v.txt").unlink()
    found = audit(copied, workers=1)
    assert faults(found) == {"files": 2, "vocabulary": 1}
    assert "vocabulary hash" in first(found, "vocabulary")[1]
    (copied / "tokenizer" / "tokenizer.json").write_text("{")
    assert faults(audit(copied, workers=1))["vocabulary"] == 1


def test_counts_of_the_manifest(copied: Path) -> None:
    manifest = read_manifest(copied)
    wrong = manifest.shards[1].model_copy(update={"rows": 7, "tokens": 8, "masked": 9, "max_masked": 1})
    wrong = wrong.model_copy(update={"row_group_rows": (7,), "row_group_tokens": (8,)})
    shards = (manifest.shards[0], wrong, *manifest.shards[2:])
    statistics = {"splits": {"train": {"not_next_rate": 0.25}}}
    from pipeline.dataset.manifest import write_manifest

    write_manifest(copied, manifest.model_copy(update={"shards": shards, "statistics": statistics}), run={})
    found = audit(copied, workers=1)
    assert faults(found) == {"counts": 7}
    assert first(found, "counts")[0] == Place(shard_name(copied, 1))


def test_token_counts_are_those_of_the_rows(copied: Path) -> None:
    def swap(rows: Rows) -> None:
        place = rows[3]["input_ids"].index(next(token for token in rows[3]["input_ids"] if token >= FIRST_WORD))
        rows[3]["input_ids"][place] += 1

    manifest = read_manifest(copied)
    edit_rows(copied, swap)
    counts = pq.read_table(copied / "token_counts.parquet").to_pydict()
    counts["count"][70] += 1
    path = copied / "token_counts.parquet"
    pq.write_table(pa.table(counts, schema=pq.read_schema(path)), path)
    changed = read_manifest(copied)
    files = {**changed.files, "token_counts.parquet": file_sha256(path)}
    write_manifest(copied, changed.model_copy(update={"files": files}), run={})
    found = audit(copied, workers=1)
    assert faults(found)["vocabulary"] == 1
    assert first(found, "vocabulary")[1].startswith("id 70:")
    assert manifest.files != files


def test_rows_of_no_source_and_of_passes_that_are_not_given(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        rows[2]["source"] = 3
        rows[5]["pass_number"] = 1

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found) == {"sources": 2}
    assert first(found, "sources") == (Place(shard_name(copied, 0), 0, 2), "source 3, the manifest has 1")
    edit_rows(copied, lambda rows: rows[2].update(source=0))
    assert first(audit(copied, workers=1), "sources")[1] == "pass 1 is more than source 0 has"


@pytest.mark.parametrize(
    ("part", "key", "text"),
    [
        ("train", "rows", r"train: rows \d+, counted \d+"),
        ("validation", "tokens", r"validation: tokens \d+, counted \d+"),
        ("sources", "rows", r"source \S+: rows \d+, counted \d+"),
        ("sources", "tokens", r"source \S+: tokens \d+, counted \d+"),
    ],
)
def test_numbers_of_the_manifest_are_counted_again(copied: Path, part: str, key: str, text: str) -> None:
    manifest = read_manifest(copied)
    statistics = json.loads(json.dumps(manifest.statistics))
    place = statistics["sources"][0] if part == "sources" else statistics["splits"][part]
    place[key] += 1
    write_manifest(copied, manifest.model_copy(update={"statistics": statistics}), run={})
    found = audit(copied, workers=1)
    assert faults(found) == {"counts": 1}
    assert re.fullmatch(text, first(found, "counts")[1])


# Command line


def test_table_json_and_exit_status(copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(copied), "--workers", "1"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("clean: 0 faults")
    for name in CHECKS:
        assert f"\n{name} " in text
    edit_rows(copied, change(8, num_tokens=1))
    assert main([str(copied), "--workers", "1"]) == 1
    text = capsys.readouterr().out
    assert f"first fault: {shard_name(copied, 0)}, row group 0, row 8: num_tokens is 1, input_ids has " in text
    assert text.splitlines()[-1].startswith("not clean: 1 fault,")
    assert main([str(copied), "--workers", "1", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["clean"], data["faults"]) == (False, 1)
    layout = next(entry for entry in data["checks"] if entry["check"] == "layout")
    assert layout["first_fault"]["row"] == 8
    assert [entry["check"] for entry in data["checks"]] == list(CHECKS)
    (tmp_path / "empty").mkdir()
    for folder, message in ((tmp_path / "none", "no such data set"), (tmp_path / "empty", "has no manifest.json")):
        assert main([str(folder)]) == 2
        assert message in capsys.readouterr().err
    manifest = copied / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": ', '"seed": 1'))
    assert main([str(copied)]) == 2
    assert "it was edited" in capsys.readouterr().err


def test_an_unfinished_build_cannot_be_read(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "manifest.json").unlink()
    assert main([str(copied)]) == 2
    assert "has no manifest.json, so it is not a (finished) data set" in capsys.readouterr().err


def test_ledgers_merge_in_any_order() -> None:
    parts = []
    for number in (3, 1, 2):
        part = Findings()
        part.looked("layout", 10)
        part.add("layout", Place("a", 0, number), f"fault {number}")
        part.add("layout", Place("a", 0, number + 5), "note", note=True)
        parts.append(part)
    forward, backward = Findings(), Findings()
    for part in parts:
        forward.merge(part)
    for part in reversed(parts):
        backward.merge(part)
    assert forward == backward
    finding = forward.by_check["layout"]
    assert (finding.looked_at, finding.faults, finding.notes) == (30, 3, 3)
    assert finding.first_fault == (Place("a", 0, 1), "fault 1")


def test_bounds_are_binomial(copied: Path) -> None:
    """The tolerance that the table states is five standard deviations of a fair coin."""
    found = audit(copied, workers=1)
    balance = found.findings.by_check["label balance"]
    assert 0 < balance.looked_at <= found.rows  # rows without a label do not count
    assert f"{50 - 500 * math.sqrt(0.25 / balance.looked_at):.2f} to " in balance.remark


def test_copies_do_not_touch_the_original(clean_set: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in clean_set.rglob("*") if path.is_file()}
    audit(clean_set, workers=1)
    assert {path: path.read_bytes() for path in clean_set.rglob("*") if path.is_file()} == before
    shutil.rmtree(tmp_path)
