"""Texts to hold out: runs of 13 words in any script, files of any form, and what shares a run with them."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dedup import held_texts, word_runs
from pipeline.dedup.held_texts import open_runs, write_runs
from pipeline.dedup.word_runs import RunHasher, split_words
from pipeline.sources import archives
from pipeline.sources.loose_texts import _strings, read_texts

WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrt"]
PASSAGE = "The quick brown fox jumps over thirteen lazy dogs, who sleep on in the sun."  # 15 words


def prose(count: int, *, seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


def find(folder: Path, texts: dict[str, str], document: list[str]) -> held_texts.Match | None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    target = str(folder / "runs.arrow")
    write_runs(sorted(str(folder / name) for name in texts), target=target)
    open_runs.cache_clear()
    return open_runs(target).find(document)


def test_thirteen_words_in_a_row_are_found_and_twelve_are_not(tmp_path: Path) -> None:
    words = PASSAGE.split()
    before, after = prose(50, seed=1), prose(50, seed=2)
    for count, found in ((12, False), (13, True), (15, True)):
        document = [" ".join([*before, *words[:count], *after])]
        match = find(tmp_path, {"a.txt": PASSAGE}, document)
        assert (match is not None) == found
        if match is not None:
            assert match.file == "a.txt"
            assert match.words in "the quick brown fox jumps over thirteen lazy dogs who sleep on in the sun"


def test_case_punctuation_and_line_ends_do_not_count(tmp_path: Path) -> None:
    document = ["Intro: THE QUICK (brown) fox;", "jumps -- over Thirteen", "lazy dogs who sleep... on in the sun"]
    assert find(tmp_path, {"a.txt": PASSAGE.replace(" fox ", " fox\n")}, document) is not None


def test_a_short_text_is_found_only_as_a_whole_document(tmp_path: Path) -> None:
    texts = {"a.jsonl": '{"q": "Who wrote it?"}\n{"q": "' + PASSAGE + '"}\n'}
    assert find(tmp_path, texts, ["Who wrote it?"]) is not None
    assert find(tmp_path, texts, ["He asked:", "Who wrote it?", *prose(30, seed=3)]) is None
    assert write_runs([str(tmp_path / "a.jsonl")], target=str(tmp_path / "b")) == [("a.jsonl", 2, 1, 4)]


@pytest.mark.parametrize(
    ("letters", "needed"),
    [("\u4e00\u4e8c\u4e09\u56db\u4e94", 26), ("\u3042\u3044\u3046\u3048", 26), ("\u0e01\u0e02\u0e04\u0e07\u0e31", 52)],
    ids=["zh", "ja", "th"],
)
def test_scripts_without_spaces_need_as_many_characters_as_thirteen_words(
    tmp_path: Path, letters: str, needed: int
) -> None:
    text = "".join(random.Random(7).choices(letters, k=200))
    other = "".join(random.Random(8).choices(letters, k=200))
    assert find(tmp_path, {"a.txt": text}, [other + text[30 : 30 + needed] + "."]) is not None
    assert find(tmp_path, {"a.txt": text}, ["! " + text[30 : 30 + needed - 1] + " " + "x " * 30]) is None


def test_vowel_signs_belong_to_their_word() -> None:
    assert split_words("\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902") == [
        "\u0939\u093f\u0928\u094d\u0926\u0940",
        "\u092e\u0947\u0902",
    ]
    assert split_words("a_b don't \u65e5\u672cABC") == ["a", "b", "don", "t", "\u65e5", "\u672c", "abc"]


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["a", "bb", "ccc", "\u4e00", "\u0e01", "x1 y2"]), max_size=300),
    st.integers(1, 60),
)
def test_chunks_do_not_change_the_runs(words: list[str], chunk: int) -> None:
    def hashes() -> list[int]:
        return [value for runs in RunHasher().hash_text(words) for value in runs.hashes.tolist()]

    whole = hashes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_runs, "_CHUNK_WORDS", chunk)
        assert hashes() == whole


def as_conll(words: list[str]) -> str:
    return "".join(f"{number}\t{word}\tX\tO\n" for number, word in enumerate(words, start=1)) + "\n"


def in_tar(text: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("set/dev.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


FORMS = {
    "a.txt": PASSAGE.encode(),
    "a.md": f"# Title\n\n{PASSAGE}\n".encode(),
    "a.json": json.dumps({"data": [{"paragraphs": [{"context": PASSAGE}]}]}).encode(),
    "pretty.json": json.dumps({"context": PASSAGE}, indent=2).encode() * 2,
    "a.jsonl": json.dumps({"text": [PASSAGE]}).encode() + b"\n",
    "a.jsonl.gz": gzip.compress(json.dumps({"text": PASSAGE}).encode()),
    "a.csv": f'id,text\n1,"{PASSAGE}"\n'.encode(),
    "a.tsv": f"id\tlabel\ttext\n1\t0\t{PASSAGE}\n".encode(),
    "a.conll": as_conll(PASSAGE.split()).encode(),
    "spaces.conll": as_conll(prose(40, seed=9) + PASSAGE.split()).replace("\t", " ").encode(),
    "a.conllu": ("# text = x\n" + as_conll(PASSAGE.split())).encode(),
    "a.xml": f"<s>{PASSAGE.replace('fox', '<w>fox</w>')}</s>".encode(),
    "a.tar.gz": in_tar(PASSAGE),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_texts_of_every_form_of_file_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMS[name])
    target = str(tmp_path / "runs.arrow")
    write_runs([str(tmp_path / name)], target=target)
    open_runs.cache_clear()
    assert open_runs(target).find([PASSAGE]) is not None
    numbers = " ".join(map(str, range(1, 60)))
    assert open_runs(target).find([numbers, "O " * 40, "X " * 40]) is None  # the other columns of a table


def test_parquet_is_read_with_nested_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "answers": [{"text": [PASSAGE]}]}), path)
    assert PASSAGE in list(read_texts(str(path)))


SHORT = "A nice film of quiet joy."
SHORT_FORMS = {
    "a.txt": f"{SHORT}\nAnother line of the file here.\n",
    "b.txt": "".join(f"A nice film of quiet joy number {number}.\n" for number in range(50)) + f"{SHORT}\n",
    "a.tsv": f"{SHORT}\t1\nOther\t0\n",
    "a.xml": f"<r><s>{SHORT}</s><s>Other one.</s></r>",
    "b.xml": f"<r><s text='{SHORT}'/><s>Other one.</s></r>",
    "a.json": json.dumps({SHORT: 1, "other": "one"}),
    "dev": json.dumps({"a": [SHORT], "b": "c"}),
}


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_each_short_text_of_a_file_is_found_as_a_whole_document(tmp_path: Path, name: str) -> None:
    assert find(tmp_path, {name: SHORT_FORMS[name]}, [SHORT]) is not None
    assert find(tmp_path, {name: SHORT_FORMS[name]}, [SHORT, *prose(30, seed=3)]) is None


WIDE = "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in PASSAGE)
WRITTEN = {
    "wide letters": ("a.txt", WIDE),
    "narrow kana": ("a.txt", "\uff86\uff6c\uff70" * 10),
    "capital with a dot": ("a.txt", PASSAGE.replace("thirteen", "TH\u0130RTEEN")),
    "letters of two code points": ("a.txt", PASSAGE.replace("fox", "fo\u0308x")),
    "entities": ("a.xml", f"<r>{PASSAGE.replace('lazy', 'l&#97;zy')}</r>"),
    "tags in a table": ("a.tsv", f"1\t{PASSAGE.replace('fox', 'fox<br />')}\n"),
    "entities in JSON": ("a.jsonl", json.dumps({"a": PASSAGE.replace("lazy", "lazy &quot;")})),
    "half a character in JSON": ("a.json", '{"a": "' + PASSAGE + ' \\ud83d"}'),
    "an attribute": ("a.xml", f'<r><s text="{PASSAGE}"/></r>'),
    "a key": ("a.json", json.dumps({PASSAGE: 1})),
    "JSON by another name": ("dev", json.dumps({"a": PASSAGE.replace(" fox", "\nfox \u00e9")})),
    "a long field": ("a.csv", f'id,text\n1,"{"word " * 40_000}{PASSAGE}"\n'),
}
DOCUMENTS = {
    "narrow kana": "\u30cb\u30e3\u30fc" * 10,
    "letters of two code points": PASSAGE.replace("fox", "f\u00f6x"),
    "JSON by another name": PASSAGE.replace(" fox", " fox \u00e9"),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_other_ways_to_write_a_text_are_found(tmp_path: Path, form: str) -> None:
    name, text = WRITTEN[form]
    assert find(tmp_path, {name: text}, [DOCUMENTS.get(form, PASSAGE)]) is not None


def test_the_first_file_with_a_passage_counts_by_its_shortest_name(tmp_path: Path) -> None:
    texts = {"x/dev.tsv": f"1\t{PASSAGE}\n", "y/dev.tsv": f"2\t{PASSAGE}\n", "z.txt": " ".join(prose(40, seed=4))}
    match = find(tmp_path, texts, [PASSAGE])
    assert match is not None
    assert match.file == "x/dev.tsv"
    assert find(tmp_path, texts, [" ".join(prose(40, seed=4))]).file == "z.txt"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"...\n", r"hold_out: .*a\.txt has no words; remove it"),
        ("a.json", b'{"a": "b"}\n{"a"', r"a\.json, line 2: not JSON: .*; repair it"),
        ("a.bin", b"\0" * 10, r"a\.bin: holds NUL bytes, so it is no text"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a complete Parquet file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        write_runs([str(tmp_path / name)], target=str(tmp_path / "t"))


def test_more_runs_than_memory_is_meant_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_texts, "MOST_RUNS", 20)
    (tmp_path / "a.txt").write_text(" ".join(prose(40, seed=1)))
    with pytest.raises(ValueError, match=r"a\.txt have more than 20 runs of 13 words"):
        write_runs([str(tmp_path / "a.txt")], target=str(tmp_path / "t"))


def test_a_file_of_too_many_runs_is_refused_before_it_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 10 GB would otherwise take 20 GB of memory before it is refused."""
    given: list[int] = []
    distinct = 2

    def read(path: str) -> Iterator[str]:
        for number in range(1_000):
            given.append(number)
            yield ", " * number + " ".join(
                prose(20, seed=number % distinct)
            )  # texts that differ, of two lists of words

    monkeypatch.setattr(held_texts, "MOST_RUNS", 20)
    monkeypatch.setattr(held_texts, "read_texts", read)
    (found,) = write_runs(["a.txt"], target=str(tmp_path / "t"))
    assert (found.texts, found.runs, len(given)) == (1_000, 16, 1_000)
    distinct = 1_000
    given.clear()
    with pytest.raises(ValueError, match=r"a\.txt have more than 20 runs of 13 words"):
        write_runs(["a.txt"], target=str(tmp_path / "t"))
    assert len(given) == 3


