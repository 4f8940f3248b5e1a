"""LDDL's Parquet: what its algorithm makes is clean but for notes, and planted faults are found.

The sets are written here, in LDDL's layout, from the published instances (pipeline.instances.reference).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import make_documents, write_text, write_vocabulary
from pipeline.audit.__main__ import main
from pipeline.audit.findings import Place
from pipeline.audit.lddl import choose_limit, unpack_positions
from pipeline.audit.run import Audit, audit
from pipeline.instances.reference import read_files, reference_lines
from pipeline.tokenizer.tokenizer import WordTokenizer

SCHEMA = pa.schema(
    [("A", pa.string()), ("B", pa.string()), ("is_random_next", pa.bool_()), ("num_tokens", pa.uint16())]
)
STATIC = SCHEMA.append(pa.field("masked_lm_positions", pa.binary())).append(pa.field("masked_lm_labels", pa.string()))
Rows = list[dict[str, Any]]


def pack(positions: list[int]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(positions, np.uint16))
    return stream.getvalue()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Some 1,200 statically masked pairs of at most 128 tokens."""
    folder = tmp_path_factory.mktemp("lddl")
    path = write_text(folder / "text.txt", make_documents(400, sentences=(10, 30)))
    tokenizer = WordTokenizer.from_path(write_vocabulary(folder / "vocab.txt"), lowercase=True)
    lines = reference_lines(
        read_files([str(path)], tokenizer=tokenizer),
        tokenizer=tokenizer,
        max_seq_length=128,
        max_predictions=1000,
        dupe_factor=1,
        seed=1,
        whole_word=False,
    )
    made: Rows = []
    for line in map(json.loads, lines):
        first, plain = line["segment_ids"].count(0), list(line["tokens"])
        for position, label in zip(line["masked_lm_positions"], line["masked_lm_labels"], strict=True):
            plain[position] = label
        made.append(
            {
                "A": " ".join(line["tokens"][1 : first - 1]),
                "B": " ".join(line["tokens"][first:-1]),
                "is_random_next": line["is_random_next"],
                "num_tokens": len(line["tokens"]),
                "masked_lm_positions": pack(line["masked_lm_positions"]),
                "masked_lm_labels": " ".join(line["masked_lm_labels"]),
                "plain": (" ".join(plain[1 : first - 1]), " ".join(plain[first:-1])),
            }
        )
    return made


def write_set(root: Path, rows: Rows, *, static: bool = True, shards: int = 3, suffix: str = "") -> Path:
    root.mkdir(parents=True, exist_ok=True)
    if not static:
        rows = [{**row, "A": row["plain"][0], "B": row["plain"][1]} for row in rows]
    for number in range(shards):
        table = pa.Table.from_pylist(rows[number::shards], schema=STATIC if static else SCHEMA)
        pq.write_table(table, root / f"shard-{number}.parquet{suffix}", row_group_size=200)
    counts = {path.name: pq.read_metadata(path).num_rows for path in root.glob("shard-*")}
    (root / ".num_samples.json").write_text(json.dumps(counts))
    return root


def faults(found: Audit) -> dict[str, int]:
    return {name: finding.faults for name, finding in found.findings.by_check.items() if finding.faults}


def planted(tmp_path: Path, rows: Rows, change: Callable[[Rows], None]) -> Audit:
    """The audit of shards 0 (changed), 1 and 2."""
    spoiled = [dict(row) for row in rows]
    change(spoiled)
    return audit(write_set(tmp_path / "set", spoiled), workers=1)


@pytest.mark.parametrize("static", [True, False])
def test_a_set_is_clean_but_for_notes(tmp_path: Path, rows: Rows, static: bool) -> None:
    root = write_set(tmp_path / "set", rows, static=static)
    found = audit(root, workers=1)
    assert faults(found) == {}
    assert (found.kind, found.rows, found.tokens) == ("lddl", len(rows), sum(row["num_tokens"] for row in rows))
    findings = found.findings.by_check
    assert findings["lengths"].remark == "taken as the limit: 128"
    assert findings["label balance"].notes == 1
    assert bool(findings["special replacements"].notes) == static
    assert bool(findings["80/10/10"].looked_at) == static
    assert findings["counts"].looked_at == 3
    assert "does not say which document" in findings["leakage"].remark
    assert main([str(root), "--workers", "1"]) == 0


def test_bins_and_unbalanced_files(tmp_path: Path, rows: Rows) -> None:
    short = [row for row in rows if row["num_tokens"] <= 64]
    long = [row for row in rows if row["num_tokens"] > 64]
    root = write_set(tmp_path / "set", short, suffix="_0")
    write_set(root, long, suffix="_1")
    found = audit(root, workers=1)
    assert faults(found) == {}
    assert found.shards == 6
    for path in sorted(root.glob("shard-*")):
        path.rename(path.with_name(path.name.replace("shard-", "part.")))
    (root / ".num_samples.json").unlink()
    found = audit(root, workers=1)
    assert faults(found) == {}
    assert found.findings.by_check["even shards"].first_note == (
        Place("part.0.parquet_0"),
        "not balanced by LDDL's load balancer yet",
    )


