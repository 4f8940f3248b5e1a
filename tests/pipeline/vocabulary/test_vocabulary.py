"""Vocabulary training: worked examples, layout, size, determinism, bounded counting, languages."""

from __future__ import annotations

import json
import logging
import lzma
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pipeline.config.schema import VocabularyConfig
from pipeline.documents import Document
from pipeline.settings import ConfigError, validate
from pipeline.tokenizer.files import describe_text, word_rules
from pipeline.tokenizer.tokenizer import WordTokenizer
from pipeline.vocabulary import word_counts
from pipeline.vocabulary.merges import MergeTable
from pipeline.vocabulary.subwords import LAYOUT, train_bpe, train_wordpiece
from pipeline.vocabulary.train import count_words, measure, train_tokenizer
from pipeline.vocabulary.word_counts import Run, WordCounter, most_common

HUGS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
ALPHABET = ["b", "##g", "h", "##n", "p", "##s", "##u"]


def test_layout_is_that_of_bert():
    assert len(LAYOUT) == 104
    assert [LAYOUT[place] for place in (0, 1, 99, 100, 101, 102, 103)] == [
        "[PAD]",
        "[unused1]",
        "[unused99]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    assert train_wordpiece(HUGS, size=111)[:104] == list(LAYOUT)


def test_likelihood_by_hand():
    """h 15, p 17, b 4, ##u 36, ##g 20, ##n 16, ##s 5. Scores: ##g ##s 5/(20 x 5) = 1/20; ##u ##g 20/(36 x 20) = 1/36
    and so do h ##u, p ##u, b ##u, ##u ##n. After ##gs: ##g 15, so ##u ##g 15/(36 x 15), all 1/36: the most frequent is
    p ##u (17). Then ##u is 19: h ##u 15/(15 x 19) = 1/19 = b ##u, and pu ##n 12/(17 x 16): h ##u, the more frequent.
    """
    found = train_wordpiece(HUGS, size=111 + 3, min_pair_count=1)
    assert found[104:] == [*ALPHABET, "##gs", "pu", "hu"]


def test_minimum_pair_count_by_hand():
    """With a bound of 6 the pair ##g ##s (5 times) is no candidate, all others score 1/36: ##u ##g (20) is joined.

    Then ##u ##n 16/(16 x 16), and h ##ug 15/(15 x 20) before p ##un 12/(17 x 16).
    """
    found = train_wordpiece(HUGS, size=111 + 3, min_pair_count=6)
    assert found[104:] == [*ALPHABET, "##ug", "##un", "hug"]


def test_falling_bound_by_hand():
    """The bound starts at 100 (x ##y) and falls to 80, 64, 51.2, 40.96, where a ##b (50) and c ##d (41) are in reach.

    c ##d 41/(41 x 41) is better than a ##b 50/(60 x 50). e ##f, 1/(1 x 1), is never in reach, as the bound ends at 2; a
    fixed bound of 1 takes it first.
    """
    words = {"xy": 100, "ab": 50, "ac": 10, "cd": 41, "ef": 1}
    assert train_wordpiece(words, size=104 + 9 + 4)[-4:] == ["xy", "cd", "ab", "ac"]
    assert train_wordpiece(words, size=104 + 9 + 4, criterion="frequency")[-4:] == ["xy", "ab", "cd", "ac"]
    assert train_wordpiece(words, size=104 + 9 + 1, min_pair_count=1)[-1] == "ef"


def test_frequency_by_hand():
    """##u ##g 20, ##u ##n 16, h ##ug 15."""
    found = train_wordpiece(HUGS, size=111 + 3, criterion="frequency")
    assert found[104:] == [*ALPHABET, "##ug", "##un", "hug"]


def test_bpe_by_hand():
    """Ends of words are units of their own: p u 17, then h u 15, pu n</w> 12, hu g</w> 10."""
    found = train_bpe(HUGS, size=104 + 8 + 4)
    assert found.tokens[104:112] == ["b", "g", "g</w>", "h", "n</w>", "p", "s</w>", "u"]
    assert found.merges == [("p", "u"), ("h", "u"), ("pu", "n</w>"), ("hu", "g</w>")]
    assert found.tokens[112:] == ["pu", "hu", "pun</w>", "hug</w>"]


def test_byte_level_bpe_by_hand():
    """All 256 bytes; words begin with a mark for the space: u g 20, mark h 15 ... by count."""
    words = {"\u0120hug": 10, "\u0120pug": 5, "\u0120hugs": 5}
    found = train_bpe(words, size=104 + 256 + 2, byte_level=True)
    assert sorted(found.tokens[104:360]) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert found.merges == [("u", "g"), ("h", "ug")]


def test_overlapping_pairs_are_joined_from_the_left():
    found = train_wordpiece({"baaaa": 5}, size=104 + 2 + 1, criterion="frequency")
    assert found[-1] == "##aa"


@st.composite
def counted_words(draw):
    words = draw(st.lists(st.text(alphabet="abc", min_size=1, max_size=9), min_size=1, max_size=15, unique=True))
    return {word: draw(st.integers(1, 9)) for word in words}


def slow_counts(words: dict[tuple[str, ...], int]) -> Counter[tuple[str, str]]:
    pairs: Counter[tuple[str, str]] = Counter()
    for symbols, count in words.items():
        for pair in pairwise(symbols):
            pairs[pair] += count
    return pairs


def slow_merge(symbols: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    result: list[str] = []
    place = 0
    while place < len(symbols):
        if symbols[place : place + 2] == pair:
            result.append(pair[0] + pair[1].removeprefix("##"))
            place += 2
        else:
            result.append(symbols[place])
            place += 1
    return tuple(result)


@settings(max_examples=60)
@given(counted_words(), st.sampled_from(["likelihood", "frequency"]), st.integers(1, 3))
def test_incremental_counts_equal_counting_again(words, criterion, least):
    spelled = {(word[0], *(f"##{letter}" for letter in word[1:])): count for word, count in words.items()}
    symbols = sorted({symbol for word in spelled for symbol in word})
    number = {symbol: index for index, symbol in enumerate(symbols)}
    table = MergeTable(
        symbols,
        words=np.array([number[symbol] for word in spelled for symbol in word], np.int32),
        lengths=np.array([len(word) for word in spelled], np.int64),
        counts=np.array(list(spelled.values()), np.int64),
        prefix="##",
    )
    for _ in range(30):
        pairs = slow_counts(spelled)
        units: Counter[str] = Counter()
        for word, count in spelled.items():
            for symbol in word:
                units[symbol] += count

        def score(pair, pairs=pairs, units=units):
            value = pairs[pair] / (units[pair[0]] * units[pair[1]]) if criterion == "likelihood" else pairs[pair]
            return -value, -pairs[pair], pair

        candidates = sorted((pair for pair, count in pairs.items() if count >= least), key=score)
        best = table.best(criterion=criterion, min_count=least)
        assert table.greatest_count == max(pairs.values(), default=0)
        if not candidates:
            assert best is None
            break
        assert best is not None
        assert table.names(best) == candidates[0]
        table.merge(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in spelled.items():
            merged[slow_merge(word, candidates[0])] += count
        spelled = dict(merged)


def some_text(seed: int) -> list[str]:
    rng = random.Random(seed)
    stems = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 5))) for _ in range(60)]
    return [" ".join(rng.choice(stems) + rng.choice(["", "s", "ing", "ed"]) for _ in range(12)) for _ in range(300)]


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "byte_level_bpe"])
def test_size_is_exact_and_every_word_is_known(algorithm):
    text = some_text(1)
    config = VocabularyConfig(path="x.json", algorithm=algorithm, size=450)
    counts = count_words(text, settings=config)
    backend = train_tokenizer(counts, settings=config)
    tokenizer = WordTokenizer(backend, origin="x")
    assert tokenizer.vocab_size == 450
    assert len(set(tokenizer.tokens)) == 450
    assert measure(backend, counts)[1] == 0
    assert 1 <= measure(backend, counts)[0] < 3
    ids = tokenizer.tokenize(Document("x", tuple(text))).ids
    assert tokenizer.special.unk not in ids
    assert backend.decode(ids[:40].tolist()).replace(" ##", "").split()[:6] == " ".join(text).split()[:6]


