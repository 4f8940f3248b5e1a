"""The examples that papers and textbooks print, by hand."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.build.write_shard import rows_to_table
from pipeline.dataset.manifest import Special, footer_sha256
from pipeline.dataset.schema import sentence_pair_schema
from pipeline.documents import Document
from pipeline.instances.bucket import Instances
from pipeline.instances.masking import make_masks
from pipeline.instances.pairs import make_pairs
from pipeline.instances.rows import assemble_rows
from pipeline.tokenizer.tokenizer import WordTokenizer
from tiny_text import make_config, make_tokenizer
from trainer.data.micro_batch import MicroBatchShape
from trainer.data.packing import RowRange, join_ranges
from trainer.data.packing import Rows as BlockRows
from trainer.data.row_groups import RowGroupSlice, read_slice
from trainer.model.batch import to_batch


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


DOG = ["[CLS]", "my", "dog", "is", "cute", "[SEP]", "he", "likes", "play", "##ing", "[SEP]"]


@pytest.fixture(scope="module")
def dog(tmp_path_factory):
    """The pair in which dog, he and play are drawn, as [MASK], king and itself: (tokenizer, row, masks)."""
    words = ["my", "dog", "is", "cute", "he", "likes", "play", "##ing", "king", "store", "gallon"]
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("dog"), words)
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
    put = [tokenizer.tokens.index(token) for token in ("[MASK]", "king", "play")]
    for number in range(2000):
        (masks,) = make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=[number])
        positions, inputs = masks.positions.reshape(-1, 3), masks.inputs.reshape(-1, 3)  # round(0.25 x 11) = 3
        found = np.flatnonzero((positions == [2, 6, 8]).all(axis=1) & (inputs == put).all(axis=1))
        if found.size:
            return tokenizer, *only_row(pairs.take(chosen), documents, int(found[0]), config, tokenizer, number)
    raise AssertionError("the printed example is never drawn")


def only_row(pairs, documents, row, config, tokenizer, number):
    rows = assemble_rows(documents, pairs.take(np.array([row])), special=tokenizer.special, seed=config.seed)
    return rows, make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=[number])[0]


def test_my_dog_is_cute_as_a_row(dog):
    """[CLS] my dog is cute [SEP] he likes play ##ing [SEP]: dog -> [MASK], he -> king, play kept."""
    tokenizer, rows, masks = dog
    assert [tokenizer.tokens[index] for index in rows.ids] == DOG
    assert (rows.first_length.tolist(), rows.label.tolist()) == ([6], [0])
    assert masks.positions.tolist() == [2, 6, 8], "all three are targets and nothing else is"
    assert [tokenizer.tokens[index] for index in masks.inputs] == ["[MASK]", "king", "play"]
    (record,) = rows_to_table(rows, [masks]).to_pylist()
    assert [tokenizer.tokens[index] for index in record["input_ids"]] == DOG
    assert (record["num_tokens"], record["first_length"], record["next_sentence_label"]) == (11, 6, 0)
    assert record["masked_positions"] == [[2, 6, 8]]
    labels = [tokenizer.tokens[record["input_ids"][position]] for position in record["masked_positions"][0]]
    assert labels == ["dog", "he", "play"]


def test_my_dog_is_cute_as_the_model_sees_it(dog, tmp_path):
    """Through a shard and the trainer's batch: segment ids, what stands there, and loss at the three targets alone."""
    tokenizer, rows, masks = dog
    columns = sentence_pair_schema(tokenizer.vocab_size, vocabulary_hash=tokenizer.vocabulary_hash)
    pq.write_table(rows_to_table(rows, [masks]).cast(columns), tmp_path / "shard.parquet", write_page_checksum=True)
    place = {
        "lane": 0,
        "epoch": 0,
        "path": "shard.parquet",
        "shard": 0,
        "row_group": 0,
        "num_rows": 1,
        "num_tokens": 11,
    }
    place |= {"footer_sha256": footer_sha256(tmp_path / "shard.parquet"), "vocabulary_size": tokenizer.vocab_size}
    ref = RowGroupSlice(**place, max_seq_length=16, start=0, stop=1, mask_set=0, mask_sets=1, seed=1)
    micro_batch = join_ranges([RowRange(BlockRows.from_table(read_slice(ref, root=tmp_path), epoch=0), 0, 1)])
    names = {name: getattr(tokenizer.special, name) for name in ("pad", "unk", "cls", "sep", "mask")}
    shape = MicroBatchShape(tokens=16, pairs=1, masked=5, max_seq_length=16)
    batch = to_batch(micro_batch, shape=shape, special=Special(**names), constant_shapes=True)
    seen = [tokenizer.tokens[index] for index in batch.input_ids[:11]]
    assert seen == ["[CLS]", "my", "[MASK]", "is", "cute", "[SEP]", "king", "likes", "play", "##ing", "[SEP]"]
    assert batch.segment_ids[:11].tolist() == [0] * 6 + [1] * 5
    weighted = batch.masked_weights.bool()
    assert batch.masked_positions[weighted].tolist() == [2, 6, 8]
    assert [tokenizer.tokens[index] for index in batch.masked_labels[weighted]] == ["dog", "he", "play"]
    assert (batch.num_masked, batch.nsp_labels.tolist(), batch.nsp_weights.tolist()) == (3, [0], [1.0])


def test_let_us_start_pretraining_the_model(tmp_path):
    """[CLS] let us start pre ##train ##ing the model [SEP]: all three pieces and no other word, in one set of many."""
    words = ["let", "us", "start", "pre", "##train", "##ing", "the", "model"]
    tokenizer = make_tokenizer(tmp_path, words)
    document = tokenizer.tokenize(Document("x", ("let us start pretraining the model",)))
    settings = {"max_seq_length": 32, "next_sentence": "none", "short_sequence_probability": 0.0}
    config = make_config(max_predictions=5, **settings)
    pairs = make_pairs([document], config=config, pass_number=0)
    rows = assemble_rows([document], pairs, special=tokenizer.special, seed=config.seed)
    assert [tokenizer.tokens[index] for index in rows.ids] == ["[CLS]", *words, "[SEP]"]
    drawn = make_masks(rows, config=config, tokenizer=tokenizer, mask_sets=range(300))
    found = {tuple(masks.positions.tolist()) for masks in drawn}
    assert {positions for positions in found if set(positions) & {4, 5, 6}} == {(4, 5, 6)}
    assert (1,) not in found, "let alone is no mask set: two tokens are asked for"
    few = make_config(max_predictions=2, **settings)
    drawn = make_masks(rows, config=few, tokenizer=tokenizer, mask_sets=range(300))
    assert not any({4, 5, 6} & set(masks.positions.tolist()) for masks in drawn), "the word passes max_predictions"


def test_next_and_not_next(tmp_path):
    """The man went to the store: he bought a gallon of milk (next), or dogs are cute (not next): a sentence
    that follows one in its own document."""
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
    documents = [tokenizer.tokenize(Document("x", text)) for text in ((store, milk), ("penguins fly", dogs))]
    config = make_config(max_seq_length=32, passes=60, short_sequence_probability=0.0)
    instances = Instances(documents, config=config, tokenizer=tokenizer)
    rows, _ = instances.batch(np.arange(len(instances)))
    pairs = set()
    for row in range(len(rows)):
        ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]]
        text = " ".join(tokenizer.tokens[index] for index in ids)
        pairs.add((text, int(rows.label[row])))
    assert (f"[CLS] {store} [SEP] {milk} [SEP]", 0) in pairs
    assert (f"[CLS] {store} [SEP] {dogs} [SEP]", 1) in pairs
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