def test_uneven_shards_and_wrong_counts(tmp_path: Path, rows: Rows) -> None:
    root = write_set(tmp_path / "set", rows)
    pq.write_table(pq.read_table(root / "shard-1.parquet").slice(5), root / "shard-1.parquet")
    found = audit(root, workers=1)
    assert faults(found) == {"even shards": 2, "counts": 1}
    assert found.findings.by_check["counts"].first_fault[0] == Place("shard-1.parquet")


def test_damaged_and_foreign_files(tmp_path: Path, rows: Rows) -> None:
    root = write_set(tmp_path / "set", rows)
    table = pq.read_table(root / "shard-2.parquet")
    pq.write_table(table.drop_columns(["masked_lm_labels"]), root / "shard-2.parquet")
    (root / "shard-3.parquet").write_bytes(b"PAR1 nothing PAR1")
    found = audit(root, workers=1)
    assert faults(found)["schema"] == 1
    assert faults(found)["pages"] == 1
    assert found.findings.by_check["pages"].first_fault[0] == Place("shard-3.parquet")


def test_rows(tmp_path: Path, rows: Rows) -> None:
    def plant(spoiled: Rows) -> None:
        spoiled[3 * 201]["num_tokens"] += 1
        spoiled[3 * 5].update(B="", num_tokens=len(spoiled[15]["A"].split()) + 3)
        spoiled[3 * 6]["B"] += " [SEP]"
        spoiled[3 * 6]["num_tokens"] += 1
        spoiled[3 * 7]["A"] = " ".join(["ba"] * 200)
        spoiled[3 * 7]["num_tokens"] = 203 + len(spoiled[21]["B"].split())

    found = planted(tmp_path, rows, plant)
    assert faults(found)["layout"] == 4  # in the long row a [MASK] is left that no position explains
    assert found.findings.by_check["layout"].first_fault[0] == Place("shard-0.parquet", 0, 5)
    assert faults(found)["lengths"] == 2


def test_masks(tmp_path: Path, rows: Rows) -> None:
    def plant(spoiled: Rows) -> None:
        spoiled[3 * 1]["masked_lm_labels"] = ""
        spoiled[3 * 2]["masked_lm_positions"] = b"\x80\x03pickle"
        first = unpack_positions(spoiled[3 * 3]["masked_lm_positions"]).tolist()
        spoiled[3 * 3]["masked_lm_positions"] = pack([first[1], first[0], *first[2:]])
        spoiled[3 * 4]["masked_lm_positions"] = pack([*range(len(first) - 1), 500])
        spoiled[3 * 4]["masked_lm_labels"] = " ".join(["ba"] * len(first))
        labels = spoiled[3 * 5]["masked_lm_labels"].split()
        spoiled[3 * 5]["masked_lm_labels"] = " ".join(["[PAD]", *labels[1:]])

    found = planted(tmp_path, rows, plant)
    assert faults(found)["mask sets"] == 2
    assert faults(found)["mask positions"] == 2
    assert "layout" in faults(found) or "special targets" in faults(found)
    assert found.findings.by_check["mask sets"].first_fault[0] == Place("shard-0.parquet", 0, 1)


def test_another_mask_rate(tmp_path: Path, rows: Rows) -> None:
    root = write_set(tmp_path / "set", rows)
    assert "mask rate" in faults(audit(root, workers=1, masked_probability=0.2))
    assert main([str(root), "--workers", "1", "--masked-probability", "0.2"]) == 1
    assert "lengths" in faults(audit(root, workers=1, max_seq_length=100))


def test_negatives_that_are_the_true_next(tmp_path: Path, rows: Rows) -> None:
    """One-document corpus: real next sentences labelled random (DeepLearningExamples#421), seen by two labels."""
    twice = next(
        number for number, row in enumerate(rows) if number and not row["is_random_next"] and row["num_tokens"] > 40
    )

    def plant(spoiled: Rows) -> None:
        spoiled[0] = {**spoiled[twice], "is_random_next": True}

    found = planted(tmp_path, rows, plant)
    assert found.findings.by_check["true next"].notes == 1
    assert faults(found) == {}


def test_identical_shards(tmp_path: Path, rows: Rows) -> None:
    """All shards identical (mlcommons/training_results_v2.1#10), with masks stored or not."""
    for static in (True, False):
        root = write_set(tmp_path / str(static), rows[::2], static=static, shards=1)
        (root / "shard-1.parquet").write_bytes((root / "shard-0.parquet").read_bytes())
        (root / ".num_samples.json").unlink()
        found = audit(root, workers=1)
        assert faults(found)["repeated shards"] == 2
        assert ("identical rows" in faults(found)) == static


def test_limits_follow_from_the_rows() -> None:
    assert choose_limit({100: 10, 128: 100}) == 128
    assert choose_limit({100: 10, 128: 100, 200: 2}) == 128
    assert choose_limit({100: 10, 400: 100}) == 512
    assert choose_limit({100: 10, 600: 100}) == 512


@pytest.mark.parametrize(
    "packed", [None, b"", b"\x93NUMPY\x01\x00\x10\x00{'descr': 'V9'}  ", pack([1, 2])[:-1], b"x" * 90]
)
def test_what_is_no_array(packed: bytes | None) -> None:
    assert unpack_positions(packed) is None
    assert unpack_positions(pack([3, 9])).tolist() == [3, 9]