def test_training_does_not_depend_on_order():
    """WordPiece training differs from run to run (tokenizers#1794)."""
    counts = count_words(some_text(2), settings=VocabularyConfig())
    shuffled = dict(random.Random(3).sample(sorted(counts.items()), len(counts)))
    for criterion in ("likelihood", "frequency"):
        one = train_wordpiece(counts, size=300, criterion=criterion)
        assert one == train_wordpiece(shuffled, size=300, criterion=criterion)


def test_a_size_that_the_text_cannot_fill_is_named(caplog):
    with caplog.at_level(logging.WARNING):
        found = train_wordpiece(HUGS, size=500)
    assert f"has {len(found)} entries, not 500" in caplog.text
    assert f"vocabulary.size={len(found)}" in caplog.text


def test_a_size_without_room_for_the_alphabet_is_refused():
    with pytest.raises(ValueError, match=r"set vocabulary\.size to at least 111"):
        train_wordpiece(HUGS, size=110)


def test_no_words_give_the_layout_alone():
    assert train_wordpiece({}, size=200) == list(LAYOUT)


def test_rare_characters_are_left_out_with_their_words():
    counts = {"ab": 400_000, "a\u4e00": 1}
    found = train_wordpiece(counts, size=200)
    assert "##\u4e00" not in found
    assert "##\u4e00" in train_wordpiece(counts | {"a\u4e00": 50}, size=200)


def test_chinese_characters_stand_alone_and_korean_is_composed():
    config = VocabularyConfig(size=130)
    counts = count_words(["\u4e2d\u6587\u4e2d \uac00\ub098\ub2e4 \uac00\ub098"], settings=config)
    assert counts == {"\u4e2d": 2, "\u6587": 1, "\uac00\ub098": 1, "\uac00\ub098\ub2e4": 1}
    cased = VocabularyConfig(size=130, lowercase=False)
    assert count_words(["Caf\u00e9"], settings=cased) == {"Caf\u00e9": 1}
    assert count_words(["Caf\u00e9"], settings=config) == {"cafe": 1}
    kept = VocabularyConfig(size=130, strip_accents=False)
    assert count_words(["Caf\u00e9"], settings=kept) == {"caf\u00e9": 1}


