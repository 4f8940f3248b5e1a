"""Show a model's guesses for [MASK]: `python -m trainer.demonstrate EXPORT [--held-out DATA] ["text with [MASK]" ...]`.

Runs this project's own model on the exported weights, so it needs no transformers.
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
from pipeline.dataset import TOKENIZER_FOLDER, name_panics, parse_tokenizer, read_manifest, schema
from pipeline.settings import parse_yaml
from trainer.data import read_row_group
from trainer.hf import MASK, Guess, load_model, rank_guesses, read_vocabulary
from trainer.model import Batch, BertForPretraining

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
"""Maps a language code, as the model card of an export states it, to example texts. To try a model of another language,
use --held-out."""
NUM_GUESSES = 5
NUM_SHOWN = 12
NUM_COUNTED = 500
"""Number of held-out texts to try. NUM_SHOWN of these texts are shown, with the same share of right guesses as in
all."""
LETTERS = 4
"""Least number of letters of a masked word. Shorter words are often so common that they are guessed without context. A
Hangul syllable has two letters or three, and counts as two."""


@dataclass(frozen=True, slots=True)
class Cloze:
    """A held-out text with one word masked."""

    ids: tuple[int, ...]
    """Token ids of [CLS] text [SEP], with [MASK] at index `place`."""
    place: int
    answer: int
    """Id of the token that [MASK] replaces."""


class FillMask:
    """Holds an exported model and its tokenizer. Raises ValueError (PretrainedError) if the folder cannot be read."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.model: BertForPretraining = load_model(self.folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{path}: is missing; give an export of `python -m trainer.export`")
        self.tokenizer: Tokenizer = parse_tokenizer(path.read_bytes(), origin=str(path))
        self.tokens = read_vocabulary(self.folder).tokens

    @torch.no_grad()
    def guess(self, text: str, *, count: int = NUM_GUESSES) -> list[tuple[Guess, ...]]:
        """Return one tuple for each [MASK] of `text`, with the `count` likeliest tokens, best first.

        Raises ValueError if `text` is not UTF-8, has no [MASK], or has more tokens than the model has positions.
        """
        try:
            with name_panics(str(self.folder / "tokenizer.json")):
                ids = self.tokenizer.encode(text).ids
        except TypeError as error:  # undecodable bytes from the command line
            raise ValueError(f"{text!r}: is not UTF-8 text") from error
        masks = [place for place, token in enumerate(ids) if token == self.tokenizer.token_to_id(MASK)]
        if not masks:
            raise ValueError(f"'{text}': has no {MASK}; put one in place of the word to guess")
        if len(ids) > self.model.config.max_positions:
            raise ValueError(
                f"'{text[:40]}...': {len(ids)} tokens exceed the model's {self.model.config.max_positions}; shorten it"
            )
        return self.guess_ids(ids, masks=masks, count=count)

    @torch.no_grad()
    def guess_ids(
        self, ids: Sequence[int], *, masks: Sequence[int], count: int = NUM_GUESSES
    ) -> list[tuple[Guess, ...]]:
        """Return one tuple for each position in `masks`, with the `count` likeliest tokens, best first.

        `ids` are a text's token ids, with its special tokens. `masks` holds indices into `ids`.
        """
        logits, _ = self.model.logits(_one_text(ids, masks=masks))
        return rank_guesses(logits, tokens=self.tokens, count=count)


def describe(text: str, *, guesses: Sequence[Sequence[Guess]]) -> list[str]:
    """Return lines that show a text and the guesses for each [MASK]. `guesses` holds one sequence for each [MASK]."""
    rows = ["   ".join(f"{guess.token} {guess.probability:.1%}" for guess in row) for row in guesses]
    return [f"  {text}", *(f"    {row}" for row in rows)]


def draw_held_out(data: str, *, tokens: Sequence[str], count: int = NUM_COUNTED) -> list[Cloze]:
    """Draw up to `count` held-out texts (first segments of rows) of the data set `data` by a fixed seed, and mask one
    word in each.

    A masked word is a single token of LETTERS or more letters. `tokens` is the model's vocabulary, ordered by id.
    Raises ValueError if the data set's vocabulary differs from `tokens`, or if no held-out row has such a word.
    """
    manifest = read_manifest(data)
    if read_vocabulary(storage.join(data, TOKENIZER_FOLDER)).tokens != tuple(tokens):
        raise ValueError(f"{data}: its vocabulary differs from the model's; give the data set it was trained on")
    chosen: list[Cloze] = []
    draws = np.random.default_rng(manifest.seed)
    for shard in manifest.shards_of("validation"):
        for group in range(len(shard.row_group_rows)):
            columns = [schema.INPUT_IDS, schema.FIRST_LENGTH]
            table = read_row_group(
                data, path=shard.path, footer_sha256=shard.footer_sha256, row_group=group, columns=columns
            )
            for row in draws.permutation(table.num_rows):
                ids = table[schema.INPUT_IDS][row].as_py()[: table[schema.FIRST_LENGTH][row].as_py()]
                places = [place for place in range(1, len(ids) - 1) if _is_word(ids, place=place, tokens=tokens)]
                if places and len(chosen) < count:
                    place = int(draws.choice(places))
                    masked = (*ids[:place], manifest.special.mask, *ids[place + 1 :])
                    chosen.append(Cloze(masked, place=place, answer=ids[place]))
    if not chosen:
        raise ValueError(
            f"{data}: no held-out row has a word of {LETTERS} letters that is a single token; give texts instead"
        )
    return chosen


