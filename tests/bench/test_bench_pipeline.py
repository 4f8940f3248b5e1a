"""The benchmarks of the pipeline: sizes to the byte, processes as the kernel sees them, copies that are documents."""

from __future__ import annotations

import stat
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import builds, pipeline, repeats, scale, storage
from bench.pipeline_tables import render
from bench.processes import peak_bytes, watch
from corpora import build_text, make_documents, read_rows, write_vocabulary
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document
from pipeline.sources.splits import list_splits, read_documents

MEGABYTE = 1_000_000


def novel(number: int) -> bytes:
    paragraphs = ["\n".join(part) for part in make_documents(12, seed=number)]
    return "\n\n".join(paragraphs).encode()


def make_texts(*, books: int = 3) -> repeats.Texts:
    articles = tuple((f"A & {number}", f"The '''A{number}''' is [[b]] <ref>c</ref>.\n\nD & e.") for number in range(2))
    return repeats.Texts(tuple((f"{n}.txt", novel(n)) for n in range(books)), articles, language="en")


def documents_of(sources: tuple[SourceConfig, ...]) -> list[Document]:
    items = [item for split in list_splits(sources) for item in read_documents(split, sources[split.source])]
    return [item for item in items if isinstance(item, Document)]


# ---- corpora


def test_every_copy_is_a_document_of_its_own(tmp_path: Path) -> None:
    texts = make_texts()
    once = documents_of(repeats.write_corpus(texts, tmp_path / "once"))
    assert {document.name for document in once} >= {"A & 0", "A & 1"}
    plain = [document.sentences for document in once if document.name.startswith("A &")]
    assert plain == [("The A0 is b.", "D & e."), ("The A1 is b.", "D & e.")]

    size = 4 * texts.num_bytes + 5_000
    found = documents_of(repeats.write_corpus(texts, tmp_path / "many", num_bytes=size, one_book_bytes=5_000))
    assert len({document.id for document in found}) == len(found) == 4 * len(once) + 1
    assert all(
        document.sentences[0].startswith("This is copy") for document in found if "one-book" not in document.name
    )
    (great,) = [document for document in found if document.name == "one-book.txt"]
    assert 5_000 < sum(map(len, great.sentences)) < 5_000 + 2 * len(novel(0))


def test_books_are_read_up_to_a_size_and_articles_all(tmp_path: Path) -> None:
    sources = repeats.write_corpus(make_texts(), tmp_path)
    assert repeats.read_texts(sources).num_bytes == make_texts().num_bytes
    few = repeats.read_texts(sources, most_bytes=2 * len(novel(0)))
    assert 1 <= len(few.books) < 3
    assert few.articles == make_texts().articles


def test_a_corpus_that_is_not_there_is_named() -> None:
    kinds = [source.kind for source in pipeline.choose_sources(["a.txt", "b.tar.xz", "c.xml-p1p2.bz2"])]
    assert kinds == ["books", "books", "wikipedia"]
    with pytest.raises(SystemExit, match=r"no-such\.txt is absent: run `make vocabulary`"):
        pipeline.bench_config((SourceConfig(kind="books", path="a"),), vocabulary="no-such.txt", max_seq_length=64)


# ---- processes


def test_the_tree_of_a_command_is_watched() -> None:
    child = "import time; held = bytearray(120_000_000); held[::4096] = b'1' * len(held[::4096]); time.sleep(3)"
    work = "import time; began = time.process_time()\nwhile time.process_time() - began < 0.5: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)\n{work}"
    cost = watch([sys.executable, "-c", code])
    assert cost.workers == 1
    assert 120 * MEGABYTE < cost.worker_bytes < 160 * MEGABYTE
    assert cost.main_bytes < 60 * MEGABYTE < cost.tree_bytes
    assert cost.highest_bytes == cost.worker_bytes
    assert 0.5 <= cost.cpu_s < 5
    assert 0 < peak_bytes() < 1 << 40


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(SystemExit, match=r"(?s)ended with status 3:.*no such thing"):
        watch([sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)"])


# ---- storage


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def record(features: dict[str, list[int] | list[float]]) -> bytes:
    """tf.train.Example in a TFRecord, written by hand from the published .proto files."""
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], float):
            kind = field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            kind = field(3, field(1, b"".join(varint(int(value)) for value in values)))
        entries += field(1, field(1, name.encode()) + field(2, kind))
    example = field(1, entries)
    return struct.pack("<Q", len(example)) + b"crc1" + example + b"crc2"


