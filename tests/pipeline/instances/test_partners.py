"""Wrong next sentences that are told from right ones by reading alone: planted corpora, and what has no label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.instances.pairs import PairTable, make_pairs
from pipeline.instances.partners import ALONE, UNPAIRED, count_unlabelled
from pipeline.instances.rows import assemble_rows
from pipeline.instances.shortcuts import Shortcut, count_shortcuts, judge_shortcuts
from pipeline.tokenizer import SpecialIds, TokenizedDocument
from tiny_text import make_config, make_document

SPECIAL = SpecialIds(pad=0, unk=100, cls=101, sep=102, mask=103)


def plant(
    count: int, *, name: int, source: int, sentences: tuple[int, int], words: tuple[int, int]
) -> list[TokenizedDocument]:
    """Documents of a source, each of a number of sentences of a number of words, both uniform in a range."""
    rng = np.random.default_rng(name)
    made = []
    for number in range(count):
        lengths = rng.integers(*words, size=rng.integers(*sentences)).tolist()
        made.append(replace(make_document([[1] * length for length in lengths], name=name + number), source=source))
    return made


def judge(documents: Sequence[TokenizedDocument], table: PairTable, *, length: int) -> dict[str, Shortcut]:
    """The accuracy of every rule; the language of source n is n // 2."""
    rows = assemble_rows(documents, table, special=SPECIAL, seed=7)
    sources = np.array([document.source for document in documents])
    sizes = np.array([document.ids.size for document in documents])
    counts = count_shortcuts(
        ids=rows.ids,
        offsets=rows.offsets,
        first_length=rows.first_length,
        label=rows.label,
        sources=(sources[table.first_document], sources[table.second_document]),
        num_sources=4,
        max_seq_length=length,
        places=(table.second_start, sizes[table.second_document] - table.second_stop),
    )
    return {each.rule: each for each in judge_shortcuts(counts, languages=["en", "en", "ko", "ko"])}


BOOKS = {"sentences": (300, 600), "words": (8, 30)}
ARTICLES = {"sentences": (2, 9), "words": (5, 25)}
NOTES = {"sentences": (1, 3), "words": (2, 12)}


@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize(
    ("kinds", "sources"),
    [
        ([BOOKS, ARTICLES], [0, 1]),  # books beside short articles
        ([BOOKS, ARTICLES], [0, 0]),  # the same in one source
        ([ARTICLES, ARTICLES], [0, 1]),  # two sources alike
        ([ARTICLES, ARTICLES], [0, 2]),  # two languages
        ([BOOKS, ARTICLES, NOTES], [0, 1, 2]),
        ([BOOKS, ARTICLES, NOTES], [0, 0, 0]),
    ],
)
def test_no_rule_tells_the_labels_of_a_planted_corpus(kinds, sources, length):
    documents = []
    for number, (kind, source) in enumerate(zip(kinds, sources, strict=True)):
        count = 12 if kind is BOOKS else 2_000
        documents += plant(count, name=10_000 * number, source=source, **kind)
    tables = [
        make_pairs(documents, config=make_config(max_seq_length=length), pass_number=number) for number in range(2)
    ]
    table = PairTable.concatenate(tables)
    found = judge(documents, table, length=length)
    assert found["source"].rows > 4_000
    assert all(found[rule].accuracy < 0.52 for rule in ("source", "language")), found
    assert all(found[rule].accuracy < 0.53 for rule in ("total", "second", "both", "place")), found
    assert (table.label == -1).mean() < 0.01


def test_a_document_alone_in_its_source_gives_full_rows_without_a_label():
    documents = plant(1, name=0, source=0, **BOOKS) + plant(50, name=1_000, source=1, **ARTICLES)
    table = make_pairs(documents, config=make_config(max_seq_length=128), pass_number=0)
    alone = table.first_document == 0
    assert (table.label[alone] == -1).all()
    assert (table.second_document[alone] == -1).all()
    assert (table.second_document[~alone & (table.label >= 0)] > 0).all()
    assert table.num_tokens[alone].mean() > 100
    reasons = count_unlabelled(documents, first_document=table.first_document, label=table.label)
    assert reasons[ALONE, 0] == alone.sum()
    assert reasons[UNPAIRED, 0] == 0


def test_a_place_with_too_little_text_left_is_no_wrong_next():
    """Beside a book, notes of a few words: half the row would be missing, which tells that it is wrong."""
    documents = plant(1, name=0, source=0, **BOOKS) + plant(50, name=1_000, source=0, **NOTES)
    table = make_pairs(documents, config=make_config(max_seq_length=128), pass_number=0)
    book = table.first_document == 0
    assert (table.label[book] == -1).mean() > 0.8
    second = table.second_stop - table.second_start
    assert second[~book & (table.label == 0)].max() <= 24
    reasons = count_unlabelled(documents, first_document=table.first_document, label=table.label)
    assert reasons[UNPAIRED, 0] >= (table.label[book] == -1).sum()


