"""Reference mode: the published instances, line for line, and the same loop in a build."""

from __future__ import annotations

import lzma

import numpy as np
import pytest

from pipeline.instances.bucket import Instances
from pipeline.instances.reference import main, read_files
from tiny_text import FIRST_ID, make_config, make_document, make_tokenizer

GOLDEN = [(length, most, kind) for length, most in ((128, 20), (512, 77)) for kind in ("token", "wwm")]


@pytest.mark.parametrize(("length", "most", "kind"), GOLDEN)
def test_golden_instances(shared_data, capsys, length, most, kind):
    bert = shared_data / "bert"
    name = f"instances-len{length}-pred{most}-dup2-seed12345-{kind}.jsonl.xz"
    arguments = [
        str(bert / "sample_text.txt"),
        str(bert / "golden-instances" / "novels-sentences.txt"),
        *("--vocab", str(bert / "bert-base-uncased-vocab.txt"), "--dupe-factor", "2", "--seed", "12345"),
        *("--max-seq-length", str(length), "--max-predictions", str(most)),
        *(["--whole-word"] if kind == "wwm" else []),
    ]
    assert main(arguments) == 0
    with lzma.open(bert / "golden-instances" / name, "rt", encoding="utf-8") as file:
        assert capsys.readouterr().out == file.read()


@pytest.fixture
def tokenizer(tmp_path):
    return make_tokenizer(tmp_path, [f"piece{number}" for number in range(9099)] + ["##piece"])


def rows_by_name(instances: Instances) -> list[tuple[object, ...]]:
    rows, masks = instances.batch(np.arange(len(instances)))
    return [
        (
            rows.document_id[row].tobytes(),
            int(rows.pass_number[row]),
            rows.ids[rows.offsets[row] : rows.offsets[row + 1]].tolist(),
            int(rows.label[row]),
            *(
                part[made.offsets[row] : made.offsets[row + 1]].tolist()
                for made in masks
                for part in (made.positions, made.inputs)
            ),
        )
        for row in range(len(rows))
    ]


@pytest.mark.parametrize("mode", ["reference", "strict"])
def test_a_bucket_gives_the_same_rows_in_any_order(tokenizer, mode):
    documents = [make_document([[1, 2, 1, 1, 3]] * 12, name=name) for name in range(6)]
    config = make_config(mode=mode, max_seq_length=64, max_predictions=10, passes=2)
    expected = rows_by_name(Instances(documents, config=config, tokenizer=tokenizer))
    found = rows_by_name(Instances(documents[::-1], config=config, tokenizer=tokenizer))
    assert found == expected
    assert {row[1] for row in found} == {0, 1}


def test_batches_give_the_rows_asked_for(tokenizer):
    documents = [make_document([[1, 2, 1, 1, 3]] * 12, name=name) for name in range(6)]
    for mode, sets in (("strict", 3), ("reference", 1)):
        config = make_config(mode=mode, max_seq_length=64, passes=2, masks_per_pair=sets)
        instances = Instances(documents, config=config, tokenizer=tokenizer)
        every = rows_by_name(instances)
        order = np.random.default_rng(1).permutation(len(instances))
        rows, masks = instances.batch(order[:5])
        assert len(masks) == sets
        for place, row in enumerate(order[:5].tolist()):
            assert rows.ids[rows.offsets[place] : rows.offsets[place + 1]].tolist() == every[row][2]
            for number, made in enumerate(masks):
                part = slice(made.offsets[place], made.offsets[place + 1])
                assert made.positions[part].tolist() == every[row][4 + 2 * number]


def test_reference_keeps_its_quirks(tokenizer):
    """Labels above 50% random, replacements from the whole vocabulary, pieces drawn one by one."""
    documents = [make_document([[1, 2, 1, 3]] * 6, name=name) for name in range(300)]
    config = make_config(mode="reference", max_seq_length=32, max_predictions=6)
    instances = Instances(documents, config=config, tokenizer=tokenizer)
    rows, (masks,) = instances.batch(np.arange(len(instances)))
    assert 0.52 < rows.label.mean() < 0.7
    row = np.repeat(np.arange(len(rows)), np.diff(masks.offsets))
    original = rows.ids[rows.offsets[row] + masks.positions]
    changed = (masks.inputs != original) & (masks.inputs != tokenizer.special.mask)
    assert masks.inputs[changed].min() < FIRST_ID
    assert abs((masks.inputs == tokenizer.special.mask).mean() - 0.8) < 0.02


def test_files_and_blank_lines(tmp_path):
    """Blank lines end documents, the end of a file does not: as published."""
    tokenizer = make_tokenizer(tmp_path, ["a", "b", "c"])
    (tmp_path / "1.txt").write_text("a\n \na b\n", encoding="utf-8")
    (tmp_path / "2.txt").write_text("c\n\n\n\u200b\n", encoding="utf-8")
    found = read_files([str(tmp_path / "1.txt"), str(tmp_path / "2.txt")], tokenizer=tokenizer)
    assert [[tokenizer.tokens[index] for index in document.ids] for document in found] == [["a"], ["a", "b", "c"]]


def test_bad_input_is_refused(tmp_path, capsys):
    make_tokenizer(tmp_path, ["a"])
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    vocabulary = str(tmp_path / "vocab.txt")
    rest = ["--vocab", vocabulary, "--max-predictions", "2", "--dupe-factor", "1", "--seed", "1", "--max-seq-length"]
    for name, length, message in (
        ("missing.txt", "16", "no such file"),
        ("latin.txt", "16", "byte 3 is not UTF-8"),
        ("empty.txt", "16", "no document with a token"),
        ("vocab.txt", "4", "at least 5"),
    ):
        assert main([str(tmp_path / name), *rest, length]) == 2
        assert message in capsys.readouterr().err


def test_whole_words_without_word_pieces_are_refused(tmp_path):
    documents = [make_document([[1, 2, 1]] * 3, name=name) for name in range(2)]
    tokenizer = make_tokenizer(tmp_path, ["a", "b"])
    with pytest.raises(ValueError, match="vocabulary has none"):
        Instances(documents, config=make_config(mode="reference"), tokenizer=tokenizer)