def try_held_out(fill: FillMask, *, data: str) -> list[str]:
    """Let the model guess masked words in held-out texts of the data set `data`, and return lines that show the result.

    The last line states in how many texts the right word is among the model's guesses. The other lines show NUM_SHOWN
    of these texts, each with the guesses and the right word. Texts with and without the right word among the guesses
    are shown in the proportion that they have among all texts. Of both kinds, the texts that were drawn first are
    shown.
    """
    texts = draw_held_out(data, tokens=fill.tokens)
    guessed = [fill.guess_ids(text.ids, masks=[text.place])[0] for text in texts]
    right = [
        fill.tokens[text.answer] in [guess.token for guess in row] for text, row in zip(texts, guessed, strict=True)
    ]
    share = sum(right) / len(right)
    num_right = round(share * min(NUM_SHOWN, len(texts)))
    hits = [index for index, is_right in enumerate(right) if is_right][:num_right]
    misses = [index for index, is_right in enumerate(right) if not is_right][: NUM_SHOWN - num_right]
    lines = []
    for index in sorted([*hits, *misses]):
        shown = fill.tokenizer.decode(list(texts[index].ids[1:-1]), skip_special_tokens=False)
        lines += describe(shown, guesses=[guessed[index]])
        lines.append(f"    {'right' if right[index] else 'wrong'}: {fill.tokens[texts[index].answer]}")
    lines.append(
        f"the {NUM_GUESSES} guesses hold the right word in {sum(right)} of {len(right)} texts ({share:.0%}); shown are "
        f"{len(hits)} of these and {len(misses)} of the others; the model was not trained on them; the masked words "
        f"have {LETTERS} letters or more and were drawn at random"
    )
    return lines


def find_examples(folder: Path) -> list[str]:
    """Return example texts in the languages that the export's model card names, or in English if it names none.

    Raises ValueError if there are no examples for these languages.
    """
    card = folder / "README.md"
    parts = card.read_text(encoding="utf-8").split("---\n") if card.is_file() else []
    front = parse_yaml(parts[1], origin=str(card)) if len(parts) > 2 else {}
    named = (front.get("language") if isinstance(front, dict) else None) or ["en"]
    languages = [str(language) for language in (named if isinstance(named, list) else [named])]
    found = [text for language in languages for text in EXAMPLES.get(language.partition("-")[0], ())]
    if not found:
        raise ValueError(
            f"{folder}: there are no examples for a model of {', '.join(languages)}; give texts with {MASK}, or "
            f"--held-out DATA, the data set that it was trained on"
        )
    return found


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if it succeeded, 2 if it was refused."""
    parser = argparse.ArgumentParser(prog="python -m trainer.demonstrate", description="Fill in masked tokens.")
    parser.add_argument("export", help="folder that `python -m trainer.export` wrote")
    words = f"texts with {MASK}; default without --held-out: examples in the model's languages"
    parser.add_argument("texts", nargs="*", help=words)
    parser.add_argument("--held-out", metavar="DATA", help="test on held-out texts of this data set")
    options = parser.parse_args(arguments)
    fill = FillMask(options.export)
    texts = options.texts or (() if options.held_out else find_examples(fill.folder))
    shown = [describe(text, guesses=fill.guess(text)) for text in texts]
    if options.held_out:
        shown.append(try_held_out(fill, data=options.held_out))
    print(f"guesses of {options.export} for {MASK}:")
    for lines in shown:
        print("\n".join(lines))
    return 0


def _is_word(ids: Sequence[int], *, place: int, tokens: Sequence[str]) -> bool:
    word, following = tokens[ids[place]], tokens[ids[place + 1]]
    letters = len(word) + sum("\uac00" <= letter <= "\ud7a3" for letter in word)
    return letters >= LETTERS and word.isalnum() and not following.startswith("##")


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
