"""Show what a model fills in: `python -m trainer.demonstrate EXPORT [--held-out DATA] ["text with [MASK]" ...]`.

Runs our own model on the exported weights, so it needs no transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from pipeline import storage
from pipeline.console import command, exit_with
from pipeline.dataset import TOKENIZER_FOLDER, read_manifest, schema
from pipeline.settings import parse_yaml
from trainer.data import read_row_group
from trainer.hf import load_model, read_vocabulary
from trainer.model import Batch, BertForPretraining

MASK = "[MASK]"
EXAMPLES = {
    "en": (
        "In the beginning God created the heaven and the [MASK].",
        "And the king said [MASK] him, What is thy name?",
        "He was born [MASK] 1902 in New York City.",
    ),
    "de": ("Er wurde [MASK] Jahr 1902 in Berlin geboren.", "Die Hauptstadt [MASK] Frankreich ist Paris."),
    "es": ("Fue un pintor [MASK] nacido en Madrid.", "La capital [MASK] Francia es Paris."),
    "fr": ("Il est mort le 3 mai 1902 [MASK] Paris.", "La capitale [MASK] la France est Paris."),
    "it": ("Nacque [MASK] Roma nel 1902.", "La capitale [MASK] Francia si chiama Parigi."),
    "pt": ("Ele nasceu [MASK] Lisboa em 1902.", "A capital [MASK] Portugal se chama Lisboa."),
    "ko": (
        "\ub300\ud55c\ubbfc\uad6d\uc758 [MASK] \uc11c\uc6b8\uc774\ub2e4.",
        "\uadf8\ub294 1902\ub144 \uc11c\uc6b8\uc5d0\uc11c [MASK].",
    ),
}
"""By the language that the export's card names; for any data set there is --held-out."""
NUM_GUESSES = 5
NUM_SHOWN = 12
NUM_COUNTED = 500
"""Held-out texts that are tried; the first NUM_SHOWN of them are shown, whatever comes out."""
LETTERS = 4
"""Fewest letters of a word that is masked: the commonest words, which need no context, are shorter."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A token for a masked place."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True)
class Cloze:
    """A held-out text with one word masked."""

    ids: tuple[int, ...]
    """[CLS] text [SEP], with [MASK] at `place`."""
    place: int
    answer: int
    """The token that stands there."""


class FillMask:
    """A model folder with its tokenizer. ValueError (PretrainedError) where it cannot be read."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.model: BertForPretraining = load_model(self.folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{path}: is missing; give an export of `python -m trainer.export`")
        self.tokenizer = Tokenizer.from_file(str(path))
        self.tokens = read_vocabulary(self.folder).tokens

    @torch.no_grad()
    def guess(self, text: str, *, count: int = NUM_GUESSES) -> list[list[Guess]]:
        """The `count` likeliest tokens for every [MASK] of `text`, best first.

        Raises ValueError where it is no UTF-8 text, there is no [MASK], or more tokens than the model has positions.
        """
        try:
            ids = self.tokenizer.encode(text).ids
        except TypeError as error:  # bytes of the command line that are no text
            raise ValueError(f"{text!r}: is not UTF-8 text") from error
        masks = [place for place, token in enumerate(ids) if token == self.tokenizer.token_to_id(MASK)]
        if not masks:
            raise ValueError(f"'{text}': holds no {MASK}; put one where a token is to be guessed")
        if len(ids) > self.model.config.max_positions:
            raise ValueError(
                f"'{text[:40]}...': {len(ids)} tokens exceed the model's {self.model.config.max_positions}; shorten it"
            )
        return self.guess_ids(ids, masks=masks, count=count)

    @torch.no_grad()
    def guess_ids(self, ids: Sequence[int], *, masks: Sequence[int], count: int = NUM_GUESSES) -> list[list[Guess]]:
        """The same for a text's ids, special tokens included, and the places of its [MASK]."""
        logits, _ = self.model.logits(_one_text(ids, masks=masks))
        best = torch.softmax(logits, -1).topk(min(count, self.model.vocabulary_size))
        return [
            [Guess(self.tokens[token], share) for token, share in zip(tokens, shares, strict=True)]
            for tokens, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def describe(text: str, *, guesses: Sequence[Sequence[Guess]]) -> list[str]:
    """Lines that show a text and, for each [MASK] of it, the guesses."""
    lines = [f"  {text}"]
    for row in guesses:
        lines.append("    " + "   ".join(f"{guess.token} {guess.probability:.1%}" for guess in row))
    return lines


def draw_held_out(data: str, *, tokens: Sequence[str], count: int = NUM_COUNTED) -> list[Cloze]:
    """The first segments of held-out rows, each with a word of LETTERS letters or more masked: draws by a fixed seed.

    Only words that are one token are masked. Raises ValueError if the vocabulary is not `tokens`, or if no held-out row
    has such a word.
    """
    manifest = read_manifest(data)
    if read_vocabulary(storage.join(data, TOKENIZER_FOLDER)).tokens != tuple(tokens):
        raise ValueError(f"{data}: has another vocabulary than the model; give the data set that it was trained on")
    chosen: list[Cloze] = []
    draws = np.random.default_rng(manifest.seed)
    for shard in manifest.shards_of("validation"):
        for group in range(len(shard.row_group_rows)):
            columns = [schema.INPUT_IDS, schema.FIRST_LENGTH]
            table = read_row_group(data, path=shard.path, row_group=group, columns=columns)
            for row in draws.permutation(table.num_rows):
                ids = table[schema.INPUT_IDS][row].as_py()[: table[schema.FIRST_LENGTH][row].as_py()]
                places = [place for place in range(1, len(ids) - 1) if _is_word(ids, place=place, tokens=tokens)]
                if places and len(chosen) < count:
                    place = int(draws.choice(places))
                    masked = (*ids[:place], manifest.special.mask, *ids[place + 1 :])
                    chosen.append(Cloze(masked, place=place, answer=ids[place]))
    if not chosen:
        raise ValueError(
            f"{data}: no held-out row has a word of {LETTERS} letters that is one token; give texts instead"
        )
    return chosen


def try_held_out(fill: FillMask, *, data: str) -> list[str]:
    """Lines that show NUM_SHOWN held-out texts with the guesses and the right word, and how many were right."""
    texts = draw_held_out(data, tokens=fill.tokens)
    lines, right = [], []
    for text in texts:
        (guesses,) = fill.guess_ids(text.ids, masks=[text.place])
        answer = fill.tokens[text.answer]
        right.append(answer in [guess.token for guess in guesses])
        if len(right) <= NUM_SHOWN:
            shown = fill.tokenizer.decode(list(text.ids[1:-1]), skip_special_tokens=False)
            lines += describe(shown, guesses=[guesses])
            lines.append(f"    {'right' if right[-1] else 'wrong'}: {answer}")
    first = right[:NUM_SHOWN]
    lines.append(
        f"the right word is among the {NUM_GUESSES} in {sum(first)} of these {len(first)} texts and in {sum(right)} of "
        f"{len(right)} ({sum(right) / len(right):.0%}); none was trained on, and the masked words, of {LETTERS} "
        f"letters or more, were drawn at random"
    )
    return lines


def find_examples(folder: Path) -> list[str]:
    """Examples in the languages that the card of an export names, English without a card. ValueError where there are
    none."""
    card = folder / "README.md"
    parts = card.read_text(encoding="utf-8").split("---\n") if card.is_file() else []
    front = parse_yaml(parts[1], origin=str(card)) if len(parts) > 2 else {}
    named = (front.get("language") if isinstance(front, dict) else None) or ["en"]
    languages = [str(language) for language in (named if isinstance(named, list) else [named])]
    found = [text for language in languages for text in EXAMPLES.get(language.partition("-")[0], ())]
    if not found:
        raise ValueError(
            f"{folder}: is a model of {', '.join(languages)}, of which there are no examples here; give texts with "
            f"{MASK}, or --held-out DATA, the set it was trained on"
        )
    return found


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 refused."""
    parser = argparse.ArgumentParser(prog="python -m trainer.demonstrate", description="Fill in masked tokens.")
    parser.add_argument("export", help="folder that `python -m trainer.export` wrote")
    what = f"texts with {MASK}; without any and without --held-out: examples in the model's languages"
    parser.add_argument("texts", nargs="*", help=what)
    parser.add_argument("--held-out", metavar="DATA", help="data set it was trained on: try held-out texts, count")
    options = parser.parse_args(arguments)
    fill = FillMask(options.export)
    texts = options.texts or (() if options.held_out else find_examples(fill.folder))
    shown = [describe(text, guesses=fill.guess(text)) for text in texts]
    if options.held_out:
        shown.append(try_held_out(fill, data=options.held_out))
    print(f"what {options.export} puts in place of {MASK}:")
    for lines in shown:
        print("\n".join(lines))
    return 0


def _is_word(ids: Sequence[int], *, place: int, tokens: Sequence[str]) -> bool:
    word, following = tokens[ids[place]], tokens[ids[place + 1]]
    return len(word) >= LETTERS and word.isalnum() and not following.startswith("##")


def _one_text(ids: Sequence[int], *, masks: Sequence[int]) -> Batch:
    size = len(ids)
    return Batch(
        input_ids=torch.tensor(ids),
        segment_ids=torch.zeros(size, dtype=torch.int64),
        position_ids=torch.arange(size),
        offsets=torch.tensor([0, size], dtype=torch.int32),
        cls_positions=torch.zeros(1, dtype=torch.int64),
        masked_positions=torch.tensor(masks),
        masked_labels=torch.zeros(len(masks), dtype=torch.int64),
        masked_weights=torch.zeros(len(masks)),
        nsp_labels=torch.zeros(1, dtype=torch.int64),
        nsp_weights=torch.zeros(1),
        max_length=size,
        num_tokens=size,
        num_pairs=1,
        num_masked=len(masks),
        num_labelled=0,
    )


if __name__ == "__main__":
    exit_with(main())
