"""Token ids with targets: what the model sees of an example.

One feature an example; of a question one for each window of its context, of tagged units one for each max_length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tokenizers import Encoding, Tokenizer

from pipeline import storage
from pipeline.storage import Location, locate
from trainer.data import NO_LABEL
from trainer.finetune.examples import ChoiceExample, Example, Question, TaggedExample, TaskDataError, TextExample

LONGEST_QUESTION = 64
"""Tokens of a question, as in google-research/bert's run_squad.py."""
_SLICE = 1000
"""Texts that are tokenized at once."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row: [CLS] first [SEP] second [SEP]."""

    ids: tuple[int, ...]
    first_length: int
    """Tokens of segment 0, [CLS] and its [SEP] included."""


Target: TypeAlias = int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Feature:
    """What one forward pass sees of an example."""

    example: int
    """Its number in its split."""
    rows: tuple[Tokens, ...]
    """One; a row for each choice."""
    target: Target
    """Class or choice (NO_LABEL: not known), number, a class for each token, or places of start and end."""
    places: tuple[int, ...] = ()
    """tagging: for each token the unit that it is the first piece of, else -1. qa: where each token begins in the
    context, in characters, -1 outside of it."""
    ends: tuple[int, ...] = ()
    """qa: where each token ends."""
    widest: tuple[bool, ...] = ()
    """qa: whether the token has more context here than in the other windows."""


