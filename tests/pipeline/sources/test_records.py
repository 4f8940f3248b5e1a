"""kind: jsonl and parquet. Columns, boundaries of sentence rows, ranges, and faults named with their place."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.settings import ConfigError, validate
from pipeline.sources.records import read_records, split_records
from source_items import read_source


def write(path: Path, rows: list[dict[str, object]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def sentences(items: list[Document | Drop]) -> list[tuple[str, ...]]:
    return [item.sentences for item in items if isinstance(item, Document)]


def source_of(path: Path, **settings: object) -> SourceConfig:
    return SourceConfig(kind=path.suffix[1:], path=str(path), **settings)  # type: ignore[arg-type]


@pytest.fixture(params=["jsonl", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"a.{request.param}"


def test_a_row_is_a_document(path: Path) -> None:
    write(path, [{"text": "One. Two.\nThree."}, {"text": None}, {"text": "Four."}, {"text": " "}])
    items = read_source(source_of(path))
    assert sentences(items) == [("One.", "Two.", "Three."), ("Four.",)]
    assert [item.reason for item in items if isinstance(item, Drop)] == ["null_text", "empty"]


@pytest.mark.parametrize("nothing", [None, "", " "])
def test_a_document_may_begin_with_a_row_that_holds_nothing(path: Path, nothing: str | None) -> None:
    rows = [("One two.", "A"), (nothing, "B"), ("Three four.", "B"), (nothing, "C"), (nothing, "D"), ("Five.", "D")]
    write(path, [{"text": text, "book": book} for text, book in rows])
    items = read_source(source_of(path, row="sentence", document_column="book"))
    assert sentences(items) == [("One two.",), ("Three four.",), ("Five.",)]
    drops = [(item.reason, item.name[-1]) for item in items if isinstance(item, Drop)]
    first = 1 if path.suffix == ".jsonl" else 0
    empty = "null_text" if nothing is None else "empty_row"
    assert drops == [
        (empty, str(1 + first)),
        (empty, str(3 + first)),
        ("empty", str(3 + first)),
        (empty, str(4 + first)),
    ]


def test_lines_of_json_end_at_any_line_break(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "One."}\r{"text": "Two\\rhere."}\r\n{"text": "Three."}\n')
    assert sentences(read_source(source_of(tmp_path / "a.jsonl"))) == [("One.",), ("Two", "here."), ("Three.",)]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "One."}\n{"text":\r"Two."}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not JSON: .*one object per line"):
        read_source(source_of(tmp_path / "a.jsonl"))


def test_the_text_column_is_named(path: Path) -> None:
    write(path, [{"id": 1, "body": "One."}])
    assert sentences(read_source(source_of(path, text_column="body"))) == [("One.",)]


def test_a_column_bounds_documents(path: Path) -> None:
    rows = [("One.", "b1"), ("Two.", "b1"), ("", "b1"), ("Three.", "b2"), ("Four.", None), ("Five.", "b1")]
    write(path, [{"text": text, "book": book} for text, book in rows])
    items = read_source(source_of(path, row="sentence", document_column="book"))
    assert sentences(items) == [("One.", "Two."), ("Three.",), ("Four.",), ("Five.",)]
    assert [item.reason for item in items if isinstance(item, Drop)] == ["empty_row"]


def test_rows_without_a_number_in_the_column_are_one_document(path: Path) -> None:
    write(
        path, [{"text": name, "book": book} for name, book in zip("ABCD", [1.0, math.nan, math.nan, 2.0], strict=True)]
    )
    assert sentences(read_source(source_of(path, row="sentence", document_column="book"))) == [
        ("A",),
        ("B", "C"),
        ("D",),
    ]


def test_a_blank_row_bounds_documents(path: Path) -> None:
    write(path, [{"text": text} for text in ["One.", "Two. Still two.", "", None, "Three.", " "]])
    items = read_source(source_of(path, row="sentence", blank_row_ends_document=True))
    assert sentences(items) == [("One.", "Two. Still two."), ("Three.",)]


def test_a_number_of_rows_bounds_documents(path: Path) -> None:
    write(path, [{"text": f"Row {index}."} for index in range(5)])
    items = read_source(source_of(path, row="sentence", rows_per_document=2))
    assert sentences(items) == [("Row 0.", "Row 1."), ("Row 2.", "Row 3."), ("Row 4.",)]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_sentence_rows_without_a_boundary_are_refused_with_the_remedy(kind: str) -> None:
    """BookCorpus's common form: a sentence a row and nothing that says where a book ends."""
    with pytest.raises(ConfigError, match=r"row: sentence needs to know where documents end.*rows_per_document"):
        validate(SourceConfig, {"kind": kind, "path": "x", "row": "sentence"}, origin="f")


