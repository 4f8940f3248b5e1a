"""Show what a model fills in: `python -m trainer.demonstrate EXPORT ["text with [MASK]" ...]`.

Runs our own model on the exported weights, so it needs no transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from pipeline.console import command, exit_with
from trainer.hf import load_model, read_vocabulary
from trainer.model import Batch, BertForPretraining

MASK = "[MASK]"
EXAMPLES = (
    "In the beginning God created the heaven and the [MASK].",
    "And the king said [MASK] him, What is thy name?",
    "He was born [MASK] 1902 in New York City.",
    "Fue un pintor [MASK] nacido en Madrid.",
    "Il est mort le 3 mai 1902 [MASK] Paris.",
)
"""In the sample corpus's languages; texts in others are given on the command line."""
NUM_GUESSES = 5


@dataclass(frozen=True, slots=True)
class Guess:
    """A token for a masked place."""

    token: str
    probability: float


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


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 done, 2 refused."""
    parser = argparse.ArgumentParser(prog="python -m trainer.demonstrate", description="Fill in masked tokens.")
    parser.add_argument("export", help="folder that `python -m trainer.export` wrote")
    parser.add_argument(
        "texts", nargs="*", help=f"texts with {MASK}; without any, examples in the sample corpus's languages"
    )
    options = parser.parse_args(arguments)
    fill = FillMask(options.export)
    shown = [describe(text, guesses=fill.guess(text)) for text in options.texts or EXAMPLES]
    print(f"what {options.export} puts in place of {MASK}:")
    for lines in shown:
        print("\n".join(lines))
    return 0


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
