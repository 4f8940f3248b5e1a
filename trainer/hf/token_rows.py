"""Finds, for each token of a data set's vocabulary, the rows of another vocabulary's word table from which it starts.

Invariant: ids never count, only the texts of tokens. A token of both vocabularies starts from its own row. Any other
token starts from the mean of the rows of its pieces, which are the longest tokens of the other vocabulary that spell
it (WordPiece, as BERT's tokenizer does). Special tokens have no pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trainer.hf.vocabulary_check import read_vocabulary

PREFIX = "##"
"""Marks a token that continues a word."""


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Says from which rows of a model's word table each token of a data set starts."""

    sources: tuple[tuple[int, ...], ...]
    """For each token of the data set, by id: the ids of the rows whose mean it gets. Empty: its row is drawn."""
    num_kept: int
    """Number of tokens that both vocabularies have."""

    @property
    def num_drawn(self) -> int:
        """Number of tokens whose row is drawn at random."""
        return sum(not rows for rows in self.sources)

    def describe(self) -> str:
        """Return a text such as `word table: 28,996 rows by token text, 1,200 means of pieces, 326 drawn`."""
        means = len(self.sources) - self.num_kept - self.num_drawn
        return f"word table: {self.num_kept:,} rows by token text, {means:,} means of pieces, {self.num_drawn:,} drawn"

    def take(self, table: Tensor, *, drawn: Tensor) -> Tensor:
        """Return the rows of the data set's tokens, [tokens, ...], from the model's `table` [rows, ...].

        `drawn` [at least tokens, ...] holds the rows of tokens that have no source.
        """
        taken = drawn[: len(self.sources)].detach().clone()
        single = [(token, rows[0]) for token, rows in enumerate(self.sources) if len(rows) == 1]
        if single:
            tokens, rows = zip(*single, strict=True)
            taken[list(tokens)] = table[list(rows)].to(taken.dtype)
        for token, pieces in enumerate(self.sources):
            if len(pieces) > 1:
                taken[token] = table[list(pieces)].to(taken.dtype).mean(0)
        return taken

    @property
    def num_rows(self) -> int:
        """The least number of rows that the model's table must have."""
        return 1 + max((max(rows) for rows in self.sources if rows), default=-1)


def match_tokens(folder: str | Path, *, data_tokenizer: str | Path, with_pieces: bool) -> TokenRows:
    """Return the rows from which the tokens of the tokenizer in `data_tokenizer` start, for the model in `folder`.

    Without `with_pieces`, the rows of all tokens that the model does not have are drawn. Texts are normalized as the
    model's tokenizer does (lower case, accents) before they are spelled with its tokens. Raises ValueError if one of
    the vocabularies cannot be read.
    """
    model, data = read_vocabulary(folder), read_vocabulary(data_tokenizer)
    sources: list[tuple[int, ...]] = []
    for token in data.tokens:
        own = model.ids.get(token)
        if own is not None:
            sources.append((own,))
        elif with_pieces and not _is_special(token):
            text = model.normalize(token.removeprefix(PREFIX))
            sources.append(spell(text, ids=model.ids, continues=token.startswith(PREFIX)))
        else:
            sources.append(())
    return TokenRows(tuple(sources), sum(token in model.ids for token in data.tokens))


def spell(text: str, *, ids: Mapping[str, int], continues: bool) -> tuple[int, ...]:
    """Return the ids of the pieces that spell `text`, the longest piece first taken, or () if no pieces spell it.

    `continues` says whether `text` continues a word.
    """
    pieces: list[int] = []
    start = 0
    while start < len(text):
        prefix = PREFIX if continues or start else ""
        ends: Sequence[int] = range(len(text), start, -1)
        stop = next((end for end in ends if prefix + text[start:end] in ids), None)
        if stop is None:
            return ()
        pieces.append(ids[prefix + text[start:stop]])
        start = stop
    return tuple(pieces)


def _is_special(token: str) -> bool:
    return len(token) > 2 and token[0] in "[<" and token[-1] in "]>"
