"""The HTML page: tables and the plane are written here, and page.html draws the attention from bytes in the page."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

import torch
from torch import Tensor

from pipeline.settings import ConfigError
from trainer.hf import MASK, Guess
from trainer.show.passes import Seen
from trainer.show.words import Occurrence, Plane, cosines, project

MOST_BYTES = 48 << 20
"""Attention weights of a page, one byte each. A browser takes seconds for more."""
_SIDE, _EDGE = 320, 46
_AROUND = 60
"""Characters of a text that are shown before and after the word."""


def render(
    *,
    model: str,
    facts: str,
    seen: Sequence[Seen],
    layers: Sequence[int],
    word: str | None = None,
    found: Sequence[Occurrence] = (),
    word_layer: int = 0,
) -> str:
    """Return the page. `layers` are numbers of layers from 1 whose attention is shown; `found` are the places of `word`
    with their vectors in the layer `word_layer`.

    Raises ConfigError if the page would be too large.
    """
    size = sum(len(layers) * each.attention.shape[1] * len(each.tokens) ** 2 for each in seen)
    if size > MOST_BYTES:
        raise ConfigError(
            f"the attention weights would take {size / 2**20:.0f} MB, more than {MOST_BYTES >> 20}; name fewer layers "
            f"with --layers, or give fewer or shorter texts"
        )
    title = f"What {model} sees"
    body = [f"<header><h1>{escape(title)}</h1><p class=soft>{escape(facts)}</p></header>"]
    if word is not None:
        body.append(_render_word(word, found=found, layer=word_layer))
    body += [_render_text(each) for each in seen]
    data = json.dumps([_to_data(each, layers=layers) for each in seen])
    parts = {"title": escape(title), "body": "\n".join(body), "data": data.replace("<", "\\u003c")}
    page = files("trainer.show").joinpath("page.html").read_text(encoding="utf-8")
    before, rest = page.split("{{title}}")
    between, rest = rest.split("{{body}}")
    middle, after = rest.split("{{data}}")
    return "".join([before, parts["title"], between, parts["body"], middle, parts["data"], after])


def _to_data(seen: Seen, *, layers: Sequence[int]) -> dict[str, object]:
    weights: Tensor = seen.attention[[number - 1 for number in layers]]
    content = (255 * weights.sqrt()).round().byte().contiguous().numpy().tobytes()
    return {
        "tokens": seen.tokens,
        "layers": len(layers),
        "numbers": layers,
        "heads": weights.shape[1],
        "roots": base64.b64encode(content).decode("ascii"),
    }


def _render_text(seen: Seen) -> str:
    parts = [f"<h2><bdi>{escape(seen.first)}</bdi>"]
    if seen.second is not None:
        parts.append(f"<br><bdi>{escape(seen.second)}</bdi>")
    parts.append("</h2>")
    if seen.second is not None:
        parts.append(_render_next(seen.is_next))
    if seen.guesses:
        tables = [_render_guesses(number, guesses) for number, (_, guesses) in enumerate(seen.guesses, 1)]
        parts.append(f"<div class=masks>{''.join(tables)}</div>")
    parts.append("<h3>Attention</h3><div class=attention></div>")
    return f"<section>{''.join(parts)}</section>"


def _render_next(is_next: float | None) -> str:
    if is_next is None:
        return "<p>The model has no head for next sentences.</p>"
    rows = (("the second follows the first", is_next), ("it does not", 1.0 - is_next))
    return f"<table>{''.join(_render_bar(escape(name), share) for name, share in rows)}</table>"


def _render_guesses(number: int, guesses: Sequence[Guess]) -> str:
    rows = "".join(_render_bar(f"<bdi>{escape(guess.token)}</bdi>", guess.probability) for guess in guesses)
    head = f"<thead><tr><th colspan=3>{MASK} {number}</th></tr></thead>"
    return f"<table>{head}{rows}</table>"


def _render_bar(name: str, share: float) -> str:
    bar = f'<span class=bar><i style="width: {100 * share:.2f}%"></i></span>'
    return f"<tr><td>{name}</td><td class=number>{100 * share:.1f}%</td><td>{bar}</td></tr>"


def _render_word(word: str, *, found: Sequence[Occurrence], layer: int) -> str:
    rows = []
    for number, each in enumerate(found, 1):
        first, stop = max(0, each.start - _AROUND), each.end + _AROUND
        before, after = each.text[first : each.start], each.text[each.end : stop]
        text = (
            f"<bdi>{'...' if first else ''}{escape(before)}<mark>{escape(each.text[each.start : each.end])}</mark>"
            f"{escape(after)}{'...' if stop < len(each.text) else ''}</bdi>"
        )
        where = f"character {each.end}" if each.end == each.start + 1 else f"characters {each.start + 1} to {each.end}"
        pieces = " ".join(f"<bdi>{escape(piece)}</bdi>" for piece in each.pieces)
        note = "" if each.is_exact else " (hold more than the word)"
        rows.append(f"<tr><td class=number>{number}</td><td>{text}</td><td>{where}</td><td>{pieces}{note}</td></tr>")
    head = "<thead><tr><th></th><th>text</th><th>where</th><th>tokens</th></tr></thead>"
    parts = [
        f"<h2>Vectors of <mark><bdi>{escape(word)}</bdi></mark> in layer {layer}</h2>",
        f"<div class=scroll><table>{head}{''.join(rows)}</table></div>",
    ]
    if len(found) > 1:
        vectors = [each.vector for each in found]
        parts += _render_likeness(vectors)
    return f"<section>{''.join(parts)}</section>"


def _render_likeness(vectors: Sequence[Tensor]) -> Iterator[str]:
    stacked = torch.stack(list(vectors))
    yield "<div class=likeness><div><h3>Cosines</h3><div class=scroll><table class=matrix>"
    numbers = range(1, len(vectors) + 1)
    yield f"<tr><th></th>{''.join(f'<th>{number}</th>' for number in numbers)}</tr>"
    for number, row in zip(numbers, cosines(stacked), strict=True):
        cells = "".join(
            f'<td style="background: rgba(var(--accent), {0.6 * max(0.0, value):.3f})">{value:.3f}</td>'
            for value in row
        )
        yield f"<tr><th>{number}</th>{cells}</tr>"
    yield "</table></div></div>"
    plane = project(stacked)
    yield "<figure>" + _draw(plane)
    yield (
        f"<figcaption>The plane in which the vectors differ most: {plane.shares[0]:.0%} of their variance from left to "
        f"right, {plane.shares[1]:.0%} from top to bottom.</figcaption></figure></div>"
    )


def _draw(plane: Plane) -> str:
    most = max((abs(value) for place in plane.places for value in place), default=0.0) or 1.0
    half, scale = _SIDE / 2, (_SIDE / 2 - _EDGE) / most
    marks = []
    for number, (x, y) in enumerate(plane.places, 1):
        across, down = half + scale * x, half - scale * y
        marks.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="5"/>')
        marks.append(f'<text x="{across + 9:.1f}" y="{down + 4:.1f}">{number}</text>')
    lines = (
        f'<line class=axis x1="{half}" y1="8" x2="{half}" y2="{_SIDE - 8}"/>'
        f'<line class=axis x1="8" y1="{half}" x2="{_SIDE - 8}" y2="{half}"/>'
    )
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" width="{_SIDE}" height="{_SIDE}" role="img" '
        f'aria-label="vectors on a plane">{lines}{"".join(marks)}</svg>'
    )