@settings(max_examples=20)
@given(st.lists(st.text("abc ", max_size=5), min_size=1, max_size=30), st.integers(1, 60))
def test_ranges_of_any_size_give_the_rows_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], split_bytes: int
) -> None:
    for name in ("a.jsonl", "a.parquet"):
        path = tmp_path_factory.mktemp("records") / name
        write(path, [{"text": f"{text} {index}"} for index, text in enumerate(texts)])
        config = source_of(path)
        splits = split_records(path, source=0, config=config, split_bytes=split_bytes)
        items = [item for split in splits for item in read_records(split, source=config)]
        assert [text for document in sentences(items) for text in document] == [
            " ".join(f"{text} {index}".split()) for index, text in enumerate(texts)
        ]


def test_documents_of_several_rows_are_never_split(path: Path) -> None:
    write(path, [{"text": f"Row {index}."} for index in range(50)])
    config = source_of(path, row="sentence", rows_per_document=50)
    assert len(split_records(path, source=0, config=config, split_bytes=10)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{bad", r"a\.jsonl, line 2: not JSON: "),
        ("[1]", r"a\.jsonl, line 2: contains list, not an object with 'text'"),
        ('{"id": 1, "body": "x"}', r"a\.jsonl, line 2: has no field 'text' \(it has id, body\); set text_column"),
        ('{"text": 7}', r"a\.jsonl, line 2: 'text' contains 7, not text"),
        ("[" * 100_000, r"a\.jsonl, line 2: not JSON"),
        ('{"text": "x", "n": ' + "9" * 5_000 + "}", r"a\.jsonl, line 2: not JSON: Exceeds the limit"),
    ],
)
def test_bad_json_is_named_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_source(source_of(tmp_path / "a.jsonl"))


def test_a_missing_document_column_is_named(path: Path) -> None:
    write(path, [{"text": "x"}])
    with pytest.raises(ValueError, match=r"has no (field|column) 'book' \(it has text\); set document_column"):
        read_source(source_of(path, row="sentence", document_column="book"))


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match=r"a\.parquet: not a complete Parquet file"):
        read_source(source_of(path))
    write(path, [{"text": 1}])
    with pytest.raises(ValueError, match=r"column 'text' is int64, not text"):
        read_source(source_of(path))
    with pytest.raises(ValueError, match=r"has no column 'body' \(it has text\); set text_column"):
        read_source(source_of(path, text_column="body"))
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]), path)
    with pytest.raises(ValueError, match=r"a\.parquet: has 2 columns 'text'; rename all but one"):
        read_source(source_of(path))
    pq.write_table(pa.table({"text": ["x"], "at": pa.array([0], pa.timestamp("us", tz="Mars/Phobos"))}), path)
    with pytest.raises(
        ValueError, match=r"a\.parquet: column 'at' has a value that Python cannot represent, near row 0: .*; cast it"
    ):
        read_source(source_of(path, row="sentence", document_column="at"))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(ValueError, match=r"a\.parquet: has no rows"):
        read_source(source_of(path))


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int8(), pa.large_string()), pa.string_view(), pa.large_string()])
def test_text_of_every_type_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"text": pa.array(["One.", None, "Two.", "One."], kind)}), tmp_path / "a.parquet")
    texts = [item.sentences for item in read_source(source_of(tmp_path / "a.parquet")) if isinstance(item, Document)]
    assert texts == [("One.",), ("Two.",), ("One.",)]


