"""Exact match and F1 of answers, as the scorers of SQuAD 1.1, SQuAD 2.0 and KorQuAD count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from trainer.finetune.examples import Example, Question
from trainer.finetune.predictions import Answers, Prediction
from trainer.finetune.tasks import AnswerRules

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KORQUAD_MARKS = "'\"\u300a\u300b<>\u3008\u3009()\u2018\u2019"
"""What KorQuAD's scorer takes away before all other punctuation."""


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space (SQuAD's evaluate-v1.1.py)."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def normalize_korean(text: str) -> str:
    """Lower case, without punctuation and repeated white space (KorQuAD's evaluate-v1.0.py)."""
    kept = text.translate({ord(mark): " " for mark in _KORQUAD_MARKS})
    kept = "".join(letter for letter in kept.lower() if letter not in string.punctuation)
    return " ".join(kept.split())


def f1_of(answer: str, *, gold: str, rules: AnswerRules) -> float:
    """Return F1 over words, or over characters for korquad. If both are empty: 1 for squad2, else 0."""
    if rules == "korquad":
        found, wanted = (list(normalize_korean(text).replace(" ", "")) for text in (answer, gold))
    else:
        found, wanted = (normalize_answer(text).split() for text in (answer, gold))
    if not found or not wanted:
        return float(rules == "squad2" and found == wanted)
    same = sum((Counter(found) & Counter(wanted)).values())
    return 2 * same / (len(found) + len(wanted))


def matches(answer: str, *, gold: str, rules: AnswerRules) -> bool:
    """Return whether both are the same once normalized."""
    normalize = normalize_korean if rules == "korquad" else normalize_answer
    return normalize(answer) == normalize(gold)


def score_text(text: str, *, question: Question, rules: AnswerRules) -> tuple[float, float]:
    """Return exact match and F1 of one answer, each against the correct answer that gives most. "" is no answer."""
    golds = [gold for gold, _ in question.answers or ()]
    if rules == "squad2":  # evaluate-v2.0.py drops correct answers that are empty once normalized, such as "the"
        golds = [gold for gold in golds if normalize_answer(gold)]
    golds = golds or [""]
    exact = max(float(matches(text, gold=gold, rules=rules)) for gold in golds)
    return exact, max(f1_of(text, gold=gold, rules=rules) for gold in golds)


def choose_texts(predictions: Sequence[Prediction], *, threshold: float | None) -> list[str]:
    """Each question's answer; "" where no answer is ahead by more than `threshold` (None: there always is one)."""
    texts = []
    for answers in predictions:
        assert isinstance(answers, Answers)
        texts.append("" if threshold is not None and answers.null_odds > threshold else answers.best[0].text)
    return texts


def tune_threshold(predictions: Sequence[Prediction], *, examples: Sequence[Example]) -> float:
    """The threshold of null_odds with the greatest F1 (find_best_thresh of evaluate-v2.0.py).

    Tuned on what it is reported on, as SQuAD 2.0's own best_f1 is.
    """
    rows = []
    for answers, question in zip(predictions, examples, strict=True):
        assert isinstance(answers, Answers)
        assert isinstance(question, Question)
        with_answer = score_text(answers.best[0].text, question=question, rules="squad2")[1]
        rows.append((answers.null_odds, with_answer - float(not question.answers)))
    best, total, threshold = 0.0, 0.0, min((odds for odds, _ in rows), default=0.0) - 1.0
    for odds, gain in sorted(rows):
        total += gain
        if total > best:
            best, threshold = total, odds
    return threshold
