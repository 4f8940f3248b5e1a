"""Masks: whole words, budget, 80/10/10, specials, and independence of batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import draws
from pipeline.documents import Document
from pipeline.instances import masking
from pipeline.instances.masking import Masks, make_masks, num_to_predict
from pipeline.instances.pairs import make_pairs
from pipeline.instances.rows import Rows, assemble_rows
from pipeline.instances.spans import draw_spans, span_length_shares
from tiny_text import FIRST_ID, corpora, make_config, make_document, make_tokenizer


def mask_rows(rows: Rows, *, config, tokenizer, mask_set: int) -> Masks:
    return make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=[mask_set])[0]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocabulary"), [f"piece{number}" for number in range(9100)])


def rows_of(documents, *, config, tokenizer, number=0) -> Rows:
    pairs = make_pairs(documents, config=config, pass_number=number)
    return assemble_rows(documents, pairs, special=tokenizer.special, seed=config.seed)


def words_of(rows: Rows, row: int) -> list[range]:
    """Token ranges of the words of a row, counted from its [CLS], special tokens left out."""
    begin, end = rows.offsets[row], rows.offsets[row + 1]
    heads = [*np.flatnonzero(rows.word_starts[begin:end]).tolist(), int(end - begin)]
    ids = rows.ids[begin:end]
    return [range(a, b) for a, b in pairwise(heads) if ids[a] >= FIRST_ID]


def entries(masks: Masks, row: int) -> tuple[list[int], list[int]]:
    part = slice(masks.offsets[row], masks.offsets[row + 1])
    return masks.positions[part].tolist(), masks.inputs[part].tolist()


def take_words(words: list[range], *, budget: int, most: int) -> set[int]:
    """The rule in plain Python, for words in the order they are tried."""
    taken: set[int] = set()
    for word in words:
        if len(word) > most or (taken and len(taken) + len(word) > budget) or len(taken) >= budget:
            continue
        taken |= set(word)
    return taken


@settings(max_examples=60)
@given(corpora, st.integers(8, 80), st.integers(1, 20), st.sampled_from(["whole_word", "token"]), st.integers(0, 3))
def test_masks_follow_the_rule_word_by_word(tokenizer, documents, length, most, kind, mask_set):
    most = min(most, length - 2)
    config = make_config(max_seq_length=length, max_predictions=most, masking=kind)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=mask_set)
    keys = draws.derive(rows.keys, mask_set)
    assert len(masks) == len(rows)
    for row in range(len(rows)):
        ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]]
        positions, _ = entries(masks, row)
        budget = min(most, max(1, round(0.15 * ids.size)))
        assert positions == sorted(set(positions))
        assert 1 <= len(positions) <= most
        assert (ids[positions] >= FIRST_ID).all(), "a special token is a target"
        words = words_of(rows, row)
        if kind == "token":
            words = [range(place, place + 1) for word in words for place in word]
        starts = np.array([word[0] for word in words], np.int64)
        priorities = draws.mix((keys[row] ^ masking._ORDER) + draws.counters(starts)) >> np.uint64(32)
        order = sorted(range(len(words)), key=lambda word: (priorities[word], word))
        expected = take_words([words[word] for word in order], budget=budget, most=most)
        if expected:
            assert set(positions) == expected
        else:
            assert len(positions) == budget, "a word longer than max_predictions gives some of its pieces"


def test_a_long_word_drawn_first_is_masked_whole_and_then_no_other(tmp_path):
    """[CLS] let us start pre ##train ##ing the model [SEP]: N = 2, the word has three pieces."""
    pieces = ["let", "us", "start", "pre", "##train", "##ing", "the", "model"]
    tokenizer = make_tokenizer(tmp_path, pieces)
    config = make_config(max_seq_length=32, max_predictions=5, next_sentence="none", validation_fraction=0.0)
    document = tokenizer.tokenize(Document("x", ("let us start pretraining the model",)))
    assert [tokenizer.tokens[index] for index in document.ids] == pieces
    seen = set()
    for number in range(300):
        rows = rows_of([document], config=config, tokenizer=tokenizer, number=number)
        for row in range(len(rows)):
            if rows.offsets[row + 1] - rows.offsets[row] == 10:
                masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=0)
                seen.add(tuple(entries(masks, row)[0]))
    assert (4, 5, 6) in seen, "the word is never masked, because it is long"
    others = seen - {(4, 5, 6)}
    assert all(len(positions) == 2 and not {4, 5, 6} & set(positions) for positions in others)
    assert len(others) == 10  # each pair of the five other words


