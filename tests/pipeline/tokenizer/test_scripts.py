"""Scripts other than Latin: marks that are letters, words of dictionaries, dotted i, and what a tokenizer loses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tokenizers import normalizers, pre_tokenizers

from pipeline.config.schema import VocabularyConfig
from pipeline.documents import CLAUSE_CHARACTERS, Document, TextLoss
from pipeline.tokenizer.dictionary import BY_TOKENIZER, INSIDE, START, Dictionary
from pipeline.tokenizer.files import word_rules
from pipeline.tokenizer.marks import LostMarks
from pipeline.tokenizer.tokenizer import WordTokenizer
from pipeline.vocabulary.train import count_words, train_tokenizer
from pipeline.vocabulary.word_counts import JOINT, JOINT_SIDES, TOO_LONG, WordCounter, most_common
from tiny_text import SPECIAL_TOKENS, make_tokenizer

HINDI, THAI, KANA, ARABIC = "\u0915\u0941\u0932", "\u0e01\u0e48\u0e32", "\u304c\u3071\u304b", "\u0623\u0628\u064e"
UNCASED = normalizers.BertNormalizer(lowercase=True)


@pytest.mark.parametrize(
    ("text", "found", "lost"),
    [
        (HINDI, {"DEVANAGARI": 1}, {"DEVANAGARI": 1}),
        (
            "\u0915\u093e\u0941",
            {"DEVANAGARI": 2},
            {"DEVANAGARI": 1},
        ),  # a vowel sign that is not removed, and one that is
        (THAI, {"THAI": 1}, {"THAI": 1}),
        (KANA, {"KANA": 2}, {"KANA": 2}),
        ("\uff76\uff9e", {}, {}),  # half width, with a mark that is a letter of its own
        (ARABIC, {"ARABIC": 1}, {"ARABIC": 1}),  # the hamza, but not the vowel point
        ("\u1780\u17bb", {"KHMER": 1}, {"KHMER": 1}),
        ("\u0f56\u0f7c\u0f51", {"TIBETAN": 1}, {"TIBETAN": 1}),
        ("\u1000\u102f", {"MYANMAR": 1}, {"MYANMAR": 1}),
        ("\u0e81\u0eb4", {"LAO": 1}, {"LAO": 1}),
        ("Caf\u00e9 \u0439 \u03ac \u1ec7 e\u0301 \uac00", {}, {}),  # as published, and Hangul, which is composed again
    ],
)
def test_marks_that_are_letters_are_counted(text: str, found: dict[str, int], lost: dict[str, int]) -> None:
    counted = LostMarks(UNCASED).count(text)
    counts = (+counted.found, +counted.lost) if counted is not None else (Counter(), Counter())
    assert counts == (found, lost)


def test_all_letters_of_a_script_that_loses_marks_are_counted() -> None:
    counted = LostMarks(UNCASED).count(f"a1 {HINDI} \u0915 \u0966. {THAI} \u4e2d \u0439 \uac00")
    assert counted is not None
    assert counted.letters == {"DEVANAGARI": len(HINDI) + 1, "THAI": len(THAI)}


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        normalizers.BertNormalizer(lowercase=False),
        normalizers.BertNormalizer(lowercase=True, strip_accents=False),
        normalizers.NFKC(),
    ],
)
def test_a_normalizer_that_keeps_marks_loses_none(normalizer: normalizers.Normalizer | None) -> None:
    marks = LostMarks(normalizer)
    assert marks.scripts == {}
    assert marks.count(HINDI + THAI) is None


def test_losses_of_a_text_by_hand(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, ["a", "##a", "."])
    clause = "a" * (CLAUSE_CHARACTERS + 1)
    document = Document("x", (f"a ab. {clause} {'a' * 101}", f"{HINDI} zz{'b' * 99}"))
    _, loss = tokenizer.tokenize_and_count(document)
    unknown = len("ab") + 101 + len("\u0915\u0932") + 101
    assert loss == TextLoss(
        unknown_characters=unknown,
        long_words=2,
        clause_characters=len(clause) + 101 + 101,
        marks=Counter({"DEVANAGARI": 1}),
        lost_marks=Counter({"DEVANAGARI": 1}),
        letters=Counter({"DEVANAGARI": len(HINDI)}),
    )
    assert tokenizer.tokenize_and_count(document)[1] == loss  # from the cache
    assert tokenizer.tokenize_and_count(Document("y", ("a a.",)))[1] == TextLoss()


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "byte_level_bpe"])
def test_unknown_characters_of_every_algorithm(algorithm: str) -> None:
    settings = VocabularyConfig(size=380, algorithm=algorithm, lowercase=False)
    words = count_words(["ab ab ba"] * 9, settings=settings)
    tokenizer = WordTokenizer(train_tokenizer(words, settings=settings), origin="x")
    _, loss = tokenizer.tokenize_and_count(Document("x", ("ab a\u4e2da \u16a0 ba",)))
    assert loss.unknown_characters == (0 if algorithm == "byte_level_bpe" else 2)
    assert loss.long_words == 0


@pytest.mark.parametrize("strip_accents", [None, False])
def test_turkish_lower_cases_by_its_own_rules(tmp_path: Path, strip_accents: bool | None) -> None:
    from transformers import AutoTokenizer

    path = tmp_path / "vocab.txt"
    tokens = [*SPECIAL_TOKENS, "\u0131l\u0131k", "ilik", "izmir"]
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    text = "ILIK \u0130L\u0130K \u0130zmir I\u0307zmir ilik \u0131l\u0131k"
    expected = ["\u0131l\u0131k", "ilik", "izmir", "izmir", "ilik", "\u0131l\u0131k"]
    turkish = WordTokenizer.from_path(path, lowercase=True, strip_accents=strip_accents, dotted_i=True)
    turkish.save(tmp_path / "saved")
    for found in (
        [turkish.tokens[index] for index in turkish.tokenize(Document("x", (text,))).ids],
        AutoTokenizer.from_pretrained(tmp_path / "saved").tokenize(text),
    ):
        assert found == expected


def test_a_turkish_source_among_others_is_lower_cased_by_its_rules(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, ["\u0131l\u0131k", "ilik"])
    for language, expected in (("tr", "\u0131l\u0131k"), ("en", "ilik")):
        found = tokenizer.tokenize(Document("x", ("ILIK",)), language=language)
        assert [tokenizer.tokens[index] for index in found.ids] == [expected]


def test_joiners_go_in_the_tokenizer_and_stay_in_bytes() -> None:
    word = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    for algorithm in ("wordpiece", "bpe", "byte_level_bpe"):
        settings = VocabularyConfig(size=380, algorithm=algorithm, lowercase=False)
        backend = train_tokenizer(count_words([word] * 3, settings=settings), settings=settings)
        same = backend.encode(word).ids == backend.encode(word.replace("\u200c", "")).ids
        assert same == (algorithm != "byte_level_bpe")


def test_a_dictionary_marks_the_starts_of_words() -> None:
    pytest.importorskip("icu4py", reason="the extra `words` (icu4py) is not installed")
    thai = "\u0e43\u0e19\u0e1b\u0e352020\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22a \U0001f600"
    dictionary = Dictionary("th")
    assert dictionary.cut([thai]) == [
        ["\u0e43\u0e19\u0e1b\u0e35", "2020", "\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22", "a \U0001f600"]
    ]
    run = [START, *[INSIDE] * 3]
    assert list(dictionary.mark(thai)) == [*run, START, *[BY_TOKENIZER] * 3, START, *[INSIDE] * 8, START, 0, 0]
    assert list(dictionary.mark("ab \uac00")) == [BY_TOKENIZER] * 4
    japanese = "\u3053\u308c\u306f\u65e5\u672c\u8a9e\u3067\u3059\u3002"
    assert Dictionary("ja").cut([japanese]) == [
        ["\u3053\u308c", "\u306f", "\u65e5\u672c\u8a9e", "\u3067\u3059", "\u3002"]
    ]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        # Chinese: a character is a piece; words of several are masked together
        ("zh", "\u6211\u7231\u5317\u4eac\u3002", [1, 1, 1, 0, 1]),
        ("zh-yue", "\u6211\u7231\u5317\u4eac\u3002", [1, 1, 1, 0, 1]),
        # Japanese: taberu is a Chinese character and kana
        ("ja", "\u98df\u3079\u308b\u3002", [1, 0, 0, 1]),
        # Thai: a clause of pieces is cut, but only between pieces
        ("th", "\u0e01\u0e34\u0e19\u0e02\u0e49\u0e32\u0e27 a", [1, 0, 0, 1, 0, 0, 0, 1]),
    ],
)
def test_words_of_a_dictionary_start_words(tmp_path: Path, language: str, text: str, expected: list[int]) -> None:
    pytest.importorskip("icu4py", reason="the extra `words` (icu4py) is not installed")
    letters = sorted(set(text) - {" "})
    tokenizer = make_tokenizer(tmp_path, [*letters, *(f"##{letter}" for letter in letters)], lowercase=False)
    document = Document("x", (text, "a a"))
    found, loss = tokenizer.tokenize_and_count(document, language=language, dictionary=True)
    assert found.word_starts.tolist() == [*map(bool, expected), True, True]
    plain = tokenizer.tokenize(document)
    assert found.ids.tolist() == plain.ids.tolist()
    assert found.sentence_lengths.tolist() == plain.sentence_lengths.tolist()
    assert loss == TextLoss(unknown_characters=2 * ("a" not in text))
    byte_level = VocabularyConfig(size=400, algorithm="byte_level_bpe", lowercase=False)
    backend = train_tokenizer(count_words([text], settings=byte_level), settings=byte_level)
    whole = WordTokenizer(backend, origin="x").tokenize(document, language=language, dictionary=True)
    assert int(whole.word_starts.sum()) == sum(expected) + 2


THAI_WORDS = [
    "\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22",
    "\u0e21\u0e35",
    "\u0e1b\u0e23\u0e30\u0e0a\u0e32\u0e01\u0e23",
]
THAI_CLAUSE = "".join(THAI_WORDS)


def in_bytes(text: str) -> str:
    """The text as a byte-level vocabulary spells it."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "byte_level_bpe"])
