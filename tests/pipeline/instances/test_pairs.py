"""Pairs: published loop, strict rules, balance, independence of order."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.instances.pairs import REFERENCE, PairTable, make_pairs, pair_document
from pipeline.instances.segments import Corpus, whole_units
from pipeline.tokenizer.tokenizer import TokenizedDocument
from tiny_text import corpora, make_config, make_document

MODES = ("random_document", "sentence_order", "none")


def is_boundary(document: TokenizedDocument, token: int) -> bool:
    return token == document.ids.size or bool(document.word_starts[token])


def longest_word(document: TokenizedDocument) -> int:
    return int(np.diff(np.flatnonzero(document.word_starts), append=document.ids.size).max())


def named(documents: list[TokenizedDocument], table: PairTable) -> list[tuple[object, ...]]:
    names = [document.id for document in documents] + [b"none"]
    rows = zip(
        table.first_document,
        table.first_start,
        table.first_stop,
        table.second_document,
        table.second_start,
        table.second_stop,
        table.label,
        table.ordinal,
        strict=True,
    )
    return [(names[row[0]], *row[1:3], names[row[3]], *row[4:]) for row in rows]


@settings(max_examples=80)
@given(corpora, st.integers(8, 80), st.sampled_from(MODES), st.sampled_from([0.0, 0.1, 0.9]), st.integers(0, 3))
def test_pairs_keep_every_rule(documents, length, mode, short, number):
    config = make_config(max_seq_length=length, max_predictions=2, next_sentence=mode, short_sequence_probability=short)
    table = make_pairs(documents, config=config, pass_number=number)
    assert set(table.first_document.tolist()) == set(range(len(documents))), "a document is lost"
    assert (table.num_tokens <= length).all()
    assert (table.pass_number == number).all()
    run = max(1, (length - 3) // 4)
    for row in range(len(table)):
        first, second = table.first_document[row], table.second_document[row]
        ranges = [(first, table.first_start[row], table.first_stop[row])]
        if second >= 0:
            ranges.append((second, table.second_start[row], table.second_stop[row]))
        for owner, start, stop in ranges:
            document = documents[owner]
            assert 0 <= start < stop <= document.ids.size
            if longest_word(document) <= run:
                assert is_boundary(document, start), "a segment starts inside a word"
                assert is_boundary(document, stop), "a segment ends inside a word"
        label = table.label[row]
        if mode == "none":
            assert (label, second) == (-1, -1)
        elif second < 0:
            assert label == -1
            assert mode == "random_document" or documents[first].word_starts.sum() == 1
        elif mode == "random_document":
            assert (label == 1) == (second != first)
            if label == 0:
                assert table.first_stop[row] <= table.second_start[row]
        else:
            assert first == second
            in_order = table.first_stop[row] <= table.second_start[row]
            assert in_order == (label == 0)
            assert in_order or table.second_stop[row] <= table.first_start[row]


@settings(max_examples=50)
@given(corpora, st.randoms(use_true_random=False), st.sampled_from(MODES))
def test_pairs_do_not_depend_on_the_order_of_documents(documents, rng, mode):
    config = make_config(max_seq_length=32, max_predictions=2, next_sentence=mode)
    shuffled = list(documents)
    rng.shuffle(shuffled)
    expected = named(documents, make_pairs(documents, config=config, pass_number=0))
    assert named(shuffled, make_pairs(shuffled, config=config, pass_number=0)) == expected


def test_passes_and_seeds_give_other_pairs():
    documents = [make_document([[1] * 9] * 30, name=name) for name in range(5)]
    tables = [
        named(documents, make_pairs(documents, config=make_config(max_seq_length=64, seed=seed), pass_number=number))
        for seed, number in ((1, 0), (1, 1), (2, 0))
    ]
    assert tables[0] != tables[1]
    assert tables[0] != tables[2]


@pytest.mark.parametrize(
    ("corpus", "tolerance"),
    [
        ([[[1] * 12] * 40 for _ in range(600)], 0.02),  # long documents
        ([[[1] * 30] * 3 for _ in range(2000)], 0.02),  # the third sentence is often left alone
        ([[[1] * 12] for _ in range(3000)], 0.02),  # a sentence a document: cut in two
        ([[[1] * 200] * 5 for _ in range(600)], 0.02),  # every sentence longer than a row
        ([[[1] * 12] * 40 for _ in range(100)] + [[[1]] for _ in range(100)], 0.05),  # some of a single word
    ],
)
@pytest.mark.parametrize("mode", ["random_document", "sentence_order"])
def test_labels_are_balanced(corpus, tolerance, mode):
    """Half next, half not, for chunks of one sentence too (google-research/bert#125; DeepLearningExamples#421)."""
    documents = [make_document(document, name=name) for name, document in enumerate(corpus)]
    config = make_config(max_seq_length=64, next_sentence=mode)
    table = make_pairs(documents, config=config, pass_number=0)
    labels = table.label[table.label >= 0]
    assert abs(labels.mean() - 0.5) < tolerance


def test_reference_labels_are_not_balanced():
    documents = [make_document([[1] * 12], name=name) for name in range(50)]
    corpus = Corpus(documents, bounds=[whole_units(document) for document in documents])
    pairs = [
        pair
        for index in range(50)
        for pair in pair_document(
            corpus,
            index=index,
            max_seq_length=64,
            short_sequence_probability=0.1,
            next_sentence="random_document",
            rules=REFERENCE,
            rng=random.Random(1),
        )
    ]
    assert {pair.label for pair in pairs} == {1}


@pytest.mark.parametrize("others", [1, 50])
def test_one_long_document_beside_small_ones_takes_no_negative_from_itself(others):
    """As from a one-document corpus (DeepLearningExamples#421; NVIDIA/LDDL and academic-budget-bert (source))."""
    small = [make_document([[1] * 4], name=name) for name in range(2, others + 2)]
    long = [make_document([[1] * 20] * length, name=name) for name, length in enumerate((5000, 40))]
    documents, config = [*long, *small], make_config(max_seq_length=128)
    tables = [make_pairs(documents, config=config, pass_number=number) for number in range(60)]
    for table in tables:
        negative = table.label == 1
        assert (table.first_document != table.second_document)[negative].all()
        assert (table.first_document == table.second_document)[table.label == 0].all()
        assert set(table.first_document.tolist()) == set(range(others + 2))
        places = zip(table.second_document[negative].tolist(), table.second_start[negative].tolist(), strict=True)
        # 40 sentences are not used again and again, or their text would tell; at most two chunks share a place
        assert max(Counter(places).values(), default=0) <= 2
    together = PairTable.concatenate(tables)
    labels, second = together.label, together.second_document
    assert abs((labels == 1).sum() / (labels >= 0).sum() - 0.5) < 0.03
    # the long document follows as often rightly as wrongly, and all small ones that can be paired are
    assert abs((second[labels == 1] == 0).mean() - (second[labels == 0] == 0).mean()) < 0.05
    assert (labels[together.first_document == 1] == -1).mean() < 0.25  # near its end no other has as little left


def test_a_negative_is_never_the_true_next():
    ids = [200, 201, 202, 203, 204, 205, 206, 207]
    documents = [make_document([[1, 1]] * 4, name=name, ids=ids) for name in range(2)]  # same text, other ids
    for number in range(200):
        table = make_pairs(documents, config=make_config(max_seq_length=8, max_predictions=2), pass_number=number)
        for row in np.flatnonzero(table.label == 1).tolist():
            first, second = documents[table.first_document[row]], documents[table.second_document[row]]
            stop = table.first_stop[row]
            negative = second.ids[table.second_start[row] : table.second_stop[row]]
            follows = first.ids[stop : stop + negative.size]
            assert not np.array_equal(negative, follows), "the true next is labelled as not next"


def test_target_length_is_drawn_for_each_pair():
    documents = [make_document([[1] * 5] * 4000, name=name) for name in range(2)]
    table = make_pairs(documents, config=make_config(max_seq_length=128), pass_number=0)
    short = (table.num_tokens[table.label == 0] < 100).mean()
    assert 0.05 < short < 0.12  # 0.1 of the targets are shorter, most of them below 100


def test_truncation_takes_from_both_ends_of_the_longer_segment():
    documents = [make_document([[1] * 60] * 2, name=name) for name in range(60)]
    table = make_pairs(documents, config=make_config(max_seq_length=63, short_sequence_probability=0.0), pass_number=0)
    next_rows = (table.label == 0) & (table.first_stop <= 60) & (table.second_start >= 60)
    front = table.first_start[next_rows]
    assert (table.num_tokens[next_rows] == 63).all()
    assert abs(front.mean() - 15) < 2  # of 60 words, 30 go, half of them in front
    assert 0 < front.std() < 5  # binomial, as one coin a token is


def test_pairs_refuse_what_they_cannot_pair():
    one = make_document([[1, 1], [1]], name=1)
    with pytest.raises(ValueError, match="there are 1 in the bucket"):
        make_pairs([one], config=make_config(), pass_number=0)
    with pytest.raises(ValueError, match="appears twice"):
        make_pairs([one, one], config=make_config(), pass_number=0)
    with pytest.raises(ValueError, match="no tokens"):
        make_pairs([one, make_document([], name=2)], config=make_config(), pass_number=0)
    assert len(make_pairs([one], config=make_config(next_sentence="none"), pass_number=0)) == 1
    assert len(make_pairs([one], config=make_config(next_sentence="sentence_order"), pass_number=0)) == 1


def test_tables_concatenate_and_take():
    documents = [make_document([[1] * 9] * 30, name=name) for name in range(3)]
    tables = [make_pairs(documents, config=make_config(max_seq_length=64), pass_number=n) for n in range(2)]
    both = PairTable.concatenate(tables)
    assert len(both) == sum(map(len, tables))
    order = np.array([len(both) - 1, 0])
    assert both.take(order).pass_number.tolist() == [1, 0]
    assert both.take(order).num_tokens.tolist() == both.num_tokens[order].tolist()
