"""Tokenization: equal to the library, word starts, special ids, files."""

from __future__ import annotations

import json
import lzma
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers

from pipeline.config.schema import PipelineConfig, VocabularyConfig
from pipeline.documents import Document
from pipeline.settings import validate
from pipeline.tokenizer import chunks
from pipeline.tokenizer.chunks import is_within_word
from pipeline.tokenizer.tokenizer import WordTokenizer
from pipeline.vocabulary.train import count_words, given_vocabulary, train_tokenizer
from tiny_text import FIRST_ID, SPECIAL_TOKENS, make_tokenizer

GOLDEN = {"bert-base-uncased": True, "bert-base-multilingual-cased": False}
ODD = "ab A\u00c9\u0301\uac00\ub098\u4e2d.,'-[]MASK#\u00a0\u2003\t\x1c\x00\u200d\ufffd\U0001f600\u0130\u1e9e\u0e33"


@pytest.fixture(scope="module", params=GOLDEN)
def golden(request, shared_data):
    folder = shared_data / "bert"
    tokenizer = WordTokenizer.from_path(folder / f"{request.param}-vocab.txt", lowercase=GOLDEN[request.param])
    with lzma.open(folder / f"golden-tokenization-{request.param}.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][1:]
    return tokenizer, rows


def plain_library(tokenizer: WordTokenizer) -> Tokenizer:
    backend = Tokenizer.from_str(tokenizer.backend.to_str())
    backend.encode_special_tokens = True
    return backend


def assert_as_library(tokenizer: WordTokenizer, sentences: list[str]) -> None:
    library = plain_library(tokenizer)
    encodings = [library.encode(sentence, add_special_tokens=False) for sentence in sentences]
    found = tokenizer.tokenize(Document("x", tuple(sentences)))
    assert found.ids.tolist() == [index for encoding in encodings for index in encoding.ids]
    assert found.sentence_lengths.tolist() == [len(encoding.ids) for encoding in encodings if encoding.ids]
    by_bytes = json.loads(library.to_str())["pre_tokenizer"]["type"] == "ByteLevel"  # which cuts words at their marks
    starts = [
        place == 0
        or (
            encoding.word_ids[place] != encoding.word_ids[place - 1]
            and not (by_bytes and is_within_word(sentence, encoding.offsets[place][0]))
        )
        for sentence, encoding in zip(sentences, encodings, strict=True)
        for place in range(len(encoding.ids))
    ]
    assert found.word_starts.tolist() == starts
    assert found.ids.size == found.word_starts.size == found.sentence_lengths.sum()


def test_golden_tokenizations(golden):
    tokenizer, rows = golden
    assert len(rows) == 530
    composed = 0
    for row in rows:
        encoding = tokenizer.backend.encode(row["text"], add_special_tokens=False)
        if unicodedata.is_normalized("NFC", row["text"]):
            assert (encoding.ids, encoding.tokens) == (row["ids"], row["tokens"])
        else:  # cleaning composes text, so the tokenizer does; the published one does not
            composed += 1
            same = tokenizer.backend.encode(unicodedata.normalize("NFC", row["text"]), add_special_tokens=False)
            assert (encoding.ids, encoding.tokens) == (same.ids, same.tokens)
        if not any(token in row["text"] for token in ("[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]")):
            assert tokenizer.tokenize(Document("x", (row["text"],))).ids.tolist() == encoding.ids
    assert composed == 2
    assert_as_library(tokenizer, [row["text"] for row in rows])


def test_books_and_wikipedia_are_tokenized_as_by_the_library(golden, shared_data):
    tokenizer, _ = golden
    text = (shared_data / "books" / "plain" / "11_alices_adventures_in_wonderland.txt").read_text(encoding="utf-8")
    assert_as_library(tokenizer, [line for line in text.split("\n") if line])
    korean = (shared_data / "korean").rglob("*.txt")
    lines = [line for path in sorted(korean)[:2] for line in path.read_text(encoding="utf-8").split("\n")[:300] if line]
    assert_as_library(tokenizer, lines)


@pytest.fixture(scope="module")
def trained():
    texts = [
        "the cat sat on the mat, it's 3.14 na\u00efve caf\u00e9s",
        "\uac00\ub098 \uac00\ub098\ub2e4 \u4e2d\u6587 AB ab",
    ]
    made = []
    for algorithm in ("wordpiece", "bpe", "byte_level_bpe"):
        for lowercase in (True, False):
            config = VocabularyConfig(path="x.json", algorithm=algorithm, size=420, lowercase=lowercase)
            backend = train_tokenizer(count_words(texts * 9, settings=config), settings=config)
            made.append(WordTokenizer(backend, origin="trained"))
    return made


@settings(max_examples=80)
@given(st.lists(st.text(alphabet=ODD, max_size=30) | st.text(max_size=20), min_size=1, max_size=4))
def test_any_text_is_tokenized_as_by_the_library(trained, sentences):
    """Words come from the tokenizer, for every algorithm (transformers#11768, #9866, #12998)."""
    for tokenizer in trained:
        assert_as_library(tokenizer, sentences)


def test_caches_of_bounded_size_change_nothing(trained, monkeypatch):
    monkeypatch.setattr(chunks, "_MAX_CHUNKS", 3)
    monkeypatch.setattr(chunks, "_MAX_WORDS", 2)
    for number in range(6):
        assert_as_library(trained[0], [f"the cat{number} sat", "on  the mat", "it's 3.14"])


def test_special_tokens_in_a_text_are_text(tmp_path):
    tokenizer = make_tokenizer(tmp_path, ["[", "]", "mask", "sep", "##s"])
    found = tokenizer.tokenize(Document("x", ("[MASK] [SEP]",)))
    assert [tokenizer.tokens[index] for index in found.ids] == ["[", "mask", "]", "[", "sep", "]"]


def test_special_tokens_in_a_text_are_text_to_every_algorithm(trained):
    for tokenizer in trained:
        found = tokenizer.tokenize(Document("x", ("the [MASK] cat [SEP]", "[CLS]")))
        assert not {tokenizer.special.mask, tokenizer.special.sep, tokenizer.special.cls} & set(found.ids.tolist())
        assert tokenizer.special.mask in tokenizer.backend.encode("the [MASK] cat").ids


def test_sentences_without_tokens_are_left_out(tmp_path):
    tokenizer = make_tokenizer(tmp_path, ["a", "##b"])
    found = tokenizer.tokenize(Document("x", ("\u200b", "ab a", "\x00", "a")))
    assert found.sentence_lengths.tolist() == [3, 1]
    assert found.word_starts.tolist() == [True, False, True, True]
    empty = tokenizer.tokenize(Document("x", ("\x00",)))
    assert (empty.ids.size, empty.sentence_lengths.size) == (0, 0)


def test_ids_and_their_groups(tmp_path):
    tokenizer = make_tokenizer(tmp_path, ["a", "##b"])
    special = tokenizer.special
    assert (special.pad, special.unk, special.cls, special.sep, special.mask) == (0, 100, 101, 102, 103)
    assert tokenizer.unused_ids.tolist() == list(range(1, 100))
    assert tokenizer.replaceable_ids.tolist() == [FIRST_ID, FIRST_ID + 1]
    assert tokenizer.special_ids.tolist() == [0, 100, 101, 102, 103]
    assert tokenizer.tokenize(Document("x", ("a",))).ids.dtype == np.uint16
    large = make_tokenizer(tmp_path, [f"w{number}" for number in range(65_536)])
    assert large.tokenize(Document("x", ("w65535",))).ids.tolist() == [FIRST_ID + 65_535]
    assert large.id_dtype == np.int32


def test_hash_depends_on_tokens_order_and_normalisation(tmp_path):
    hashes = {
        make_tokenizer(tmp_path, pieces, lowercase=lowercase).vocabulary_hash
        for pieces, lowercase in ((["a", "b"], True), (["b", "a"], True), (["a", "b"], False))
    }
    assert len(hashes) == 3
    same = make_tokenizer(tmp_path, ["a", "b"])
    same.save(tmp_path / "saved")
    again = WordTokenizer.from_path(tmp_path / "saved" / "tokenizer.json", lowercase=False)
    assert again.vocabulary_hash == same.vocabulary_hash


def test_saved_files_load_with_transformers_and_have_the_same_bytes(trained, tmp_path):
    from transformers import AutoTokenizer

    texts = ["The cat sat on the MAT.", "\uac00\ub098\ub2e4 \u4e2d\u6587", "na\u00efve [MASK] caf\u00e9"]
    for number, tokenizer in enumerate(trained):
        folders = [tmp_path / f"{number}-{copy}" for copy in range(2)]
        for folder in folders:
            tokenizer.save(folder)
        names = sorted(path.name for path in folders[0].iterdir())
        assert ("vocab.txt" in names) == (number < 2)
        for name in names:
            assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
        loaded = AutoTokenizer.from_pretrained(folders[0])
        for text in texts:
            assert loaded(text)["input_ids"] == tokenizer.backend.encode(text).ids
        pair = loaded("a", "b")
        assert pair["token_type_ids"][-1] == 1
        assert len(loaded) == tokenizer.vocab_size
        assert loaded.mask_token_id == tokenizer.special.mask


def test_korean_survives_uncased_training(tmp_path):
    """Stripping accents takes syllables apart; where the vocabulary has syllables they are composed again."""
    tokenizer = make_tokenizer(tmp_path, ["\uac00", "##\ub098", "cafe"])
    found = tokenizer.tokenize(Document("x", ("\uac00\ub098 caf\u00e9",)))
    assert [tokenizer.tokens[index] for index in found.ids] == ["\uac00", "##\ub098", "cafe"]
    jamo = make_tokenizer(tmp_path, ["\u1100", "##\u1161"])  # as in Google's uncased vocabularies
    found = jamo.tokenize(Document("x", ("\uac00",)))
    assert [jamo.tokens[index] for index in found.ids] == ["\u1100", "##\u1161"]


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "byte_level_bpe"])
@pytest.mark.parametrize("text", [{"lowercase": False}, {"strip_accents": False}, {}])
def test_decomposed_text_gets_the_same_ids_from_the_saved_tokenizer(tmp_path, algorithm, text):
    """Cleaning composes characters (NFC). Text that comes from elsewhere, as from macOS, may be decomposed (NFD)."""
    from transformers import AutoTokenizer

    sentence = "\ud55c\uad6d\uc5b4 \ubb38\uc7a5 Caf\u00e9 \u0111i\u1ec7n \u0623\u0628 \u304c"
    settings = VocabularyConfig(size=380, algorithm=algorithm, **text)
    words = count_words([sentence] * 3, settings=settings)
    WordTokenizer(train_tokenizer(words, settings=settings), origin="x").save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded(sentence)["input_ids"]
    assert loaded.unk_token_id not in ids
    assert loaded(unicodedata.normalize("NFD", sentence))["input_ids"] == ids