def test_more_files_than_a_match_can_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_texts, "MOST_FILES", 2)
    with pytest.raises(ValueError, match="hold_out: 3 files are more than 2; join some of them"):
        write_runs(["a.txt", "b.txt", "c.txt"], target=str(tmp_path / "t"))


def test_a_match_shows_a_long_word_shortened_and_a_name_with_a_line_break(tmp_path: Path) -> None:
    text = " ".join(["x" * 10_000, *prose(12, seed=5)])
    match = find(tmp_path, {"a\nb.txt": text, "c.txt": PASSAGE}, [text])
    assert match == held_texts.Match("a\nb.txt", " ".join(["x" * 40, *prose(12, seed=5)]))


def test_a_file_of_many_lines_is_read_in_linear_time(tmp_path: Path) -> None:
    """Counting each line's words among all lines would take hours here."""
    (tmp_path / "a.txt").write_text("".join(f"a b {number}\n" for number in range(300_000)))
    texts = list(read_texts(str(tmp_path / "a.txt")))
    assert (len(texts), texts[299_999]) == (300_001, "a b 299999")


def test_strings_are_found_however_deeply_they_are_nested() -> None:
    """From Python 3.12 on, json reads deeper values than a function may call itself."""
    value: object = "deep"
    for _ in range(5_000):
        value = [value]
    assert list(_strings(value)) == ["deep"]
    assert list(_strings({"a": ["b", {"c d": ("e",)}], "f": "g"})) == ["b", "c d", "e", "g"]


