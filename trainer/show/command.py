"""The command: `python -m trainer.show MODEL PAGE TEXT...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline import storage
from pipeline.console import command, say_at_once
from pipeline.settings import ConfigError
from pipeline.storage import expand_path
from pipeline.units import count_of
from trainer.hf import MASK
from trainer.show.page import render
from trainer.show.passes import Viewer
from trainer.show.words import find_word

NUM_GUESSES = 8
PROGRAM = "python -m trainer.show"


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status: 0 if the page was written, 2 if the request was refused."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Write one HTML page that opens without a network: attention maps of every text, guesses for "
        f"{MASK}, next-sentence predictions of pairs, and the vectors of one word in several texts.",
    )
    parser.add_argument("model", help="folder of an export, or of a BERT saved by transformers; a path or URL")
    parser.add_argument("page", help="file to write, which ends with .html")
    parser.add_argument("texts", nargs="*", help=f"texts, with or without {MASK}")
    parser.add_argument(
        "--pair", nargs=2, action="append", default=[], metavar=("FIRST", "SECOND"), help="a pair of texts; repeatable"
    )
    parser.add_argument("--word", help="show the vectors of this word, wherever it stands in the texts")
    parser.add_argument(
        "--word-layer", type=int, default=-1, help="layer of these vectors; 0: the embeddings, -1: the last (default)"
    )
    parser.add_argument("--layers", help="layers whose attention is shown, such as 1,12; default: all")
    parser.add_argument("--guesses", type=int, default=NUM_GUESSES, help=f"guesses for each {MASK} (default: 8)")
    options = parser.parse_intermixed_args(arguments)
    if not options.page.endswith((".html", ".htm")):
        raise ConfigError(f"{options.page}: is no name of a page; give a file that ends with .html")
    if not (options.texts or options.pair):
        raise ConfigError(f"{PROGRAM}: has nothing to show; give texts, or --pair FIRST SECOND")
    if options.guesses < 1:
        raise ConfigError(f"--guesses {options.guesses}: must be at least 1")
    model, page = expand_path(options.model, key="model"), expand_path(options.page, key="page")
    viewer = Viewer(model)
    num_layers, num_heads = viewer.shape
    layers = parse_layers(options.layers, count=num_layers)
    if not -num_layers - 1 <= options.word_layer <= num_layers:
        raise ConfigError(
            f"--word-layer {options.word_layer}: the model has layers 0 to {num_layers}; give one of them"
        )
    rows = [(text, None) for text in options.texts] + [(first, second) for first, second in options.pair]
    seen = [viewer.look(first, second, count=options.guesses) for first, second in rows]
    word_layer = options.word_layer % (num_layers + 1)
    found = find_word(options.word, seen=seen, layer=word_layer) if options.word is not None else ()
    facts = (
        f"{count_of(num_layers, 'layer')} of {count_of(num_heads, 'head')}, "
        f"{viewer.model.config.width} wide, {viewer.model.vocabulary_size:,} tokens. "
        f"Weights are rounded by at most 0.4%."
    )
    text = render(
        model=options.model,
        facts=facts,
        seen=seen,
        layers=layers,
        word=options.word,
        found=found,
        word_layer=word_layer,
    )
    if not storage.is_url(page):
        Path(page).parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(page, text.encode("utf-8"))
    say_at_once(f"{page}: {count_of(len(seen), 'text')}, {len(text) / 1e6:.1f} MB; open it in a browser")
    return 0


def parse_layers(given: str | None, *, count: int) -> list[int]:
    """Return numbers of layers from 1, in order, from a text such as `1,12`; None means all. Raises ConfigError."""
    if given is None:
        return list(range(1, count + 1))
    try:
        numbers = sorted({int(word) for word in given.split(",")})
    except ValueError as error:
        raise ConfigError(f"--layers {given}: give numbers with commas between, such as 1,{count}") from error
    if not all(1 <= number <= count for number in numbers):
        raise ConfigError(f"--layers {given}: the model has layers 1 to {count}; give some of them")
    return numbers