def test_hangul_is_kept_whole_or_taken_apart_by_a_setting(tmp_path):
    """\uac00\ub098 is one word of two syllables, or of four jamo; Latin letters and accents do not depend on it."""
    word = "\uac00\ub098"
    for algorithm in ("wordpiece", "bpe", "byte_level_bpe"):
        for hangul, expected in (("syllables", "\uac00\ub098"), ("jamo", "\u1100\u1161\u1102\u1161")):
            joiners = "kept" if algorithm == "byte_level_bpe" else "removed"
            config = VocabularyConfig(size=104 + 256 + 9, algorithm=algorithm, hangul=hangul)
            counts = count_words([f"{word} Caf\u00e9"], settings=config)
            backend = train_tokenizer(counts, settings=config)
            assert backend.normalizer.normalize_str(word + "\u00e9") == expected + "e"
            assert describe_text(backend) == {
                "case": "lowered",
                "accents": "removed",
                "hangul": hangul,
                "joiners": joiners,
            }
            assert measure(backend, counts)[1] == 0
    config = VocabularyConfig(size=130, hangul="jamo")
    backend = train_tokenizer(count_words([word], settings=config), settings=config)
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in WordTokenizer(backend, origin="x").tokens), encoding="utf-8")
    assert describe_text(WordTokenizer.from_path(path, lowercase=True).backend)["hangul"] == "jamo"
    with pytest.raises(ConfigError, match="hangul: jamo decomposes all characters"):
        validate(VocabularyConfig, {"hangul": "jamo", "lowercase": False}, origin="x")


def test_cased_text_keeps_case_and_accents():
    cased = VocabularyConfig(size=130, lowercase=False)
    backend = train_tokenizer(count_words(["Caf\u00e9 \uac00"], settings=cased), settings=cased)
    assert describe_text(backend) == {"case": "kept", "accents": "kept", "hangul": "syllables", "joiners": "removed"}


def test_korean_corpus_has_no_unknown_words(shared_data):
    """A trained vocabulary, cased and uncased: [UNK] below 0.1%, syllables composed."""
    with lzma.open(shared_data / "korean" / "korquad" / "KorQuAD_v1.0_dev.json.xz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    lines = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]][:250]
    for lowercase in (False, True):
        config = VocabularyConfig(size=3000, lowercase=lowercase)
        counts = count_words(lines, settings=config)
        backend = train_tokenizer(counts, settings=config)
        pieces, unknown = measure(backend, counts)
        assert backend.get_vocab_size() == 3000
        assert unknown < 0.001
        assert pieces < 2.5
        tokenizer = WordTokenizer(backend, origin="x")
        found = tokenizer.tokenize(Document("x", ("\ub300\ud55c\ubbfc\uad6d\uc758",)))
        assert (
            "".join(tokenizer.tokens[index] for index in found.ids).replace("##", "")
            == "\ub300\ud55c\ubbfc\uad6d\uc758"
        )


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(["a", "b,c", "", "D", "d"]), max_size=6), max_size=8), st.integers(1, 4))
def test_counts_are_exact_in_any_memory(tmp_path_factory, corpus, most):
    """Training on 60 GB is killed (huggingface/tokenizers#499): counted in bounded memory, trained from the counts."""
    folder = tmp_path_factory.mktemp("runs")
    normalizer, splitter = word_rules(VocabularyConfig())
    runs = []
    for number, words in enumerate(corpus):
        counter = WordCounter(
            normalizer=normalizer, splitter=splitter, folder=folder, name=f"w{number}", max_entries=most
        )
        for word in words:
            counter.add([f"x {word}"])
        runs += counter.finish()
    expected = Counter(
        part for words in corpus for word in words for part in ["x", *word.lower().replace(",", " , ").split()]
    )
    found = most_common(runs, folder=folder, limit=100)
    assert found == expected
    assert list(found) == sorted(expected, key=lambda word: (-expected[word], word))
    assert list(most_common(runs, folder=folder, limit=1)) == list(found)[:1]


def test_many_runs_are_merged_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(word_counts, "_MAX_OPEN_RUNS", 3)
    runs = []
    for number in range(20):
        path = tmp_path / f"run{number}.tsv"
        path.write_text(f"a\t1\nb{number % 2}\t2\n", encoding="utf-8")
        runs.append(Run(str(path), 0, path.stat().st_size))
    assert most_common(runs, folder=tmp_path, limit=9) == {"a": 20, "b0": 20, "b1": 20}


def test_words_of_a_hundred_thousand_characters_are_not_counted():
    counts = count_words(["a" * 100_000 + " b", "c" * 100], settings=VocabularyConfig())
    assert counts == {"b": 1, "c" * 100: 1}