def test_a_given_tokenizer_composes_too(tmp_path):
    """As published it does not; one that takes syllables apart on purpose stays as it is."""
    path = tmp_path / "tokenizer.json"
    for normalizer, kind, added in (
        (normalizers.BertNormalizer(lowercase=False), "Sequence", ["BertNormalizer", "NFC"]),
        (normalizers.Lowercase(), "Sequence", ["NFC", "Lowercase"]),
        (None, "NFC", None),
        (normalizers.BertNormalizer(lowercase=True), "BertNormalizer", None),
        (normalizers.NFKC(), "NFKC", None),
    ):
        vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, "a"])}
        backend = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.save(str(path))
        tree = {"sources": [{"kind": "text", "path": "x"}], "vocabulary": {"path": str(path)}, "output": "o"}
        found = given_vocabulary(validate(PipelineConfig, tree, origin="x"))
        layout = json.loads(found.backend.to_str())["normalizer"]
        assert layout["type"] == kind
        assert [step["type"] for step in layout.get("normalizers", [])] == (added or [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such vocabulary file"),
        (b"", "is empty"),
        (b"[PAD]\nb\xff\n", "byte 7 is not UTF-8"),
        (b"a\nb\na\n", "line 3: token 'a' is also in line 1"),
        (b"[PAD]\n\na\n", "line 2: empty; one token per line is expected"),
        (b"[PAD]\n[UNK]\n[CLS]\na\n", r"lacks \[SEP\], \[MASK\]"),
        ("".join(f"{token}\n" for token in SPECIAL_TOKENS).encode(), "only special and unused tokens"),
    ],
)
def test_bad_vocabularies_are_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        WordTokenizer.from_path(path, lowercase=True)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("first", "end"), [("\ufeff", "\n"), ("", "\r\n"), ("", "\r")])
def test_a_vocabulary_of_another_editor_is_read(tmp_path, first, end):
    tokens = [*SPECIAL_TOKENS, "a", "##b"]
    path = tmp_path / "vocab.txt"
    path.write_bytes((first + "".join(token + end for token in tokens)).encode())
    assert WordTokenizer.from_path(path, lowercase=True).tokens == tokens


