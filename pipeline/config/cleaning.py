"""The settings that say which documents are left out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipeline.config.ranges import Positive, Share
from pipeline.settings import Settings


class NearDuplicatesConfig(Settings):
    """The settings that say which documents count as near duplicates, and how thoroughly to search for them."""

    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Documents are near duplicates if the Jaccard similarity of their shingles (runs of words) is at least this. The
    similarity is estimated from `permutations` values; its standard deviation is 0.035 at the defaults."""
    shingle_words: Annotated[int, Field(ge=1, le=32)] = 5
    """Words in a shingle. The shingles of a document are all runs of this many words, without case and punctuation. A
    Chinese, Japanese or Thai character counts as a word."""
    permutations: Annotated[int, Field(ge=16, le=1024)] = 128
    """Values in a document's MinHash signature. More values find near duplicates more reliably but take more time."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """Seed of the permutations."""


class CleaningConfig(Settings):
    """The settings that say which documents are left out. Documents are measured after cleaning. Every filter is off by
    default."""

    min_words: Positive | None = None
    """Leave out documents with fewer words (between spaces)."""
    max_words: Positive | None = None
    """Leave out documents with more words (between spaces)."""
    min_characters: Positive | None = None
    """Leave out documents with fewer characters; use this instead of min_words if words are not separated by spaces."""
    max_characters: Positive | None = None
    """Leave out documents with more characters."""
    max_repeated_lines: Share | None = None
    """Leave out documents if a larger share of their sentences repeats an earlier sentence."""
    max_symbols: Share | None = None
    """Leave out documents if a larger share of their characters (without spaces) is neither letter, digit nor mark."""
    min_script: Share | None = None
    """Leave out documents if a smaller share of their letters belongs to the script of the source's language."""
    min_stop_words: Share | None = None
    """Leave out documents if a smaller share of their words is among the most common words of the source's language.
    English prose has 0.35 to 0.5; text in other languages has 0.0 to 0.1 of the English words. Documents of fewer than
    20 words, and sources in a language without a list, are not measured."""
    near_duplicates: NearDuplicatesConfig | None = None
    """Leave out near duplicates; {} does so with the defaults. Of two near duplicates, the one with more words stays
    (if equal, the one with the smaller hash). A document is left out only if it resembles one that stays."""
    keep_rejects: str | None = None
    """Folder for rejects.jsonl, which has the source, name, reason, detail and text of every document that these
    settings leave out, and of duplicates. During the build, OUT/_tmp needs space for the whole corpus as text."""

    @property
    def measures_documents(self) -> bool:
        """Whether any filter other than near_duplicates is on. The other filters measure one document at a time, but
        near_duplicates compares documents."""
        others = ("near_duplicates", "keep_rejects")
        return any(value is not None for name, value in self.__dict__.items() if name not in others)

    @model_validator(mode="after")
    def _check_bounds(self) -> CleaningConfig:
        for unit in ("words", "characters"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{unit}={low} exceeds max_{unit}={high}, so no document is left; lower it")
        return self
