"""Cuts endings of words off answers, for languages whose particles follow a noun without a space.

Three of five answers of KorQuAD stop inside a word, before a particle. A vocabulary may have the end of the noun and
the particle in one piece, which no span of pieces can divide. What to cut is learned from the training answers, not
from a list of particles: an ending is cut if most answers whose last piece has it stop before it. With 8,000 pieces,
spans of pieces can be 78.4% of the answers of held-out articles exactly, and 98.4% with endings cut. Costs one
tokenization of the contexts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from trainer.finetune.examples import Example, Question
from trainer.finetune.features import TextEncoder

LONGEST = 4
"""Characters of an ending at most."""
FEWEST = 5
"""Answers that must have an ending before it counts."""


def learn_endings(examples: Sequence[Example], *, encoder: TextEncoder) -> dict[str, bool]:
    """Return, for each ending of the last pieces of answers, whether most of these answers stop before it."""
    seen: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    questions = [example for example in examples if isinstance(example, Question) and example.answers]
    contexts = dict.fromkeys(question.context for question in questions)
    pieces = {text: found.offsets for text, found in zip(contexts, encoder.encode(list(contexts)), strict=True)}
    for question in questions:
        text, start = (question.answers or ())[0]
        stop = start + len(text)
        begin, end = next((place for place in pieces[question.context] if place[0] < stop <= place[1]), (0, 0))
        rest = question.context[stop:end]
        for ending in _endings(question.context[begin:end]):
            seen[ending] += 1
            cut[ending] += ending == rest
    return {ending: 2 * cut[ending] > count for ending, count in seen.items() if count >= FEWEST}


def count_cut(piece: str, *, endings: Mapping[str, bool]) -> int:
    """Return how many characters to cut from the end of an answer's last piece. The longest known ending decides."""
    known = next((ending for ending in _endings(piece) if ending in endings), None)
    return len(known) if known is not None and endings[known] else 0


def _endings(piece: str) -> list[str]:
    """The endings of a piece, longest first; the piece itself is none."""
    return [piece[-size:] for size in range(min(LONGEST, len(piece) - 1), 0, -1)]