def test_bad_tokenizer_files_are_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match="no such tokenizer file"):
        WordTokenizer.from_path(path, lowercase=True)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        WordTokenizer.from_path(path, lowercase=True)
    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))
    with pytest.raises(ValueError, match="has none of"):
        WordTokenizer.from_path(path, lowercase=True)
    Tokenizer(models.WordLevel({"a": 0, "b": 1})).save(str(path))
    with pytest.raises(ValueError, match=r"tokenizer\.json: text outside the vocabulary cannot be .*unk_token"):
        WordTokenizer.from_path(path, lowercase=True)
    Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a")).save(str(path))
    with pytest.raises(ValueError, match="greatest id is 7"):
        WordTokenizer.from_path(path, lowercase=True)


def test_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("".join(f"{token}\r\n" for token in [*SPECIAL_TOKENS, "a"]).encode())
    assert WordTokenizer.from_path(path, lowercase=True).tokens[-1] == "a"


def test_a_great_document_is_taken_in_runs(trained, monkeypatch):
    """The runs change nothing, also where a sentence is longer than a run or the last one ends with the text."""
    sentences = [f"the cat{number} sat on the mat, it's 3.14 \uac00\ub098" for number in range(40)] + [
        "\u200b",
        "ab " * 90,
    ]
    whole = [tokenizer.tokenize(Document("x", tuple(sentences))) for tokenizer in trained]
    lengths = [len(sentence) for sentence in sentences]
    for characters in (1, 50, lengths[0], sum(lengths) - 1, sum(lengths)):
        monkeypatch.setattr(chunks, "_BLOCK_CHARACTERS", characters)
        blocks = chunks._cut_blocks(sentences)
        assert [each for block in blocks for each in block] == sentences
        assert all(sum(map(len, block[:-1])) <= characters for block in blocks)
        for tokenizer, before in zip(trained, whole, strict=True):
            found = tokenizer.tokenize(Document("x", tuple(sentences)))
            for name in ("ids", "word_starts", "sentence_lengths"):
                after = getattr(found, name)
                assert after.dtype == getattr(before, name).dtype
                assert after.tolist() == getattr(before, name).tolist()
