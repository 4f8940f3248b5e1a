"""The demonstration: guesses as transformers makes them, examples in the model's language, held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.dataset.manifest import read_manifest
from trainer import demonstrate
from trainer.model import BertForPretraining
from untrained_run import VOCABULARY_SIZE, write_data

transformers = pytest.importorskip("transformers")


def test_fill_mask_agrees_with_transformers(exported: tuple[Path, BertForPretraining]) -> None:
    text = "t104 [MASK] t300 [MASK]"
    guesses = demonstrate.FillMask(exported[0]).guess(text, count=3)
    other = transformers.pipeline("fill-mask", model=str(exported[0]), top_k=3)(text)
    assert len(guesses) == 2
    for ours, theirs in zip(guesses, other, strict=True):
        assert [guess.token for guess in ours] == [row["token_str"] for row in theirs]
        for guess, row in zip(ours, theirs, strict=True):
            assert guess.probability == pytest.approx(row["score"], rel=1e-4)


def test_demonstration_prints_examples_and_refuses_bad_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demonstrate.main([str(folder)]) == 0
    shown = capsys.readouterr().out
    for example in demonstrate.EXAMPLES["en"]:
        assert f"  {example}\n" in shown
    assert shown.count("%") == 5 * len(demonstrate.EXAMPLES["en"])
    assert demonstrate.main([str(folder), "no mask here"]) == 2
    assert "has no [MASK]" in capsys.readouterr().err
    assert demonstrate.main([str(folder), "\udcff [MASK]"]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
    assert demonstrate.main([str(folder), "[MASK] " + "t104 " * 600]) == 2
    assert "603 tokens exceed the model's 512" in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert demonstrate.main([str(folder)]) == 2
    assert "tokenizer.json: is missing" in capsys.readouterr().err


def test_held_out_texts_are_tried_shown_with_the_right_word_and_counted(
    folder: Path, tokenized: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = demonstrate.FillMask(folder)
    texts = demonstrate.draw_held_out(str(tokenized), tokens=fill.tokens)
    rows = [row for shard in read_manifest(tokenized).shards_of("validation")
            for row in pq.read_table(tokenized / shard.path).to_pylist()]  # fmt: skip
    held_out = {tuple(row["input_ids"][: row["first_length"]]) for row in rows}
    for text in texts:
        assert text.ids[text.place] == fill.tokenizer.token_to_id("[MASK]")
        assert (*text.ids[: text.place], text.answer, *text.ids[text.place + 1 :]) in held_out
        assert len(fill.tokens[text.answer]) >= demonstrate.LETTERS
    assert texts == demonstrate.draw_held_out(str(tokenized), tokens=fill.tokens), "the same ones every time"
    monkeypatch.setattr(demonstrate, "NUM_SHOWN", 3)
    known = iter([text.answer for text in texts])

    def guess(self: object, ids: Sequence[int], **_: object) -> list[tuple[demonstrate.Guess, ...]]:
        place, answer = len(guessed), next(known)
        guessed.append(answer)
        return [(demonstrate.Guess("x", 0.5), demonstrate.Guess(fill.tokens[answer] if place % 3 == 0 else "y", 0.25))]

    guessed: list[int] = []
    monkeypatch.setattr(demonstrate.FillMask, "guess_ids", guess)
    assert demonstrate.main([str(folder), "--held-out", str(tokenized)]) == 0
    shown = capsys.readouterr().out
    right = -(-len(texts) // 3)
    assert f"hold the right word in {right} of {len(texts)} texts ({right / len(texts):.0%}); shown are 1 of" in shown
    assert (shown.count("right: "), shown.count("wrong: ")) == (1, 2)
    assert f"right: {fill.tokens[texts[0].answer]}\n" in shown


def test_held_out_texts_of_another_vocabulary_or_without_words_are_refused(
    folder: Path, tokenized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstrate, "LETTERS", 99)
    assert demonstrate.main([str(folder), "--held-out", str(tokenized)]) == 2
    assert "no held-out row has a word of 99 letters that is a single token" in capsys.readouterr().err
    write_data(tmp_path / "other", size=VOCABULARY_SIZE - 7)
    assert demonstrate.main([str(folder), "--held-out", str(tmp_path / "other")]) == 2
    assert "its vocabulary differs from the model's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("languages", "shown"),
    [
        ("[ko]", ["ko"]),
        ("[en, fr]", ["en", "fr"]),
        ("de", ["de"]),
        ("[zh-yue, pt-br]", ["pt"]),
        ("[fi]", []),
        ("", ["en"]),
    ],
)
def test_examples_are_in_the_languages_of_the_model(tmp_path: Path, languages: str, shown: list[str]) -> None:
    (tmp_path / "README.md").write_text(f"---\nlanguage: {languages}\nlicense: mit\n---\n\n# Model\n")
    if not shown:
        with pytest.raises(ValueError, match=r"there are no examples for a model of fi; give texts with"):
            demonstrate.find_examples(tmp_path)
        return
    expected = [text for language in shown for text in demonstrate.EXAMPLES[language]]
    assert demonstrate.find_examples(tmp_path) == expected
    assert all(text.count("[MASK]") == 1 for text in expected)


def test_a_hangul_syllable_counts_as_two_letters() -> None:
    """Korean words have two to four syllables; with one syllable a letter, few held-out words would be tried."""
    tokens = ["\uad6d\ubbfc", "\ubc95", "\ub300\ud1b5\ub839", "##\uc740", "king", "the", "\uad6d."]
    ids = [0, 1, 2, 3, 4, 5, 6, 0]
    tried = [demonstrate._is_word(ids, place=place, tokens=tokens) for place in range(7)]
    assert tried == [True, False, False, False, True, False, False]