def test_masks_do_not_depend_on_batches_or_order(tokenizer, monkeypatch):
    documents = [make_document([[1, 2, 1, 3, 1, 1, 1]] * 30, name=name) for name in range(8)]
    config = make_config(max_seq_length=64, max_predictions=10)
    pairs = make_pairs(documents, config=config, pass_number=0)
    whole = assemble_rows(documents, pairs, special=tokenizer.special, seed=config.seed)
    masks = mask_rows(whole, config=config, tokenizer=tokenizer, mask_set=1)
    monkeypatch.setattr(masking, "_BATCH_TOKENS", 100)
    order = np.random.default_rng(1).permutation(len(pairs))
    part = assemble_rows(documents, pairs.take(order), special=tokenizer.special, seed=config.seed)
    other = mask_rows(part, config=config, tokenizer=tokenizer, mask_set=1)
    for row, original in enumerate(order.tolist()):
        assert entries(other, row) == entries(masks, original)
    taken = masks.take(order)
    assert taken.positions.tolist() == other.positions.tolist()
    assert taken.inputs.tolist() == other.inputs.tolist()
    assert taken.offsets.tolist() == other.offsets.tolist()


def test_words_are_replaced_80_10_10_and_never_by_special_or_unused_ids(tokenizer):
    """Drawn per word: a masked word has all its pieces masked, kept or random (google-research/bert#910)."""
    documents = [make_document([[2, 1, 3, 1, 2, 1]] * 200, name=name) for name in range(20)]
    config = make_config(max_seq_length=128, max_predictions=20)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    counts = np.zeros(3)
    replacements: list[int] = []
    for mask_set in range(8):
        masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=mask_set)
        for row in range(len(rows)):
            ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]]
            inputs = dict(zip(*entries(masks, row), strict=True))
            for word in words_of(rows, row):
                if word[0] not in inputs:
                    assert not set(word) & set(inputs), "a word is masked in part"
                    continue
                put = [inputs[position] for position in word]
                if put == [tokenizer.special.mask] * len(word):
                    counts[0] += 1
                elif put == ids[word.start : word.stop].tolist():
                    counts[1] += 1
                else:
                    assert tokenizer.special.mask not in put
                    counts[2] += 1
                    replacements += put
    assert np.abs(counts / counts.sum() - [0.8, 0.1, 0.1]).max() < 0.01
    assert counts.sum() > 10_000
    assert min(replacements) >= FIRST_ID, "special or unused id as replacement (transformers#15342)"
    assert len(set(replacements)) > 2000


def test_mask_rate_and_positions_are_even(tokenizer):
    documents = [make_document([[1] * 20] * 400, name=name) for name in range(5)]
    config = make_config(max_seq_length=128, max_predictions=40, short_sequence_probability=0.0)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    seen = np.zeros(128)
    for mask_set in range(20):
        masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=mask_set)
        seen += np.bincount(masks.positions, minlength=128)
    rate = seen.sum() / 20 / rows.ids.size
    assert abs(rate - 0.15) < 0.003
    assert seen[0] == 0
    position = np.arange(rows.ids.size) - np.repeat(rows.offsets[:-1], np.diff(rows.offsets))
    share = seen[1:125] / np.bincount(position[rows.ids >= FIRST_ID], minlength=128)[1:125] / 20
    assert np.abs(share / share.mean() - 1).max() < 0.15


def test_mask_sets_differ(tokenizer):
    documents = [make_document([[1] * 20] * 40, name=name) for name in range(5)]
    config = make_config(max_seq_length=128)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    sets = [mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=number).positions for number in range(3)]
    assert not np.array_equal(sets[0], sets[1])
    assert not np.array_equal(sets[1], sets[2])


def test_a_row_of_unknown_words_has_a_target_nevertheless(tokenizer):
    unk = tokenizer.special.unk
    documents = [make_document([[1] * 6], name=name, ids=[unk] * 6) for name in range(2)]
    config = make_config(max_seq_length=16, max_predictions=2)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=0)
    assert (np.diff(masks.offsets) >= 1).all()
    row = np.repeat(np.arange(len(rows)), np.diff(masks.offsets))
    assert (rows.ids[rows.offsets[row] + masks.positions] == unk).all()


def test_unknown_words_are_no_targets_beside_others(tokenizer):
    unk = tokenizer.special.unk
    documents = [make_document([[1] * 20], name=name, ids=[unk, FIRST_ID + name] * 10) for name in range(2)]
    config = make_config(max_seq_length=64)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=0)
    row = np.repeat(np.arange(len(rows)), np.diff(masks.offsets))
    assert unk not in rows.ids[rows.offsets[row] + masks.positions]


