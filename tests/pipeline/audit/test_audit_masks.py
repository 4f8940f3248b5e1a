"""Faults of masks: positions, targets, replacements, whole words, budget, shares; each planted and found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit_sets import CLS, FIRST_PIECE, FIRST_WORD, MASK, PAD, UNK, faults, first, long_row, shard_name
from corpora import build_text, make_documents, write_vocabulary
from pipeline.audit.findings import Place
from pipeline.audit.run import audit
from planting import Rows, edit_rows, mend


def test_mask_sets_and_positions(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        del rows[1]["masked_positions"][1], rows[1]["masked_inputs"][1]
        del rows[2]["masked_inputs"][0][0]
        rows[3]["masked_positions"][0], rows[3]["masked_inputs"][0] = [], []
        rows[5]["masked_positions"][1][-1] = rows[5]["num_tokens"]
        rows[6]["masked_positions"][0].reverse()
        rows[7]["masked_positions"][0][1] = rows[7]["masked_positions"][0][0]

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found)["mask sets"] == 3
    assert first(found, "mask sets") == (Place(shard_name(copied, 0), 0, 1), "not 2 mask sets")
    assert faults(found)["mask positions"] == 3
    assert first(found, "mask positions")[0] == Place(shard_name(copied, 0), 0, 5)


def test_more_than_max_predictions(copied: Path) -> None:
    mend(copied, max_predictions=5)
    found = audit(copied, workers=1)
    assert faults(found)["max predictions"] > 100
    assert "more than 5 positions" in first(found, "max predictions")[1]


def set_masks(row: dict[str, Any], entries: dict[int, int], *, number: int = 0) -> None:
    row["masked_positions"][number] = sorted(entries)
    row["masked_inputs"][number] = [entries[position] for position in sorted(entries)]


def test_special_tokens_as_targets_and_replacements(copied: Path) -> None:
    """The random replacement is [PAD] (transformers#15342)."""

    def plant(rows: Rows) -> None:
        rows[2]["masked_positions"][0] = [0, *rows[2]["masked_positions"][0][1:]]
        rows[3]["input_ids"][rows[3]["masked_positions"][1][0]] = UNK
        for number, token in ((5, PAD), (6, CLS), (7, UNK)):
            rows[number]["masked_inputs"][0][0] = token

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found)["special targets"] == 2
    assert first(found, "special targets") == (Place(shard_name(copied, 0), 0, 2), "a special token is a target")
    assert faults(found)["special replacements"] == 3
    assert first(found, "special replacements")[1].startswith("[PAD] is the replacement at position")


def test_unused_ids_as_replacement(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path / "vocab.txt")
    with open(vocabulary, "a", encoding="ascii") as stream:
        stream.write("[unused0]\n")
    build_text(tmp_path, make_documents(40))

    def plant(rows: Rows) -> None:
        rows[2]["masked_inputs"][1][0] = 145

    edit_rows(tmp_path / "out", plant)
    found = audit(tmp_path / "out", workers=1)
    assert first(found, "special replacements")[1].startswith("[unused0] is the replacement at position")


def pieces_of(row: dict[str, Any]) -> list[list[int]]:
    """Positions of each word."""
    words: list[list[int]] = []
    for position, token in enumerate(row["input_ids"]):
        if token >= FIRST_PIECE and position != row["first_length"]:
            words[-1].append(position)
        elif token >= FIRST_WORD:
            words.append([position])
    return words


def test_words_cut_by_masks(copied: Path) -> None:
    """A word is masked in part (google-research/bert#910)."""

    def plant(rows: Rows) -> None:
        for number in (4, 9):
            words = [word for word in pieces_of(rows[number]) if len(word) == 3]
            entries = dict(zip(rows[number]["masked_positions"][0], rows[number]["masked_inputs"][0], strict=True))
            word = words[0]
            entries.update(dict.fromkeys(word, MASK))
            del entries[word[1]]
            set_masks(rows[number], entries)

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found)["whole words"] == 2
    assert first(found, "whole words") == (Place(shard_name(copied, 0), 0, 4), "only part of a word is masked")


def test_pieces_of_a_word_drawn_apart(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        for row in rows:
            for position, token in zip(row["masked_positions"][0], row["masked_inputs"][0], strict=True):
                word = next(word for word in pieces_of(row) if position in word)
                if len(word) == 3 and token == MASK:
                    at = row["masked_positions"][0].index(word[1])
                    row["masked_inputs"][0][at] = row["input_ids"][word[1]]
                    return
        raise AssertionError

    edit_rows(copied, plant)
    found = audit(copied, workers=1)
    assert faults(found) == {"one draw a word": 1}


def test_the_budget_is_exact(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        few = rows[long_row(rows)]
        entries = dict(zip(few["masked_positions"][0], few["masked_inputs"][0], strict=True))
        lonely = next(word for word in pieces_of(few) if set(word) <= entries.keys())
        for position in lonely:
            del entries[position]
        set_masks(few, entries)
        many = rows[long_row(rows, after=long_row(rows) + 1)]
        entries = dict(zip(many["masked_positions"][1], many["masked_inputs"][1], strict=True))
        spare = min((word for word in pieces_of(many) if not set(word) & entries.keys()), key=len)
        entries.update(dict.fromkeys(spare, MASK))
        set_masks(many, entries, number=1)

    edit_rows(copied, plant)
    assert faults(audit(copied, workers=1)) == {"mask rate": 2}


def test_shares_of_80_10_10(copied: Path) -> None:
    def plant(rows: Rows) -> None:
        for row in rows:
            for positions, inputs in zip(row["masked_positions"], row["masked_inputs"], strict=True):
                for word in pieces_of(row):
                    taken = [positions.index(position) for position in word if position in positions]
                    if word[0] % 12 == 0 and all(inputs[at] == MASK for at in taken):
                        for at in taken:
                            inputs[at] = row["input_ids"][positions[at]]

    for index in range(4):
        edit_rows(copied, plant, index=index)
    found = audit(copied, workers=1)
    assert faults(found) == {"80/10/10": 2}
    assert "% kept, expected 10.07" in first(found, "80/10/10")[1]
