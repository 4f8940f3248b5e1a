"""Warnings before and at the end of a build: legal, but hardly meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from pipeline.build import advice
from pipeline.build.advice import list_advice, refuse_few_books
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Split, TextLoss
from pipeline.output.publish import list_warnings
from pipeline.tally import BuildResult, ReadTally, RowTally
from pipeline.tokenizer.tokenizer import WordTokenizer
from tiny_text import make_config, make_tokenizer


def result(**counts: int) -> BuildResult:
    zeros = np.zeros(1, np.int64)
    return BuildResult([], {"train": RowTally(lengths=zeros, token_counts=zeros, **counts)})


@pytest.mark.parametrize(("masking", "warned"), [("whole_word", True), ("span", True), ("token", False)])
def test_words_of_one_piece_are_named(masking, warned):
    """Whole-word masking of Chinese does nothing (google-research/bert#780; transformers#11768)."""
    config = make_config(masking=masking)
    found = list_warnings(result(documents=2, sentences=9, words=50, document_tokens=50), config=config)
    assert any("each of the 50 words is one piece" in warning for warning in found) == warned
    assert not list_warnings(result(documents=2, sentences=9, words=50, document_tokens=51), config=config)


def test_documents_of_one_sentence_are_named():
    """A blank line after every sentence (google-research/bert#125)."""
    counts = {"documents": 100, "sentences": 105, "words": 500, "document_tokens": 700}
    (found,) = list_warnings(result(**counts), config=make_config())
    assert "100 documents have 105 sentences" in found
    assert not list_warnings(result(**counts), config=make_config(next_sentence="none"))
    assert not list_warnings(result(**counts | {"sentences": 200}), config=make_config())


def test_a_vocabulary_of_another_script_is_named() -> None:
    """Korean by an English vocabulary: the build ends well, and the model learns nothing."""
    counts = {"documents": 10, "sentences": 105, "words": 500, "document_tokens": 700}
    (found,) = list_warnings(result(**counts, unknown=8), config=make_config())
    assert "8 of the 700 tokens of the text are [UNK] (1.1%)" in found
    assert "vocabulary.path" in found
    assert not list_warnings(result(**counts, unknown=7), config=make_config())
    read = ReadTally(characters=Counter({0: 1_000}), unknown_characters=Counter({0: 309}))
    (found,) = list_warnings(result(**counts, unknown=8), config=make_config(), read=read)
    assert "[UNK] (1.1%, which stand for 30.9% of its characters)" in found


@pytest.mark.parametrize(
    ("language", "unknown", "longer", "clauses", "expected"),
    [
        ("en", 10, 0, 100, []),
        ("en", 11, 0, 0, ["11 of its 1,000 characters are in [UNK] (1.1%); .* put spaces between the words"]),
        ("th", 11, 2, 0, ["(1.1%, with 2 words longer than 100 characters); .* set dictionary_words=[th]"]),
        ("th", 0, 0, 101, ["10% of its characters are in words of more than 30 .* set dictionary_words=[th]"]),
        ("bo", 0, 0, 101, ["come out as clauses, .* put spaces between the words"]),
    ],
)
def test_lost_characters_and_clauses_are_named(
    language: str, unknown: int, longer: int, clauses: int, expected: list[str]
) -> None:
    config = make_config(sources=(SourceConfig(kind="text", path="x", language=language),))
    read = ReadTally(characters=Counter({0: 1_000}))
    read.count_loss(TextLoss(unknown_characters=unknown, long_words=longer, clause_characters=clauses), source=0)
    found = list_warnings(result(documents=2, sentences=9, words=50, document_tokens=51), config=config, read=read)
    assert len(found) == len(expected)
    for line, words in zip(found, expected, strict=True):
        assert line.startswith(f"sources.0 (text-{language}): ")
        assert all(part in line for part in words.split(" .* "))


@pytest.mark.parametrize(
    ("language", "advice"),
    [
        ("kr", "sources.0.language='kr' is a country code; give the language code 'ko'"),
        ("korean", "sources.0.language='korean' is not the code of any Wikipedia"),
        ("ko", ""),
        ("zh-yue", ""),
        ("pt-br", ""),
    ],
)
def test_codes_that_are_no_languages_are_advised_on(language: str, advice: str) -> None:
    source = SourceConfig(kind="text", path="x", language=language)
    found = list_advice(make_config(sources=(source,)), tokenizer=None)
    assert len(found) == bool(advice)
    assert advice in "".join(found)


@pytest.mark.parametrize(
    ("pieces", "lowercase", "advice"),
    [
        (["a", "B", "##c"], True, "1 of 3 entries have capital letters"),
        (["a", "##c"], False, "no entry has a capital letter"),
        (["a", "##c"], True, ""),
        (["a", "B"], False, ""),
        (["\uac00", "##\ub098"], False, ""),
    ],
)
def test_the_other_case_than_the_vocabularys_is_advised_on(
    tmp_path: Path, pieces: list[str], lowercase: bool, advice: str
) -> None:
    tokenizer = make_tokenizer(tmp_path, pieces, lowercase=lowercase)
    config = make_config(vocabulary={"path": str(tmp_path / "vocab.txt"), "lowercase": lowercase})
    found = list_advice(config, tokenizer=tokenizer)
    assert len(found) == bool(advice)
    assert advice in "".join(found)


def test_settings_of_text_that_a_tokenizer_json_overrules_are_named() -> None:
    config = make_config(vocabulary={"path": "t.json", "lowercase": False})
    assert list_advice(config, tokenizer=None) == [
        "vocabulary.lowercase has no effect: t.json has this setting itself; remove it"
    ]
    assert not list_advice(make_config(vocabulary={"path": "t.json"}), tokenizer=None)


BESIDE = "vocabulary.size=30000 has no effect: {path} exists, with 112 entries, and is used unchanged; "


@pytest.mark.parametrize(
    ("settings", "doubts"),
    [
        ({"size": 30_000}, [BESIDE + "remove it"]),
        ({"size": 30_000, "train": True}, [BESIDE + "name another file to train one"]),
        (
            {"algorithm": "bpe", "min_pair_count": 3},
            ["vocabulary.algorithm=bpe has", "vocabulary.min_pair_count=3 has"],
        ),
        ({"algorithm": "bpe", "train": True}, []),
        ({"size": 112, "train": True}, []),  # as the sample is built the second time
        ({}, []),
    ],
)
def test_settings_of_a_training_beside_a_vocabulary_that_is_there_are_named(
    tmp_path: Path, settings: dict[str, object], doubts: list[str]
) -> None:
    tokenizer = make_tokenizer(tmp_path, [*"abcdefg", "##c"])
    path = str(tmp_path / "vocab.txt")
    found = list_advice(make_config(vocabulary={"path": path, **settings}), tokenizer=tokenizer)
    assert len(found) == len(doubts)
    assert all(line.startswith(doubt.format(path=path)) for line, doubt in zip(found, doubts, strict=True))


@pytest.mark.parametrize(
    ("books", "fraction", "next_sentence", "refused"),
    [
        (3, 0.4, "random_document", True),
        (20, 0.01, "random_document", False),
        (10, 0.01, "random_document", True),
        (4, 0.4, "random_document", False),
        (1, 0.4, "none", True),
        (2, 0.4, "none", False),
        (30_000, 0.01, "random_document", False),
        (3, 0.0, "random_document", False),
    ],
)
def test_books_too_few_to_hold_out_are_refused_before_they_are_read(
    tmp_path: Path, books: int, fraction: float, next_sentence: str, refused: bool
) -> None:
    source = SourceConfig(kind="books", path="x")
    config = make_config(sources=(source,), validation_fraction=fraction, next_sentence=next_sentence)
    splits = [Split(0, str(tmp_path / f"{number}.txt"), 0, -1, 9, 9) for number in range(books)]
    if refused:
        for split in splits:
            Path(split.path).write_text("A book.")
        with pytest.raises(ValueError, match=r"^\d+ books?, one document each, .*; raise validation_fraction, add"):
            refuse_few_books(config, splits=splits)
        by_chapter = config.model_copy(update={"sources": (source.model_copy(update={"unit": "chapter"}),)})
        if books > 1:
            refuse_few_books(by_chapter, splits=splits)
        else:
            with pytest.raises(
                ValueError, match=r"^1 book, their chapters held out together, is too few to hold out 1"
            ):
                refuse_few_books(by_chapter, splits=splits)
        refuse_few_books(config, splits=[replace(split, end=7) for split in splits])  # members of archives
        text = "".join(
            f"*** START OF THE PROJECT GUTENBERG EBOOK {n} ***\nBook {n}.\n*** END OF THE PROJECT GUTENBERG EBOOK ***\n"
            for n in range(400)
        )
        Path(splits[0].path).write_text(text)
        refuse_few_books(config, splits=splits)  # a file may hold several
        for split in splits:
            Path(split.path).write_bytes(b"PAR1\x00\x01")
        refuse_few_books(config, splits=splits)  # no text file, as reading it will say
    else:
        refuse_few_books(config, splits=splits)


def test_a_source_without_held_out_rows_is_named() -> None:
    sources = tuple(SourceConfig(kind=kind, path=kind) for kind in ("books", "text", "jsonl"))
    found = result(documents=2, sentences=9, words=50, document_tokens=51, source_rows=Counter({0: 5, 1: 4}))
    zeros = np.zeros(1, np.int64)
    held_out = RowTally(lengths=zeros, token_counts=zeros, source_rows=Counter({1: 2}))
    config = make_config(sources=sources)
    (warning,) = list_warnings(replace(found, tallies={**found.tallies, "validation": held_out}), config=config)
    assert config.source_names == ("books-en", "jsonl-en", "text-en")
    assert warning == (
        "no held-out row comes from source books-en, so no evaluation measures its loss; raise validation_fraction"
    )
    assert not list_warnings(found, config=config)  # nothing is held out at all


@pytest.mark.parametrize("unknown", [None, "[UNK]"])
def test_a_tokenizer_that_leaves_out_what_it_does_not_know_is_advised_on(unknown: str | None) -> None:
    special = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    backend = Tokenizer(models.BPE({**special, "a": 5}, [], unk_token=unknown))
    backend.add_special_tokens(list(special))
    config = make_config(vocabulary={"path": "t.json"})
    found = list_advice(config, tokenizer=WordTokenizer(backend, origin="t.json"))
    assert ["drops characters" in line for line in found] == ([] if unknown else [True])


@pytest.mark.parametrize(
    ("length", "predictions", "probability", "warned"),
    [
        (512, 20, 0.15, True),
        (512, 77, 0.15, False),
        (128, 20, 0.15, False),
        (512, None, 0.15, False),
        (128, 20, 0.3, True),
    ],
)
def test_fewer_predictions_than_the_rate_needs_are_warned_of(
    length: int, predictions: int | None, probability: float, warned: bool
) -> None:
    """The published settings are 20 at 128 and 77 at 512; 20 at 512 is a common slip."""
    config = make_config(max_seq_length=length, max_predictions=predictions, masked_probability=probability)
    found = [line for line in list_advice(config, tokenizer=None) if "max_predictions" in line]
    assert bool(found) == warned
    if length == 512 and warned:
        assert found == [
            "max_predictions=20 masks 3.9% of a row of max_seq_length=512 tokens, not 15% (masked_probability), so "
            "training sees fewer targets; set max_predictions=77, or remove it"
        ]


def test_books_are_counted_only_until_there_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(sources=(SourceConfig(kind="books", path="x"),), validation_fraction=0.5)
    given: list[int] = []

    def read(split: Split, source: SourceConfig) -> Iterator[Document]:
        for number in range(1_000):
            given.append(number)
            yield Document(f"{number}", ("A book.",))

    monkeypatch.setattr(advice, "read_documents", read)
    refuse_few_books(config, splits=[Split(0, "a.txt", 0, -1, 9, 9)])
    assert len(given) < 10