class TextEncoder:
    """A model's tokenizer with the longest row of a run."""

    def __init__(self, folder: str | Path, *, max_length: int) -> None:
        path = locate(folder, "tokenizer.json")
        if storage.find_file(path) is None:
            raise TaskDataError(f"{path}: is missing; give an export, or save the model's tokenizer there")
        self._tokenizer = Tokenizer.from_str(storage.read_bytes(path).decode("utf-8"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.max_length = max_length
        self.num_cut = 0
        """Rows that were longer so far."""
        self.pad, self.cls, self.sep = (self._find(path, token=token) for token in ("[PAD]", "[CLS]", "[SEP]"))

    def _find(self, path: Location, *, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise TaskDataError(f"{path}: has no {token}; give a model with BERT's special tokens")
        return int(found)

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of `ids`, as the vocabulary writes them."""
        return [str(self._tokenizer.id_to_token(each)) for each in ids]

    def unknown_share(self, texts: Sequence[str]) -> float:
        """Return which share of the pieces of `texts` is [UNK]."""
        ids = [each for encoding in self.encode(texts) for each in encoding.ids]
        unknown = self._tokenizer.token_to_id("[UNK]")
        return sum(each == unknown for each in ids) / max(1, len(ids))

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Pieces and their places in the text, without special tokens and not cut."""
        return list(self._tokenizer.encode_batch(list(texts), add_special_tokens=False))

    def join(self, first: Sequence[int], second: Sequence[int] | None = None) -> Tokens:
        """A row of one text or two, cut at max_length: tokens go from the end of the longer text, as in
        google-research/bert's run_classifier.py."""
        head, tail = list(first), list(second or ())
        room = self.max_length - (2 if second is None else 3)
        self.num_cut += len(head) + len(tail) > room
        excess = len(head) + len(tail) - room
        while excess > 0:
            longer = head if len(head) > len(tail) else tail
            longer.pop()
            excess -= 1
        ids = [self.cls, *head, self.sep]
        return Tokens((*ids, *tail, self.sep) if second is not None else tuple(ids), len(ids))


def make_features(
    examples: Sequence[Example], *, encoder: TextEncoder, labels: Sequence[str], stride: int
) -> list[Feature]:
    """The features of a split, in the order of its examples. `labels`: classes in the order of their numbers."""
    numbers = {label: number for number, label in enumerate(labels)}
    features: list[Feature] = []
    for start in range(0, len(examples), _SLICE):
        part = examples[start : start + _SLICE]
        texts = [text for example in part for text in list_texts(example)]
        encodings = iter(encoder.encode(texts))
        for number, example in enumerate(part, start):
            own = [next(encodings) for _ in list_texts(example)]
            features.extend(_make(example, own, number=number, encoder=encoder, numbers=numbers, stride=stride))
    return features


def list_texts(example: Example) -> list[str]:
    """All texts of an example that are tokenized, in order."""
    if isinstance(example, TextExample):
        return [example.first] if example.second is None else [example.first, example.second]
    if isinstance(example, TaggedExample):
        return [example.separator.join(example.units)]
    if isinstance(example, Question):
        return [example.question.strip(), example.context]
    return [example.first, *example.choices]


def _make(
    example: Example, own: list[Encoding], *, number: int, encoder: TextEncoder, numbers: dict[str, int], stride: int
) -> Iterator[Feature]:
    if isinstance(example, TextExample):
        row = encoder.join(own[0].ids, own[1].ids if len(own) > 1 else None)
        target: int | float = NO_LABEL
        if isinstance(example.label, float):
            target = example.label
        elif example.label is not None:
            target = numbers.get(example.label, NO_LABEL)  # a class that training has not is never right
        yield Feature(number, (row,), target)
    elif isinstance(example, ChoiceExample):
        rows = tuple(encoder.join(own[0].ids, each.ids) for each in own[1:])
        yield Feature(number, rows, NO_LABEL if example.label is None else example.label)
    elif isinstance(example, TaggedExample):
        yield from _tag(example, own[0], number=number, encoder=encoder, numbers=numbers)
    else:
        yield from _window(example, own[0].ids, own[1], number=number, encoder=encoder, stride=stride)


def _tag(
    example: TaggedExample, encoding: Encoding, *, number: int, encoder: TextEncoder, numbers: dict[str, int]
) -> Iterator[Feature]:
    """A unit's label stands at its first piece; longer texts go on in another row."""
    starts, place = [], 0
    for unit in example.units:
        starts.append(place)
        place += len(unit) + len(example.separator)
    places: list[int] = []
    last = -1
    for start, _ in encoding.offsets:
        own_unit = bisect_right(starts, start) - 1
        places.append(own_unit if own_unit != last else -1)
        last = own_unit
    room = encoder.max_length - 2
    for first in range(0, max(1, len(places)), room):
        own = places[first : first + room]
        row = Tokens((encoder.cls, *encoding.ids[first : first + room], encoder.sep), len(own) + 2)
        target = [
            numbers.get(example.labels[unit], NO_LABEL) if unit >= 0 and example.labels is not None else NO_LABEL
            for unit in own
        ]
        yield Feature(number, (row,), (NO_LABEL, *target, NO_LABEL), places=(-1, *own, -1))


def _window(
    example: Question, question: list[int], context: Encoding, *, number: int, encoder: TextEncoder, stride: int
) -> Iterator[Feature]:
    longest = min(LONGEST_QUESTION, (encoder.max_length - 3) // 2)  # half of a short row is for the context
    head = [encoder.cls, *question[:longest], encoder.sep]
    room = encoder.max_length - len(head) - 1
    spans = list(window_spans(len(context.ids), room=room, stride=min(stride, room)))
    answer = _find_answer(example, context)
    for start, stop in spans:
        row = Tokens((*head, *context.ids[start:stop], encoder.sep), len(head))
        inside = answer is not None and start <= answer[0] and answer[1] < stop
        target = (0, 0)
        if inside and answer is not None:
            target = (len(head) + answer[0] - start, len(head) + answer[1] - start)
        outside = (-1,) * len(head)
        own = context.offsets[start:stop]
        yield Feature(
            number,
            (row,),
            target,
            places=(*outside, *(begin for begin, _ in own), -1),
            ends=(*outside, *(end for _, end in own), -1),
            widest=(*(False for _ in head), *_widest(spans, (start, stop)), False),
        )


def window_spans(length: int, *, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Windows of at most `room` tokens that begin every `stride`, until one holds the end."""
    start = 0
    while True:
        yield start, min(start + room, length)
        if start + room >= length:
            return
        start += stride


def _widest(spans: Sequence[tuple[int, int]], own: tuple[int, int]) -> Iterator[bool]:
    """For each token of a window, whether no other has more context around it (run_squad.py, _check_is_max_context)."""
    for token in range(*own):
        scores = [
            (min(token - start, stop - 1 - token) + 0.01 * (stop - start), -start)
            for start, stop in spans
            if start <= token < stop
        ]
        start, stop = own
        yield (min(token - start, stop - 1 - token) + 0.01 * (stop - start), -start) == max(scores)


def _find_answer(example: Question, context: Encoding) -> tuple[int, int] | None:
    """Return the first and last token of the first answer, or None if there is no answer."""
    if not example.answers:
        return None
    text, start = example.answers[0]
    last = start + len(text) - 1
    touching = [place for place, (begin, end) in enumerate(context.offsets) if begin <= last and end > start]
    return (touching[0], touching[-1]) if touching else None