def test_the_published_layout_is_counted_to_the_byte(tmp_path: Path) -> None:
    manifest = build_text(tmp_path, make_documents(30), masks_per_pair=3, max_seq_length=160)
    most, length = manifest.max_predictions, manifest.max_seq_length
    rows = read_rows(tmp_path / "out", manifest)
    size = 0
    for row in rows.to_pylist():
        for positions, inputs in zip(row["masked_positions"], row["masked_inputs"], strict=True):
            ids = list(row["input_ids"])
            labels = [ids[position] for position in positions]
            for position, shown in zip(positions, inputs, strict=True):
                ids[position] = shown
            blank, spare = [0] * (length - len(ids)), [0] * (most - len(positions))
            first = row["first_length"]
            size += len(
                record(
                    {
                        "input_ids": ids + blank,
                        "input_mask": [1] * len(ids) + blank,
                        "segment_ids": [0] * first + [1] * (len(ids) - first) + blank,
                        "masked_lm_positions": positions + spare,
                        "masked_lm_ids": labels + spare,
                        "masked_lm_weights": [1.0] * len(positions) + [0.0] * len(spare),
                        "next_sentence_labels": [row["next_sentence_label"] or 0],  # 0 and 1 take the same bytes
                    }
                )
            )
    found = storage.measure_storage(tmp_path / "out", manifest=manifest)
    assert found.published == size
    assert found.total == sum(path.stat().st_size for path in (tmp_path / "out" / "data").iterdir())
    assert (found.rows, found.mask_sets, found.max_seq_length) == (rows.num_rows, 3, 160)
    assert found.row == pytest.approx(found.total / rows.num_rows)
    assert 0 < found.masks < found.total
    assert found.ratio == size / found.total


def test_numbers_of_every_width_are_counted() -> None:
    values = np.array([0, 127, 128, 16_383, 16_384, (1 << 21) - 1, 1 << 21, (1 << 28) - 1])
    assert storage._varint(values).tolist() == [len(varint(int(value))) for value in values]


# ---- whole builds, LDDL


STAND_IN = """#!{python}
import sys
import pyarrow, pyarrow.parquet
job, source, vocabulary, output, length = sys.argv[1:]
lines = open(source + "/0.txt").read().splitlines()
assert job.endswith("lddl_job.py") and length == "64" and all(line.startswith("document-") for line in lines), lines
import os
os.makedirs(output)
held = [str(number) for number in range(400_000)]
pyarrow.parquet.write_table(pyarrow.table({{"A": lines{more}}}), output + "/part.0.parquet")
"""


def stand_in(path: Path, *, more: str = "") -> str:
    path.write_text(STAND_IN.format(python=sys.executable, more=more))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_lddl_takes_its_turn_and_the_ratios_are_printed(tmp_path: Path) -> None:
    """A stand-in for the Python that has lddl: it gets the same documents, and its CPU seconds are in the table."""
    sources = (SourceConfig(kind="books", path="unused"),)
    config = pipeline.bench_config(sources, vocabulary=str(write_vocabulary(tmp_path / "v.txt")), max_seq_length=64)
    texts = make_texts(books=4)
    python = stand_in(tmp_path / "python")
    whole = builds.measure_whole(texts, config=config, workers=[1], mask_sets=2, lddl=python, repeat=1)
    assert whole.documents == whole.lddl_rows == 6
    assert [build.name for build in whole.builds] == ["1 worker, K = 1", "1 worker, K = 2", "1 worker, next to nothing"]
    one, two, _ = whole.builds
    assert one.rows == two.rows > 6
    assert one.tokens == two.tokens > whole.document_tokens
    assert two.bytes > one.bytes
    assert whole.lddl is not None
    assert whole.lddl.cpu_s > 0.05
    tree = {"date": "d", "machine": "m", "load": 0.0, "corpus": "c", **builds.to_json(whole)}
    shown = render({"whole": tree})
    ratio = one.cost.cpu_s / whole.tokenizers_cpu_s
    assert f"Ratio of CPU seconds to `tokenizers` alone, 1 worker, K = 1: {ratio:.2f}." in shown
    assert f"LDDL in this run: {whole.lddl.cpu_s / one.cost.cpu_s:.2f} times our CPU seconds." in shown
    assert "| LDDL (6 rows" in shown