def test_a_large_archive_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SPLIT_TEXT_BYTES", 1)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for number in range(5):
            data = f"text {number}".encode()
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    opened: list[str] = []
    read = archives.read_pieces
    monkeypatch.setattr(archives, "read_pieces", lambda path, **ends: opened.append(path) or read(path, **ends))  # type: ignore[func-returns-value]
    assert sorted(read_texts(str(tmp_path / "a.tar.gz"))) == [f"text {number}" for number in range(5)]
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("../a.txt", "leads out of the archive"), ("b.txt", "more than 3 bytes")]
)
def test_a_member_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBER_BYTES", 3)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, PASSAGE)
    with pytest.raises(ValueError, match=rf"a\.zip.*{message}.*; unpack the archive"):
        list(read_texts(str(tmp_path / "a.zip")))


def test_real_evaluation_sets_find_their_own_texts_and_no_novel(shared_data: Path, tmp_path: Path) -> None:
    paths = sorted(str(path) for path in (shared_data / "eval").rglob("*") if path.is_file())
    files = write_runs(paths, target=str(tmp_path / "runs"))
    assert len({file.name for file in files}) == len(paths)
    open_runs.cache_clear()
    held = open_runs(str(tmp_path / "runs"))
    squad = json.loads((shared_data / "eval/squad/dev-v2.0-2articles.json").read_text(encoding="utf-8"))
    context = squad["data"][0]["paragraphs"][0]["context"]
    match = held.find([context])
    assert match is not None
    assert match.file in {"dev-v2.0-2articles.json", "xquad.en.json", "SQUAD/sample.json"}
    novels = sorted((shared_data / "books/plain").glob("*.txt"))
    matches = [held.find(path.read_text(encoding="utf-8").split("\n")) for path in novels]
    dracula = held_texts.Match("wnut17train.conll", "but in any case i suppose you will not let it away for")
    assert matches == [None, None, dracula, None]  # a line of Dracula that somebody quoted
