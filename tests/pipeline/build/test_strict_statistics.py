"""Strict mode by counting: every draw has the share that its rule says. Fixed seed; tolerance stated at each count.

Bounds are five standard deviations of the draw counted, unless said otherwise. What other files count: balance of
labels, target length and truncation (test_pairs), 80/10/10, mask rate and positions (test_masking).
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from corpora import build_text, make_config, make_documents, write_text
from pipeline.build.recipe import build
from pipeline.instances.masking import make_masks
from pipeline.instances.pairs import make_pairs
from pipeline.instances.rows import assemble_rows
from tiny_text import FIRST_ID, make_document, make_tokenizer
from tiny_text import make_config as make_tiny_config


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocabulary"), [f"piece{number}" for number in range(9100)])


def assert_share(count: float, total: float, probability: float, *, deviations: float = 5.0) -> None:
    bound = deviations * math.sqrt(probability * (1 - probability) / total)
    assert abs(count / total - probability) < bound, (count / total, probability, bound)


def masked_rows(tokenizer, sentences, *, documents=8, sets=16, **values):
    made = [make_document(sentences, name=name) for name in range(documents)]
    config = make_tiny_config(**values)
    rows = assemble_rows(
        made, make_pairs(made, config=config, pass_number=0), special=tokenizer.special, seed=config.seed
    )
    return rows, make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=range(sets))


@pytest.mark.parametrize("masking", ["whole_word", "token", "span"])
def test_the_mask_rate_is_that_of_the_setting(tokenizer, masking):
    """15% of the tokens of rows of mixed words, within 0.2%: a word too many now makes up for one that did not fit."""
    rows, sets = masked_rows(tokenizer, [[1, 2, 1, 3, 1, 1, 4, 1]] * 60, max_seq_length=128, masking=masking)
    rate = sum(masks.positions.size for masks in sets) / rows.ids.size / len(sets)
    assert abs(rate - 0.15) < 0.002


def test_words_of_every_length_are_masked(tokenizer):
    """No word is unmaskable because of its length: of 10 words in a row each is drawn first equally often.

    A word of 6 pieces passes 15% of the row, here 5 of 32 tokens: it is masked where it is first, a tenth of the time;
    the published rule never masks it.
    """
    values = {"max_seq_length": 32, "max_predictions": 8, "short_sequence_probability": 0.0, "next_sentence": "none"}
    rows, sets = masked_rows(tokenizer, [[1, 6, 1, 1, 6]] * 60, sets=64, **values)
    starts = np.flatnonzero(rows.word_starts)
    lengths = np.diff(starts, append=rows.ids.size)
    text = rows.ids[starts] >= FIRST_ID
    masked = np.zeros(rows.ids.size, np.int64)
    for masks in sets:
        row = np.repeat(np.arange(len(rows)), np.diff(masks.offsets))
        masked[rows.offsets[row] + masks.positions] += 1
    whole_rows = np.repeat(np.diff(rows.offsets) == 32, np.diff(rows.offsets))[starts]
    long = starts[text & (lengths == 6) & whole_rows]
    assert long.size * len(sets) > 10_000
    assert_share(masked[long].sum(), long.size * len(sets), 1 / 10)
    assert (masked[long] == masked[long + 5]).all(), "all pieces or none"


def test_mask_sets_are_drawn_apart(tokenizer):
    """Two sets share as many positions as chance makes them: 15% of the words of one are in the other."""
    values = {"max_seq_length": 128, "max_predictions": 40, "short_sequence_probability": 0.0}
    rows, sets = masked_rows(tokenizer, [[1] * 20] * 80, sets=8, **values)
    both = total = 0
    taken = []
    for masks in sets:
        row = np.repeat(np.arange(len(rows)), np.diff(masks.offsets))
        taken.append(np.zeros(rows.ids.size, np.bool_))
        taken[-1][rows.offsets[row] + masks.positions] = True
    for first, second in pairwise(taken):
        both += int((first & second).sum())
        total += int(first.sum())
    assert_share(both, total, float(taken[0].sum()) / float((rows.ids >= FIRST_ID).sum()))


def test_random_replacements_are_even_over_the_vocabulary(tokenizer):
    """Each of 13 equal parts of the ids allowed gets its share."""
    rows, sets = masked_rows(tokenizer, [[1] * 20] * 200, documents=16, max_seq_length=128)
    put = []
    for masks in sets:
        row = np.repeat(np.arange(len(rows)), np.diff(masks.offsets))
        original = rows.ids[rows.offsets[row] + masks.positions]
        put.append(masks.inputs[(masks.inputs != original) & (masks.inputs != tokenizer.special.mask)])
    found = np.concatenate(put).astype(np.int64) - FIRST_ID
    assert found.size > 5000
    assert found.min() >= 0
    for count in np.bincount(found // 700, minlength=13).tolist():
        assert_share(count, found.size, 1 / 13)


def test_the_first_segment_takes_a_uniform_part_of_the_chunk():
    """A = the first k of n sentences, k uniform in [1, n - 1]; here n = 6, in pairs of A and its true next."""
    documents = [make_document([[1] * 10] * 6, name=name) for name in range(6000)]
    config = make_tiny_config(max_seq_length=63, short_sequence_probability=0.0)
    table = make_pairs(documents, config=config, pass_number=0)
    whole = (table.label == 0) & (table.ordinal == 0)
    sizes = np.bincount(table.first_stop[whole] // 10, minlength=6)
    assert sizes[0] == 0
    for count in sizes[1:6].tolist():
        assert_share(count, float(sizes.sum()), 1 / 5)


def test_negatives_come_evenly_from_all_other_documents():
    documents = [make_document([[1] * 5] * 8, name=name) for name in range(6)]
    config = make_tiny_config(max_seq_length=64, short_sequence_probability=0.0)  # at most 4 tokens are cut off
    counts = np.zeros((6, 6))
    for number in range(400):
        table = make_pairs(documents, config=config, pass_number=number)
        negative = table.label == 1
        np.add.at(counts, (table.first_document[negative], table.second_document[negative]), 1)
    assert (np.diag(counts) == 0).all()
    for row in range(6):
        for column in range(6):
            if row != column:
                assert_share(counts[row, column], counts[row].sum(), 1 / 5)


def test_negatives_begin_where_true_nexts_do():
    documents = [make_document([[1] * 5] * 8, name=name) for name in range(3000)]
    config = make_tiny_config(max_seq_length=64, short_sequence_probability=0.0)
    table = make_pairs(documents, config=config, pass_number=0)
    starts = [np.bincount(table.second_start[table.label == label] // 5, minlength=8) for label in (0, 1)]
    assert starts[0][0] == starts[1][0] == 0, "nothing comes before the first sentence of a document"
    for true, wrong in zip(*(each[1:].tolist() for each in starts), strict=True):
        assert_share(wrong, starts[1].sum(), true / starts[0].sum())


def test_short_targets_are_a_tenth_and_uniform():
    """With probability 0.1 a target is uniform in [2, room]: here of single segments."""
    documents = [make_document([[1]] * 3000, name=name) for name in range(40)]
    config = make_tiny_config(max_seq_length=66, next_sentence="none")
    table = make_pairs(documents, config=config, pass_number=0)
    lengths = (table.first_stop - table.first_start)[table.first_stop < 3000]  # the last of a document is what is left
    short = lengths[lengths < 64]
    assert_share(short.size, lengths.size, 0.1 * 62 / 63)
    assert short.min() == 2
    for part in range(2):
        assert_share(int(((short - 2) // 31 == part).sum()), short.size, 1 / 2)


def test_the_end_of_a_file_ends_a_document(tmp_path):
    """Not so as published: there the last document of a file and the first of the next are one."""
    documents = make_documents(12)
    for number in range(0, 12, 3):
        write_text(tmp_path / "text" / f"{number}.txt", documents[number : number + 3])
    config = make_config(tmp_path, sources=[{"kind": "text", "path": str(tmp_path / "text")}])
    manifest = build(config, say=lambda line: None)
    assert manifest.statistics["splits"]["train"]["documents"] == 12
    one = build_text(tmp_path / "one", documents)
    assert [shard.sha256 for shard in one.shards] == [shard.sha256 for shard in manifest.shards]
