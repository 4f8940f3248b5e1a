"""Korean, where words have endings: an answer inside a word, one syllable in two meanings, masks before particles."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from task_models import SPECIAL, make_config, write_model
from trainer.demonstrate import FillMask
from trainer.features import main as write_features
from trainer.finetune import Result, finetune
from trainer.finetune.answers import f1_of, matches
from trainer.finetune.endings import count_cut, learn_endings
from trainer.finetune.examples import Question
from trainer.finetune.features import TextEncoder

GRAVITY, LIGHT, FORCE = "\uc911\ub825", "\ud587\ube5b", "\uc804\uae30"
OF, WHAT, STRONG = "\uc758", "\ubb34\uc5c7", "\ud06c\ub2e4"
HARBOUR = "\ub098\ub294 \ud56d\uad6c\uc5d0 \ub4e4\ub7ec \ubc30\ub97c \ud0d4\ub2e4"
FRUIT = "\ub098\ub294 \uc0ac\uacfc\uc640 \ubc30\ub97c \uba39\uc5c8\ub2e4"
MASKED = "\ub098\ub294 [MASK]\uc5d0 \uac00\uc11c \uadf8\uacf3\uc5d0\uc11c \ube75\uacfc [MASK]\ub97c \uc0c0\ub2e4"
PEAR_OR_SHIP = "\ubc30"


def words_of(*texts: str) -> list[str]:
    """A vocabulary of syllables, at the begin of a word and within one, and of three nouns."""
    letters = sorted({letter for text in texts for letter in text if letter.isalnum() and not letter.isascii()})
    return [*SPECIAL, GRAVITY, LIGHT, FORCE, *letters, *(f"##{letter}" for letter in letters), "."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = words_of(GRAVITY, LIGHT, FORCE, OF, WHAT, STRONG, HARBOUR, FRUIT, MASKED)
    return write_model(tmp_path_factory.mktemp("korean"), words=words, lowercase=False)


def write_korquad(folder: Path) -> None:
    """Each context has one of three nouns with the ending `of`; the answer is the noun without it."""
    for split, size in (("train", 60), ("dev", 12)):
        paragraphs = []
        for number in range(size):
            noun = (GRAVITY, LIGHT, FORCE)[number % 3]
            context = f"{WHAT} {WHAT} {noun}{OF} {STRONG}." if number % 2 else f"{noun}{OF} {STRONG}. {WHAT}."
            answers = [{"text": noun, "answer_start": context.index(noun)}]
            paragraphs.append(
                {"context": context, "qas": [{"id": f"{split}{number}", "question": WHAT, "answers": answers}]}
            )
        tree = {"version": "KorQuAD_v1.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"KorQuAD_v1.0_{split}.json").write_text(json.dumps(tree), encoding="utf-8")


def answer(model: Path, folder: Path) -> Result:
    """Fine-tune on the questions, and check that the first answers of dev are the nouns alone."""
    write_korquad(folder)
    config = make_config("korquad", model=model, data=folder, output=folder / "out", max_length=32, epochs=8.0)
    found = finetune(config, say=lambda line: None)
    assert found is not None
    texts = json.loads((folder / "out" / "predictions.json").read_text(encoding="utf-8"))
    assert [texts[f"dev{number}"] for number in range(6)] == [GRAVITY, LIGHT, FORCE] * 2
    return found


def test_an_answer_inside_a_word_comes_without_the_ending(model: Path, tmp_path: Path) -> None:
    found = answer(model, tmp_path)
    assert found.metrics["dev"]["exact_match"] == found.metrics["dev"]["answer_f1"] == 1.0
    assert not matches(GRAVITY + OF, gold=GRAVITY, rules="korquad"), "the whole word is not the answer"
    assert f1_of(GRAVITY + OF, gold=GRAVITY, rules="korquad") == pytest.approx(0.8), "2 of 3 syllables"


def test_an_ending_inside_a_piece_is_cut_where_training_answers_stop_before_it(tmp_path: Path) -> None:
    """The vocabulary has only the end of the noun with its particle; a noun that ends like a particle stays whole."""
    nouns = [noun[0] for noun in (GRAVITY, LIGHT, FORCE)]
    ends = [f"##{noun[1:]}{OF}" for noun in (GRAVITY, LIGHT, FORCE)]
    notice = "\uc8fc" + OF  # ends with the syllable of the particle, but is all noun
    words = [*SPECIAL, *nouns, *ends, "\uc8fc", f"##{OF}", notice, WHAT, STRONG, "."]
    model = write_model(tmp_path / "model", words=words, lowercase=False)
    found = answer(model, tmp_path)
    assert found.metrics["dev"]["exact_match"] == 1.0

    encoder = TextEncoder(model, max_length=32)
    stops = [Question("0", WHAT, f"{GRAVITY}{OF} {STRONG}", ((GRAVITY, 0),))] * 6
    whole = [Question("1", WHAT, f"{notice} {STRONG}", ((notice, 0),))] * 5
    endings = learn_endings([*stops, *whole], encoder=encoder)
    assert endings == {OF: True}, "6 of 11 answers stop before it"
    assert count_cut(GRAVITY[1:] + OF, endings=endings) == 1
    assert count_cut(OF, endings=endings) == 0, "a whole piece is never cut"
    assert count_cut(notice, endings=learn_endings([*stops[:5], *whole, *whole], encoder=encoder)) == 0


def test_one_syllable_has_another_vector_in_another_sentence(model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"{HARBOUR}\n{FRUIT}\n", encoding="utf-8")

    def vectors(layer: int) -> list[np.ndarray]:
        out = str(tmp_path / f"{layer}.parquet")
        words = ["--model", str(model), "--input", str(tmp_path / "texts.txt"), "--output", out, "pool=tokens"]
        assert write_features([*words, f"layers.numbers=[{layer}]", "device=cpu"]) == 0
        rows = pq.read_table(out).to_pylist()
        return [np.array(row["vectors"][row["tokens"].index(PEAR_OR_SHIP)]) for row in rows]

    one, other = vectors(-1)
    assert one.shape == (128,)
    assert not np.allclose(one, other, atol=0.1)
    again, _ = vectors(-1)
    np.testing.assert_array_equal(one, again)


def test_each_mask_before_a_particle_gets_guesses(model: Path) -> None:
    guesses = FillMask(model).guess(MASKED)
    assert [len(row) for row in guesses] == [5, 5]
    assert all(sum(guess.probability for guess in row) <= 1.0 for row in guesses)
