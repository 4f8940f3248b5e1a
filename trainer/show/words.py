"""The vectors of one word in several texts: where it stands, how alike they are, and a plane that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.settings import ConfigError
from trainer.show.passes import Seen


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The word at one place of one text."""

    text: str
    start: int
    end: int
    """Its first character, and the one behind its last."""
    pieces: tuple[str, ...]
    """The tokens that hold a character of it."""
    vector: Tensor
    """[width]: the mean of these tokens' vectors."""
    is_exact: bool
    """Whether the pieces hold the word alone. Otherwise the vector is of a longer string."""


@dataclass(frozen=True, slots=True)
class Plane:
    """The two directions in which vectors differ most (principal components)."""

    places: tuple[tuple[float, float], ...]
    """One for each vector."""
    shares: tuple[float, float]
    """The share of the vectors' variance in each direction."""


def find_word(word: str, *, seen: Sequence[Seen], layer: int) -> list[Occurrence]:
    """Return every place of `word` in the texts of `seen`, with its vector in a layer (0: the embeddings).

    The word may stand inside a longer one. If no text has it as it is written, its case does not count. Raises
    ConfigError if it stands nowhere.
    """
    found = [each for one in seen for each in _find(one, word=word, layer=layer)]
    if not found and word:
        found = [each for one in seen for each in _find(one, word=word.lower(), layer=layer, lower=True)]
    if not found:
        raise ConfigError(f"--word {word!r}: stands in none of the texts; give it as it is written there")
    return found


def _find(seen: Seen, *, word: str, layer: int, lower: bool = False) -> Iterator[Occurrence]:
    for written, spans in zip(seen.texts, seen.spans, strict=True):
        text = written
        if lower:  # letters whose small form is longer would move the places
            text = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
        start = text.find(word) if word else -1
        while start >= 0:
            end = start + len(word)
            own = [place for place, (first, stop) in enumerate(spans) if first < end and stop > start]
            if own:
                yield Occurrence(
                    text=written,
                    start=start,
                    end=end,
                    pieces=tuple(seen.tokens[place] for place in own),
                    vector=seen.states[layer][own].mean(0),
                    is_exact=spans[own[0]][0] >= start and spans[own[-1]][1] <= end,
                )
            start = text.find(word, end)


def cosines(vectors: Tensor) -> list[list[float]]:
    """Return the cosine of each pair of rows of `vectors` [n, width]."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
    rows: list[list[float]] = (unit @ unit.T).clamp(-1.0, 1.0).tolist()
    return rows


def project(vectors: Tensor) -> Plane:
    """Return the plane of principal components of `vectors` [n, width], n at least 2."""
    centred = vectors.double() - vectors.double().mean(0)
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    places = torch.zeros(len(vectors), 2, dtype=torch.float64)
    places[:, : min(2, len(sizes))] = (left * sizes)[:, :2]
    squares = torch.zeros(2, dtype=torch.float64)
    squares[: min(2, len(sizes))] = sizes[:2] ** 2
    shares = squares / max(float((sizes**2).sum()), 1e-30)
    return Plane(tuple((float(x), float(y)) for x, y in places), (float(shares[0]), float(shares[1])))