def test_a_flipped_byte_in_parquet_is_no_silent_change(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"Sentence {i * 7919}." for i in range(2_000)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.parquet: cannot be read near row 0"):
        read_source(source_of(path))


def test_compressed_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "One."}\n\n{"text": "Two."}\n'))
    config = SourceConfig(kind="jsonl", path=str(path))
    assert [item.name for item in read_source(config)] == ["a.jsonl.gz, line 1", "a.jsonl.gz, line 3"]  # type: ignore[union-attr]


def test_hugging_face_wikipedia_parquet(shared_data: Path) -> None:
    items = read_source(SourceConfig(kind="parquet", path=str(shared_data / "wiki/text/vital-articles/*.parquet")))
    assert len(sentences(items)) == 10_033


CIRRUS = [
    {"index": {"_type": "page", "_id": "3"}},
    {"title": "One", "text": "First page. It is short."},
    {"index": {"_type": "page", "_id": "4"}},
    {"title": "Two", "text": None},
    {"index": {"_type": "page", "_id": "5"}},
    {"title": "Three", "text": "Third page."},
]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("parts", [1, 2])
def test_index_rows_of_cirrus_dumps_are_skipped_and_counted(tmp_path: Path, suffix: str, parts: int) -> None:
    data = "".join(json.dumps(row) + "\n" for row in CIRRUS).encode()
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    config = SourceConfig(kind="jsonl", path=str(path), skip_without_text=True)
    (whole,) = split_records(path, source=0, config=config, split_bytes=1 << 30)
    shares = replace(whole, text_bytes=parts).share(parts, part_bytes=1)
    items = [list(read_records(split, source=config)) for split in shares]
    assert sorted(text for part in items for text in sentences(part)) == [
        ("First page.", "It is short."),
        ("Third page.",),
    ]
    drops = [item.reason for part in items for item in part if isinstance(item, Drop)]
    assert sorted(drops) == ["no_text_field"] * 3 + ["null_text"]
    assert all(any(getattr(item, "reason", "") != "no_text_field" for item in part) for part in items)
    with pytest.raises(ValueError, match=r"line 1: has no field 'text'.*or skip_without_text: true"):
        read_source(SourceConfig(kind="jsonl", path=str(path)))


def test_rows_without_text_end_no_document(tmp_path: Path) -> None:
    rows = [{"text": "One."}, {"index": 1}, {"text": "Two."}, {"text": "Three."}, {"index": 2}]
    write(tmp_path / "a.jsonl", rows)
    items = read_source(source_of(tmp_path / "a.jsonl", row="sentence", rows_per_document=2, skip_without_text=True))
    assert sentences(items) == [("One.", "Two."), ("Three.",)]
    assert [item.reason for item in items if isinstance(item, Drop)] == ["no_text_field"] * 2


def test_only_json_lines_can_lack_a_field() -> None:
    with pytest.raises(ConfigError, match="skip_without_text is for kind jsonl, not for kind parquet"):
        validate(SourceConfig, {"kind": "parquet", "path": "x", "skip_without_text": True}, origin="f")


def test_a_document_without_end_is_refused_before_it_fills_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.records.MOST_CHARACTERS", 60)
    write(path, [{"text": "Twenty-two characters.", "book": "x"}] * 3)
    with pytest.raises(
        ValueError, match=r"at a\.(jsonl, line 1|parquet, row 0) does not end within 60 characters; check"
    ):
        read_source(source_of(path, row="sentence", document_column="book"))
    write(path, [{"text": "Twenty-two characters.", "book": f"{number}"} for number in range(9)])
    assert len(sentences(read_source(source_of(path, row="sentence", document_column="book")))) == 9