def test_lddl_without_rows_is_an_error(tmp_path: Path) -> None:
    config = pipeline.bench_config(
        (SourceConfig(kind="books", path="unused"),),
        vocabulary=str(write_vocabulary(tmp_path / "v.txt")),
        max_seq_length=64,
    )
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0.txt").write_text("document-0 a b\n")
    with pytest.raises(SystemExit, match="LDDL wrote no rows"):
        builds.run_lddl(
            stand_in(tmp_path / "python", more="[:0]"),
            source=tmp_path / "source",
            config=config,
            output=tmp_path / "out",
        )


def test_sections_that_are_not_measured_again_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vocabulary = write_vocabulary(tmp_path / "v.txt")
    (tmp_path / "a.txt").write_bytes(novel(1))
    (tmp_path / "b.txt").write_bytes(novel(2))
    (tmp_path / "pipeline.json").write_text('{"kept": {"date": "yesterday"}}')
    words = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    words += ["--sections", "stages", "--repeat", "1", "--out", str(tmp_path)]
    assert pipeline.main([*words, "--vocabulary", str(vocabulary), "--max-seq-length", "64"]) == 0
    text = (tmp_path / "pipeline.json").read_text()
    assert '"kept"' in text
    assert '"stages"' in text
    table = capsys.readouterr().out
    for name in ("book files to paragraphs", "sentences", "text to token ids", "pairs, masks, shard: 10 mask sets"):
        assert f"| {name} | " in table
    assert "x tokenizers, a call a sentence" in table
    assert "3 Mtok/s: " in table
    assert (tmp_path / "pipeline.md").read_text() == table[:-1]


# ---- the plan at scale


def test_every_row_of_the_manifest_is_in_the_slice_of_one_rank(tmp_path: Path) -> None:
    manifest = scale.make_manifest(rows=1_000_000, shards=100)
    assert manifest.num_rows("train") == 1_000_000
    found = scale.measure_scale(rows=1_000_000, shards=100, ranks=64)
    assert (found.rows, found.shards, found.row_groups, found.ranks) == (1_000_000, 100, 300, 64)
    assert 300 <= found.blocks <= 300 + 64
    assert found.total_s == pytest.approx(found.open_s + found.plan_s + found.slice_s)
    assert found.peak_bytes > 10 * MEGABYTE
    assert "| 10 s |" in "\n".join(scale.format_scale(found))


# ---- shortcuts


def test_sets_are_measured_by_name_and_shown_as_a_table(tmp_path: Path) -> None:
    build_text(tmp_path, make_documents(60), masks_per_pair=1)
    root = tmp_path / "out"
    assert pipeline.main(["--sections", "--shortcuts", f"one={root}", f"two={root}", "--out", str(tmp_path)]) == 0
    shown = (tmp_path / "pipeline.md").read_text()
    lines = [line.split(" | ") for line in shown.splitlines() if line.startswith(("| one |", "| two |"))]
    assert [line[0] for line in lines] == ["| one", "| two"]
    assert lines[0][1:] == lines[1][1:]
    assert all(30 < float(share.rstrip("%")) < 70 for share in lines[0][1:7])
    with pytest.raises(ValueError, match="--shortcuts 'out': give NAME=FOLDER"):
        pipeline.main(["--sections", "--shortcuts", "out", "--out", str(tmp_path)])