def test_budget_rounds_as_published():
    lengths = np.array([1, 10, 30, 50, 128, 512])
    found = num_to_predict(lengths, probability=0.15, max_predictions=20)
    assert found.tolist() == [1, 2, 4, 8, 19, 20]  # 1.5 -> 2, 4.5 -> 4, 7.5 -> 8: halves to even


@settings(max_examples=40)
@given(corpora, st.integers(8, 80), st.sampled_from(["random_document", "sentence_order", "none"]))
def test_rows_are_cls_a_sep_b_sep(tokenizer, documents, length, mode):
    config = make_config(max_seq_length=length, max_predictions=2, next_sentence=mode)
    pairs = make_pairs(documents, config=config, pass_number=0)
    rows = assemble_rows(documents, pairs, special=tokenizer.special, seed=1)
    cls, sep = [tokenizer.special.cls], [tokenizer.special.sep]
    for row in range(len(rows)):
        first = documents[pairs.first_document[row]]
        a = first.ids[pairs.first_start[row] : pairs.first_stop[row]].tolist()
        expected = cls + a + sep
        assert rows.first_length[row] == len(expected)
        assert rows.document_id[row].tobytes() == first.id
        starts = [True, True]
        if pairs.second_document[row] >= 0:
            second = documents[pairs.second_document[row]]
            b = second.ids[pairs.second_start[row] : pairs.second_stop[row]].tolist()
            expected += b + sep
            assert rows.second_document_id[row].tobytes() == second.id
            starts = [True, True, True, True]
        else:
            assert rows.second_document_id[row].tobytes() == bytes(16)
        assert rows.has_second[row] == (len(starts) == 4)
        part = slice(rows.offsets[row], rows.offsets[row + 1])
        assert rows.ids[part].tolist() == expected
        found = rows.word_starts[part]
        length_1 = int(rows.first_length[row])
        heads = [0, 1, length_1 - 1, len(expected) - 1] + ([length_1] if rows.has_second[row] else [])
        assert found[heads].all(), "a word crosses [SEP]"


def test_spans_have_the_published_lengths():
    """Geometric with p = 0.2, at most 10, normalised: mean 3.8 words (SpanBERT, section 3.1)."""
    shares = span_length_shares()
    assert abs(shares.sum() - 1) < 1e-12
    assert abs((shares * np.arange(1, 11)).sum() - 3.8) < 0.02
    words = draws.mix(draws.counters(np.arange(400_000)))
    joined = np.ones(words.size, np.bool_)
    joined[::100] = False
    heads = draw_spans(words, joined=joined)
    assert (heads <= np.arange(words.size)).all()
    assert (heads // 100 == np.arange(words.size) // 100).all(), "a span crosses the end of a run"
    first, lengths = np.unique(heads, return_counts=True)
    away = first % 100 < 85  # spans that the end of the run cannot cut
    found = np.bincount(lengths[away], minlength=11)[1:] / away.sum()
    assert np.abs(found - shares).max() < 0.006


def test_span_masks_are_runs_of_whole_words_with_one_draw_each(tokenizer):
    documents = [make_document([[1, 2, 1, 3, 1, 1, 1]] * 60, name=name) for name in range(20)]
    config = make_config(max_seq_length=256, masking="span", short_sequence_probability=0.0)
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=0)
    runs = []
    for row in range(len(rows)):
        positions, _ = entries(masks, row)
        taken = set(positions)
        number = [bool(set(word) & taken) for word in words_of(rows, row)]
        assert all(set(word) <= taken for word in words_of(rows, row) if set(word) & taken), "a word is cut"
        text = "".join("x" if masked else " " for masked in number)
        runs += [len(run) for run in text.split()]
        budget = min(config.predictions, max(1, round(0.15 * (rows.offsets[row + 1] - rows.offsets[row]))))
        assert len(positions) <= budget
    assert np.mean(runs) > 2.5, "the masked words are not in spans"
    assert abs(masks.positions.size / rows.ids.size - 0.15) < 0.01
    share = (masks.inputs == tokenizer.special.mask).mean()
    assert 0.72 < share < 0.88


def test_replacement_can_be_drawn_for_each_piece(tokenizer):
    documents = [make_document([[3]] * 100, name=name) for name in range(30)]
    config = make_config(max_seq_length=128, replacement_draw="piece")
    rows = rows_of(documents, config=config, tokenizer=tokenizer)
    masks = mask_rows(rows, config=config, tokenizer=tokenizer, mask_set=0)
    is_mask = (masks.inputs == tokenizer.special.mask)[: masks.inputs.size // 3 * 3].reshape(-1, 3)
    assert abs(is_mask.mean() - 0.8) < 0.03
    assert abs(is_mask.all(axis=1).mean() - 0.512) < 0.05  # 0.8 ** 3: pieces are independent
