"""Odd corpora through pairs and masks, judged by the auditor, which shares no code with them."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit import data_set
from pipeline.audit.blocks import Facts
from pipeline.audit.findings import Findings
from pipeline.audit.following import Negatives
from pipeline.audit.masks import check_masks, check_shape
from pipeline.audit.rows import Counts, check_rows
from pipeline.audit.words import describe_tokens, find_words, join_published
from pipeline.build.write_shard import rows_to_table
from pipeline.config.schema import PipelineConfig
from pipeline.dataset.schema import sentence_pair_schema
from pipeline.instances.bucket import Instances
from pipeline.tokenizer.tokenizer import TokenizedDocument, WordTokenizer
from tiny_text import FIRST_ID, make_config, make_document, make_tokenizer

NUM_WORDS, NUM_PIECES = 60, 60
NEXT_SENTENCE = ("random_document", "sentence_order", "none")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WordTokenizer:
    words = [f"w{number}" for number in range(NUM_WORDS)] + [f"##p{number}" for number in range(NUM_PIECES)]
    return make_tokenizer(tmp_path_factory.mktemp("odd"), words)


def fill(sentences: Sequence[Sequence[int]], *, name: int, unknown: int, spread: int) -> TokenizedDocument:
    """A document from the piece counts of its words; words of 0 pieces are [UNK]. `spread`: how many words differ."""
    ids: list[int] = []
    rng = random.Random(name)
    for pieces in (pieces for words in sentences for pieces in words):
        number = rng.randrange(spread)
        ids += [FIRST_ID + number] if pieces else [unknown]
        ids += [FIRST_ID + NUM_WORDS + (number + piece) % NUM_PIECES for piece in range(pieces - 1)]
    return make_document([[max(1, pieces) for pieces in words] for words in sentences], name=name, ids=ids)


one_word = st.just([[1]]) | st.integers(1, 90).map(lambda pieces: [[pieces]])
one_sentence = st.lists(st.integers(0, 5), min_size=1, max_size=90).map(lambda words: [words])
all_unknown = st.tuples(st.integers(1, 4), st.integers(1, 30)).map(lambda size: [[0] * size[1]] * size[0])
any_document = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), min_size=1, max_size=6)
odd_documents = st.lists(one_word | one_sentence | all_unknown | any_document, min_size=2, max_size=6)
odd_settings = st.fixed_dictionaries(
    {
        "max_seq_length": st.sampled_from([8, 9, 16, 64]),
        "max_predictions": st.sampled_from([1, 2, 5]),
        "masks_per_pair": st.sampled_from([1, 16]),
        "passes": st.sampled_from([1, 3]),
        "next_sentence": st.sampled_from(NEXT_SENTENCE),
        "masking": st.sampled_from(["whole_word", "token", "span"]),
        "replacement_draw": st.sampled_from([None, "piece"]),
        "short_sequence_probability": st.sampled_from([0.0, 0.1, 0.9]),
        "seed": st.integers(0, 1000),
    }
)


def audit_rows(
    documents: Sequence[TokenizedDocument], *, config: PipelineConfig, tokenizer: WordTokenizer
) -> tuple[Findings, int]:
    """Faults of all rows of a bucket, written and read again; and how many rows there are."""
    instances = Instances(documents, config=config, tokenizer=tokenizer)
    rows, masks = instances.batch(np.arange(len(instances)))
    columns = sentence_pair_schema(tokenizer.vocab_size, vocabulary_hash="x")
    stream = io.BytesIO()
    pq.write_table(rows_to_table(rows, masks).cast(columns), stream)
    published = config.mode == "reference"
    facts = Facts(
        published=published,
        max_seq_length=config.max_seq_length,
        max_predictions=config.predictions,
        mask_sets=config.masks_per_pair,
        next_sentence=config.next_sentence,
        masking=config.masking,
        draw=config.replacement_draw or ("piece" if published else "word"),
        masked_probability=config.masked_probability,
    )
    names = {name: getattr(tokenizer.special, name) for name in ("unk", "cls", "sep", "mask")}
    special = set(tokenizer.special_ids.tolist())
    vocabulary = describe_tokens(tokenizer.tokens, special=special, names=names, backend=tokenizer.backend)
    findings, counts = Findings(), Counts()
    block, mismatched = data_set.read_block(pq.ParquetFile(stream), 0, name="odd", findings=findings)
    sound = check_rows(block, facts=facts, vocabulary=vocabulary, findings=findings, counts=counts)
    sound &= check_shape(block, facts=facts, findings=findings, mismatched=mismatched)
    assert sound.all() or findings.faults or published
    block = block.take(sound)
    starts, known = find_words(block, vocabulary=vocabulary, backend=None)
    if published and facts.masking == "whole_word":
        starts = join_published(block, starts, vocabulary=vocabulary)
    check_masks(block, starts=starts, known=known, facts=facts, vocabulary=vocabulary, findings=findings, counts=counts)
    if config.next_sentence == "random_document":
        negatives = Negatives()
        negatives.add(block, vocabulary=vocabulary)
        sorted_negatives = negatives.sort()
        sorted_negatives.search(block, vocabulary=vocabulary)
        sorted_negatives.report(findings, file="odd", published=published)
    return findings, len(instances)


def found(findings: Findings) -> dict[str, object]:
    return {name: finding.first_fault for name, finding in findings.by_check.items() if finding.faults}


@settings(max_examples=60)
@given(odd_documents, odd_settings, st.sampled_from([1, 3, 60]))
def test_odd_documents_make_sound_rows(tokenizer, documents, values, spread):
    unknown = tokenizer.special.unk
    made = [fill(sentences, name=name, unknown=unknown, spread=spread) for name, sentences in enumerate(documents)]
    config = make_config(**values)
    findings, count = audit_rows(made, config=config, tokenizer=tokenizer)
    faults = found(findings)
    if spread < 60:  # texts of one to three words say everything again
        faults.pop("true next", None)
    assert faults == {}
    assert count >= len(made) * config.passes


@settings(max_examples=60)
@given(odd_documents, st.sampled_from([8, 16, 64]), st.sampled_from(["whole_word", "token"]), st.sampled_from([1, 3]))
def test_odd_documents_in_reference_mode(tokenizer, documents, length, masking, passes):
    unknown = tokenizer.special.unk
    made = [fill(sentences, name=name, unknown=unknown, spread=60) for name, sentences in enumerate(documents)]
    config = make_config(mode="reference", max_seq_length=length, max_predictions=2, masking=masking, passes=passes)
    findings, _ = audit_rows(made, config=config, tokenizer=tokenizer)
    assert found(findings) == {}


@pytest.mark.parametrize("next_sentence", NEXT_SENTENCE)
@pytest.mark.parametrize("length", [8, 9, 10])
def test_the_shortest_rows(tokenizer, next_sentence, length):
    """The minimum of max_seq_length, words of every length, sixteen mask sets, three passes: every document is used."""
    documents = [fill([[pieces]] * 3, name=pieces, unknown=1, spread=60) for pieces in range(1, 12)]
    config = make_config(
        max_seq_length=length, max_predictions=2, masks_per_pair=16, passes=3, next_sentence=next_sentence
    )
    instances = Instances(documents, config=config, tokenizer=tokenizer)
    assert set(instances.pairs.first_document.tolist()) == set(range(len(documents)))
    findings, _ = audit_rows(documents, config=config, tokenizer=tokenizer)
    assert found(findings) == {}


def test_documents_of_one_word_only(tokenizer):
    """No document has a next sentence: no row has a label, and every word is a target."""
    documents = [fill([[1]], name=name, unknown=1, spread=60) for name in range(50)]
    config = make_config(max_seq_length=8, max_predictions=2, masks_per_pair=16)
    findings, count = audit_rows(documents, config=config, tokenizer=tokenizer)
    assert found(findings) == {}
    assert count == 50
    assert set(Instances(documents, config=config, tokenizer=tokenizer).pairs.label.tolist()) == {-1}


def test_nothing_but_unknown_words(tokenizer):
    documents = [fill([[0] * 9] * 4, name=name, unknown=tokenizer.special.unk, spread=60) for name in range(3)]
    for masking in ("whole_word", "token", "span"):
        config = make_config(max_seq_length=16, max_predictions=3, masks_per_pair=16, masking=masking)
        findings, _ = audit_rows(documents, config=config, tokenizer=tokenizer)
        faults = found(findings)
        faults.pop("true next", None)  # every text is the same
        assert faults == {}
        assert findings.by_check["special targets"].looked_at > 0
