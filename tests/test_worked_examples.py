"""The examples that papers and textbooks print, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_text import make_config, make_tokenizer

from pipeline.documents import Document
from pipeline.instances import Instances
from pipeline.masking import make_masks
from pipeline.rows import assemble_rows
from pipeline.wordpieces import WordTokenizer


@pytest.fixture(scope="module")
def uncased(shared_data):
    return WordTokenizer.from_path(shared_data / "bert" / "bert-base-uncased-vocab.txt", lowercase=True)


def tokens_of(tokenizer: WordTokenizer, text: str) -> list[str]:
    return [tokenizer.tokens[index] for index in tokenizer.tokenize(Document("x", (text,))).ids]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("pretraining", ["pre", "##train", "##ing"]),
        ("embeddings", ["em", "##bed", "##ding", "##s"]),
        (
            "Let us start pretraining the model.",
            ["let", "us", "start", "pre", "##train", "##ing", "the", "model", "."],
        ),
        ("he likes playing", ["he", "likes", "playing"]),
    ],
)
def test_wordpieces(uncased, text, pieces):
    assert tokens_of(uncased, text) == pieces
    joined = " ".join(pieces).replace(" ##", "").replace(" .", ".")
    assert joined == text.lower(), "pieces join back at '##'"
    assert uncased.backend.decode([uncased.tokens.index(piece) for piece in pieces]) == text.lower()


def test_my_dog_is_cute(tmp_path):
    """[CLS] my dog is cute [SEP] he likes play ##ing [SEP]: segments, and dog -> [MASK], he -> king, play kept.

    All three are targets with their own labels, and nothing else is.
    """
    words = ["my", "dog", "is", "cute", "he", "likes", "play", "##ing", "king", "store", "gallon"]
    tokenizer = make_tokenizer(tmp_path, words)
    config = make_config(
        max_seq_length=16,
        max_predictions=3,
        masking="token",
        masked_probability=0.25,
        short_sequence_probability=0.0,
        passes=300,
    )
    texts = [("my dog is cute", "he likes playing"), ("store gallon store", "gallon store")]
    documents = [tokenizer.tokenize(Document("x", text)) for text in texts]
    pairs = Instances(documents, config=config, tokenizer=tokenizer).pairs
    chosen = np.flatnonzero((pairs.label == 0) & (pairs.first_document == 0) & (pairs.first_stop == 4))
    rows = assemble_rows(documents, pairs.take(chosen), special=tokenizer.special, seed=config.seed)
    assert len(rows) > 100
    first = rows.ids[: rows.offsets[1]]
    sentence = ["[CLS]", "my", "dog", "is", "cute", "[SEP]", "he", "likes", "play", "##ing", "[SEP]"]
    assert [tokenizer.tokens[index] for index in first] == sentence
    assert (rows.first_length == 6).all(), "segment ids are 0 up to the first [SEP] and 1 after it"
    place = [2, 6, 8]
    assert [sentence[position] for position in place] == ["dog", "he", "play"]
    put = [tokenizer.tokens.index(token) for token in ("[MASK]", "king", "play")]
    seen = 0
    for masks in make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=range(2000)):
        positions, inputs = masks.positions.reshape(-1, 3), masks.inputs.reshape(-1, 3)  # round(0.25 x 11) = 3
        seen += int(((positions == place).all(axis=1) & (inputs == put).all(axis=1)).sum())
    assert seen > 0, "the printed example is never drawn"


def test_next_and_not_next(tmp_path):
    """The man went to the store: he bought a gallon of milk (next), or dogs are cute (not next)."""
    words = [
        "the",
        "man",
        "went",
        "to",
        "store",
        "he",
        "bought",
        "a",
        "gallon",
        "of",
        "milk",
        "dogs",
        "are",
        "cute",
        "penguins",
        "fly",
    ]
    tokenizer = make_tokenizer(tmp_path, words)
    store, milk, dogs = "the man went to the store", "he bought a gallon of milk", "dogs are cute"
    documents = [tokenizer.tokenize(Document("x", text)) for text in ((store, milk), (dogs, "penguins fly"))]
    config = make_config(max_seq_length=32, passes=60, short_sequence_probability=0.0)
    instances = Instances(documents, config=config, tokenizer=tokenizer)
    rows, _ = instances.batch(np.arange(len(instances)))
    pairs = set()
    for row in range(len(rows)):
        ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]]
        text = " ".join(tokenizer.tokens[index] for index in ids)
        pairs.add((text, int(rows.label[row])))
    assert (f"[CLS] {store} [SEP] {milk} [SEP]", 0) in pairs
    assert (f"[CLS] {store} [SEP] {dogs} penguins fly [SEP]", 1) in pairs
    assert not any(text == f"[CLS] {store} [SEP] {milk} [SEP]" and label == 1 for text, label in pairs)
    assert all((dogs in text) != (store in text or milk in text) for text, label in pairs if label == 0)


def test_sentence_order_swaps_the_two(tmp_path):
    tokenizer = make_tokenizer(tmp_path, ["a", "b"])
    documents = [tokenizer.tokenize(Document("x", ("a", "b")))]
    config = make_config(max_seq_length=8, max_predictions=1, passes=50, next_sentence="sentence_order")
    instances = Instances(documents, config=config, tokenizer=tokenizer)
    rows, _ = instances.batch(np.arange(len(instances)))
    found = set()
    for row in range(len(rows)):
        ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]]
        found.add((" ".join(tokenizer.tokens[index] for index in ids), int(rows.label[row])))
    assert found == {("[CLS] a [SEP] b [SEP]", 0), ("[CLS] b [SEP] a [SEP]", 1)}


def test_single_segments_have_no_label(tmp_path):
    tokenizer = make_tokenizer(tmp_path, ["a", "b"])
    documents = [tokenizer.tokenize(Document("x", ("a", "b")))]
    config = make_config(max_seq_length=8, max_predictions=1, next_sentence="none", short_sequence_probability=0.0)
    rows, _ = Instances(documents, config=config, tokenizer=tokenizer).batch(np.arange(1))
    assert [tokenizer.tokens[index] for index in rows.ids] == ["[CLS]", "a", "b", "[SEP]"]
    assert rows.label.tolist() == [-1]
    assert rows.first_length.tolist() == [4]