def test_a_vocabulary_is_trained_on_words_of_a_dictionary(tmp_path: Path, algorithm: str) -> None:
    """Pieces are those of words within a clause, so a clause is cut where its words begin."""
    pytest.importorskip("icu4py", reason="the extra `words` (icu4py) is not installed")
    settings = VocabularyConfig(size=480, algorithm=algorithm, lowercase=False)
    normalizer, splitter = word_rules(settings)
    counter = WordCounter(
        normalizer=normalizer, splitter=splitter, folder=tmp_path, name="words", joint=JOINT_SIDES[algorithm]
    )
    counter.add([THAI_CLAUSE] * 5, dictionary="th")
    counter.add(["a long " + "b" * 101])
    counts = most_common(counter.finish(), folder=tmp_path, limit=1000)
    first, second, third = THAI_WORDS
    expected = {
        "wordpiece": {first: 5, JOINT + second: 5, JOINT + third: 5, "a": 1, "long": 1},
        "bpe": {first + JOINT: 5, second + JOINT: 5, third: 5, "a": 1, "long": 1},
        # GPT-2's pattern cuts at the mark of the second word too
        "byte_level_bpe": {
            **{in_bytes(part): 5 for part in (" " + first, second[0], second[1], third)},
            "\u0120a": 1,
            "\u0120long": 1,
        },
    }[algorithm]
    assert counts == {**expected, TOO_LONG: 101 + (algorithm == "byte_level_bpe")}
    del counts[TOO_LONG]
    tokenizer = WordTokenizer(train_tokenizer(counts, settings=settings), origin="x")
    found = tokenizer.tokenize(Document("x", (THAI_CLAUSE,)), language="th", dictionary=True)
    if algorithm != "byte_level_bpe":  # there a merge of bytes may cross the end of a word
        assert found.word_starts.tolist() == [True, True, True]
    if algorithm == "wordpiece":
        assert [tokenizer.tokens[index] for index in found.ids] == [first, f"##{second}", f"##{third}"]


def test_vowel_signs_end_no_word_of_bytes() -> None:
    """GPT-2's pattern cuts kul before and after its vowel sign; it is masked as one word."""
    settings = VocabularyConfig(size=400, algorithm="byte_level_bpe", lowercase=False)
    tokenizer = WordTokenizer(train_tokenizer(count_words([HINDI], settings=settings), settings=settings), origin="x")
    found = tokenizer.tokenize(Document("x", (f"{HINDI} {HINDI}, {THAI}",)))
    assert int(found.word_starts.sum()) == 4
    assert found.ids.size > 4
