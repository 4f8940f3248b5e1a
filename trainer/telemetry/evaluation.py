"""The result of a held-out evaluation: losses and accuracies, over all text and by source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pipeline.units import count_of

_SOURCE_KEYS = ("mlm_loss", "unigram_loss", "masked", "pairs")


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """The held-out losses on one source (a corpus in the data set), in nats. Each loss is a mean over the source's
    masked tokens."""

    name: str
    pairs: int
    masked: int
    mlm_loss: float
    unigram_loss: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of one held-out evaluation. Losses are in nats; `nsp_*` (next sentence) are None if no pair has a
    label."""

    step: int
    pairs: int
    masked: int
    mlm_loss: float
    mlm_accuracy: float
    nsp_loss: float | None
    nsp_accuracy: float | None
    unigram_loss: float
    """Cross-entropy of the same masked tokens under the training set's unigram distribution (add-one smoothed)."""
    phase: int | None = None
    """Index of the run's phase, from 0; None in older records."""
    data_hash: str | None = None
    """Hash of the data set's manifest; None in older records."""
    sources: tuple[SourceLoss, ...] = ()
    """Losses on each source with a masked token in the evaluated pairs; empty if the data set has a single source."""
    unseen: tuple[str, ...] = ()
    """Names of the sources without a masked token in the evaluated pairs."""
    bigram_loss: float | None = None
    """Cross-entropy of the same masked tokens given their neighbours (trainer/train/bigram.py); None in older records.
    """
    shortcut_accuracy: float | None = None
    """Share of next-sentence labels in the data set that the best shortcut guesses right. A shortcut is a rule that
    does not read the text (see pipeline/instances/shortcuts.py). None if the data set has no labels, and in older
    records and data sets."""

    objective: str | None = None
    """left_to_right if the losses are of next tokens, which then count as masked; None if they are of masked tokens."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Evaluation:
        """Return the Evaluation that is stored in `record`, a dictionary that the method `record` has made."""
        sources = tuple(
            SourceLoss(name, **{key: record[f"{key}/{name}"] for key in _SOURCE_KEYS})
            for name in (key.partition("/")[2] for key in record if key.startswith(f"{_SOURCE_KEYS[0]}/"))
        )
        counted = [key.partition("/")[2] for key in record if key.startswith("pairs/")]
        unseen = tuple(name for name in counted if name not in {source.name for source in sources})
        return cls(**{k: value for k, value in record.items() if "/" not in k}, sources=sources, unseen=unseen)

    def record(self) -> dict[str, float | int | str | None]:
        """Return all numbers by name, as a flat dictionary that JSON can hold.

        A source's numbers are named `mlm_loss/NAME`, `unigram_loss/NAME`, `masked/NAME` and `pairs/NAME`. A source in
        `unseen` (without a masked token) has only `masked/NAME` and `pairs/NAME`, both 0.
        """
        lists = ("sources", "unseen")
        numbers = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in lists}
        if self.objective is None:
            del numbers["objective"]
        for source in self.sources:
            for key in _SOURCE_KEYS:
                numbers[f"{key}/{source.name}"] = getattr(source, key)
        for name in self.unseen:
            numbers |= {f"masked/{name}": 0, f"pairs/{name}": 0}
        return numbers

    def lines(self) -> list[str]:
        """Return lines that describe the result to the user."""
        kind, name = ("next-token", "next") if self.objective == "left_to_right" else ("masked-LM", "masked")
        lines = [
            f"held-out {kind} loss {self.mlm_loss:.4f} nats (perplexity {_perplexity(self.mlm_loss)}), "
            f"accuracy {self.mlm_accuracy:.2%}, over {_counts(self, kind=name)}",
            f"unigram cross-entropy of the same {name} tokens {self.unigram_loss:.4f} nats (token frequencies of the "
            f"training set, add-one smoothing): the model is {self._compare(self.unigram_loss)}",
        ]
        if self.bigram_loss is not None:
            lines.append(
                f"bigram cross-entropy of the same masked tokens {self.bigram_loss:.4f} nats (counts beside their left "
                f"and right neighbours in training rows): the model is {self._compare(self.bigram_loss)}"
            )
        if self.nsp_accuracy is not None:
            line = f"held-out next-sentence accuracy {self.nsp_accuracy:.2%}, loss {self.nsp_loss:.4f} nats"
            if self.shortcut_accuracy is not None:
                line += f" (the best rule that does not read the text is right in {self.shortcut_accuracy:.2%})"
            lines.append(line)
        for source in self.sources:
            lines.append(
                f"held-out {kind} loss on {source.name} {source.mlm_loss:.4f} nats (unigram "
                f"{source.unigram_loss:.4f}), over {_counts(source, kind=name)}"
            )
        for unseen in self.unseen:
            lines.append(
                f"held-out {kind} loss on {unseen}: unknown, none of the {self.pairs:,} pairs is from it; raise "
                f"evaluation.max_pairs, or build the data set with more held-out rows"
            )
        return lines

    def _compare(self, loss: float) -> str:
        gain = loss - self.mlm_loss
        return f"{abs(gain):.4f} nats {'below' if gain >= 0 else 'ABOVE'} it"


def _counts(of: Evaluation | SourceLoss, *, kind: str) -> str:
    return f"{count_of(of.masked, f'{kind} token')} of {count_of(of.pairs, 'pair')}"


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):,.1f}" if loss < 20 else "over 1e8"
