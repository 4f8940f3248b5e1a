"""Tokenizer files that somebody else made: patterns that take forever, panics of the library, growth without bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.tokenizer_file import find_fault, name_panics, parse_tokenizer
from pipeline.documents import Document
from pipeline.tokenizer.tokenizer import WordTokenizer

PUBLISHED = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "GPT-4": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "GPT-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|\s+",
    "T5": " {2,}",
    "others": r"(?<=a)b|[[:alpha:]]+|(?:ab)?|x{3}|{|a{|\x{20}|(?i)a",
}
HOSTILE = [
    *("(a+)+$", "(a|a)*b", "(a*)*", "((a)+)+", "(?:a+){2,}", "(a{1,9}){1,9}", "(a?){50}a{50}", "a?a?a?a?a?aaaaa"),
    *("a*a*a*a*a*b", "(((a+)))*", "(?:(?:a|b)c)*", "((?i)a|b)*", "(?=(a+)+)b", "((a{1000}){1000}){1000}", "a+*"),
    *("a{2}{3}", "a{2}+", r"(a)\1", r"(?<x>a\g<x>?)*$", "(?x)(a+) +b", "(a+)(?#c)*", "[](a+)*]", "[[](a+)*]"),
    *("(?~a)", "(*FAIL)", "(", "a)", r"\Q(a\E+)*", "[a", "(?>a+)+", r"(\p{L}+)+", r"([^a]+)+", r"(\x{61}+)+"),
]


def split_by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def tokenizer_json(tmp_path: Path, **parts: Any) -> bytes:
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"]) + "\n")
    tree = json.loads(WordTokenizer.from_path(words, lowercase=True).backend.to_str())
    return json.dumps({**tree, **parts}).encode()


@pytest.mark.parametrize("pattern", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_patterns_are_taken(pattern: str, tmp_path: Path) -> None:
    assert find_fault(pattern) == ""
    assert parse_tokenizer(tokenizer_json(tmp_path, pre_tokenizer=split_by(pattern)), origin="x") is not None


@pytest.mark.parametrize("pattern", HOSTILE)
def test_patterns_that_may_take_forever_are_refused(pattern: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for parts in (
        {"pre_tokenizer": split_by(pattern)},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": pattern}}]}},
    ):
        path.write_bytes(tokenizer_json(tmp_path, **parts))
        with pytest.raises(ValueError, match=r"tokenizer\.json: the pattern "):
            WordTokenizer.from_path(path, lowercase=True)


def test_replacements_that_grow_are_refused(tmp_path: Path) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
    for normalizer in (
        {"type": "Sequence", "normalizers": [step, step]},
        {"type": "Prepend", "prepend": "a" * 2000},
    ):
        with pytest.raises(ValueError, match="t: its replacements may turn one character into"):
            parse_tokenizer(tokenizer_json(tmp_path, normalizer=normalizer), origin="t")
    assert parse_tokenizer(tokenizer_json(tmp_path, normalizer=step), origin="t") is not None


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"4", b"\xff", b"{", b'{"model": 5}'], ids=str)
def test_other_content_is_named(content: bytes) -> None:
    with pytest.raises(ValueError, match="t: not a tokenizer"):
        parse_tokenizer(content, origin="t")


def test_a_panic_of_the_library_names_the_file(tmp_path: Path) -> None:
    """A pattern that is taken, but exceeds the limit of the regular expression library on one text."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json(tmp_path, pre_tokenizer=split_by("a*a*a*a*$")))
    tokenizer = WordTokenizer.from_path(path, lowercase=True)
    assert tokenizer.tokenize(Document("1", ("aaa",))).ids.tolist() == [5, 6, 6]
    with pytest.raises(ValueError, match=r"tokenizer\.json: the tokenizers library failed on a text"):
        tokenizer.tokenize(Document("1", ("a" * 700 + "!",)))


def bpe(**changes: Any) -> dict[str, Any]:
    vocabulary = {"[UNK]": 0, "a": 1, "\u00e9b": 2, "\u00e9": 3, "a\u00e9": 4}
    return {"type": "BPE", "unk_token": "[UNK]", "vocab": vocabulary, "merges": [], **changes}


def template(pieces: int, ids: int) -> dict[str, Any]:
    special = {"id": "[CLS]", "ids": [2] * ids, "tokens": ["[CLS]"] * ids}
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * pieces + [{"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {"[CLS]": special}}


EXCESS: dict[str, tuple[dict[str, Any], str]] = {
    "a prefix of megabytes": ({"model": bpe(continuing_subword_prefix="#" * 5_000_000)}, "_prefix has 5,000,000 char"),
    "a suffix of megabytes": ({"model": bpe(end_of_word_suffix="#" * 5_000_000)}, "end_of_word_suffix has 5,000,000"),
    "words without end": ({"model": bpe(max_input_chars_per_word=10**9)}, "max_input_chars_per_word is 1,000,000,000"),
    "merges inside a character": (
        {"model": bpe(continuing_subword_prefix="\u00e9", merges=[["a", "b\u00e9"]])},
        r"the merge \['a', 'b.'\] does not continue with",
    ),
    "merges shorter than the prefix": ({"model": bpe(continuing_subword_prefix="###", merges=["a b"])}, "merge 'a b'"),
    "many pieces": ({"post_processor": template(100_000, 1)}, "a template adds 100,001 tokens"),
    "many ids": ({"post_processor": template(1000, 1000)}, "a template adds 1,001,000 tokens"),
    "a sequence": ({"post_processor": {"type": "Sequence", "processors": [template(600, 1)] * 2}}, "adds 1,202 tokens"),
}


@pytest.mark.parametrize("kind", EXCESS)
def test_what_takes_too_much_or_ends_the_process_is_refused(kind: str, tmp_path: Path) -> None:
    """tokenizers 0.23.3 aborts at a merge that cuts a character, and takes gigabytes for the others."""
    parts, fault = EXCESS[kind]
    with pytest.raises(ValueError, match=f"^t: .*{fault}"):
        parse_tokenizer(tokenizer_json(tmp_path, **parts), origin="t")


def test_ordinary_templates_and_merges_are_taken(tmp_path: Path) -> None:
    merged = bpe(continuing_subword_prefix="\u00e9", merges=[["a", "\u00e9"]])
    assert parse_tokenizer(tokenizer_json(tmp_path, model=merged), origin="t") is not None
    assert parse_tokenizer(tokenizer_json(tmp_path, post_processor=template(3, 1)), origin="t") is not None


def test_an_error_of_the_library_names_the_file(tmp_path: Path) -> None:
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]], "byte_fallback": False}
    tokenizer = parse_tokenizer(tokenizer_json(tmp_path, model=model, normalizer=None), origin="t")
    with pytest.raises(ValueError, match=r"^t: the tokenizers library failed on a text"), name_panics("t"):
        tokenizer.encode("b")


def test_other_errors_pass() -> None:
    with pytest.raises(KeyboardInterrupt), name_panics("t"):
        raise KeyboardInterrupt