def test_a_document_that_takes_no_part_in_a_pass_lends_its_places():
    documents = plant(2, name=0, source=0, **BOOKS)
    config = make_config(max_seq_length=128)
    table = make_pairs(documents, config=config, pass_number=1, passes=[2, 1])
    assert set(table.first_document.tolist()) == {0}
    assert set(table.second_document[table.label == 1].tolist()) == {1}
    labelled = table.label >= 0  # the second book has 7,325 tokens of places, the first 10,488
    assert labelled.mean() > 0.6
    assert abs((table.label[labelled] == 1).mean() - 0.5) < 0.15


def test_the_larger_of_two_documents_is_paired_as_far_as_the_smaller_has_places():
    documents = plant(2, name=0, source=0, **BOOKS)
    table = make_pairs(documents, config=make_config(max_seq_length=128), pass_number=0)
    negative, labelled = table.label == 1, table.label >= 0
    small = int((table.first_document == 1).sum())
    assert (labelled & (table.first_document == 1)).sum() >= small - 2
    assert abs((labelled & (table.first_document == 0)).sum() - small) <= 2
    places = zip(table.second_document[negative].tolist(), table.second_start[negative].tolist(), strict=True)
    assert max(Counter(places).values()) <= 2


def write(sentences: Sequence[Sequence[int]], *, name: int) -> TokenizedDocument:
    """A document of sentences of token ids, each token a word."""
    ids = [token for sentence in sentences for token in sentence]
    return make_document([[1] * len(sentence) for sentence in sentences], name=name, ids=ids)


def texts_of(documents: Sequence[TokenizedDocument], table: PairTable, row: int) -> tuple[list[int], list[int]]:
    """The tokens of both segments of a row; of the second none if there is none."""
    first, second = (
        documents[number].ids[start:stop].tolist() if number >= 0 else []
        for number, start, stop in (
            (table.first_document[row], table.first_start[row], table.first_stop[row]),
            (table.second_document[row], table.second_start[row], table.second_stop[row]),
        )
    )
    return first, second


LINE = [9, 8, 7, 6, 5, 4]


def test_a_pair_has_no_label_if_every_wrong_next_is_the_true_one():
    """All documents end with the same line: the rows hold whole documents, of one segment."""
    documents = [write([range(10 * n, 10 * n + 5), LINE], name=n) for n in range(10, 50)]
    table = make_pairs(documents, config=make_config(max_seq_length=32), pass_number=0)
    assert (table.label == -1).all()
    assert (table.second_document == -1).all()
    shown = {tuple(texts_of(documents, table, row)[0]) for row in range(len(table))}
    whole = {tuple(document.ids.tolist()) for document in documents}
    assert shown <= whole | {text[:5] for text in whole} | {
        text[5:] for text in whole
    }  # a negative chunk is cut in two
    assert {token for text in shown for token in text} == {token for text in whole for token in text}
    reasons = count_unlabelled(documents, first_document=table.first_document, label=table.label)
    assert reasons == {(UNPAIRED, 0): len(table)}


@pytest.mark.parametrize("common", [0.5, 0.8])
def test_a_line_that_many_documents_share_tells_no_label(common: float):
    """It follows as often as it does not; and what is labelled not next never is what truly follows."""
    count = 2_000
    documents = [
        write(
            [[100 + n] * 5, LINE if n < common * count else [3_000 + n] * 3 + [6_000 + n] * 3],
            name=n,
        )
        for n in range(count)
    ]
    table = make_pairs(documents, config=make_config(max_seq_length=32), pass_number=0)
    follows = Counter()
    for row in np.flatnonzero(table.label >= 0).tolist():
        first, second = texts_of(documents, table, row)
        own = documents[table.first_document[row]].ids.tolist()
        true = own[len(first) :][: len(second)]
        assert own[: len(first)] == first
        assert (second == true) == (table.label[row] == 0)
        follows[int(table.label[row]), second == LINE] += 1
    labelled = sum(follows.values())
    assert labelled == pytest.approx(3 * min(common, 1 - common) * count, rel=0.1)  # half of the texts give two
    assert follows[0, True] + follows[1, False] == pytest.approx(labelled / 2, abs=4 * labelled**0.5 / 2)
    assert follows[1, True] + follows[1, False] == pytest.approx(labelled / 2, abs=4 * labelled**0.5 / 2)
