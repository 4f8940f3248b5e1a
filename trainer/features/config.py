"""The settings of vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.settings import Settings

Positive = Annotated[int, Field(ge=1, lt=2**31)]


class LayersConfig(Settings):
    """Which layers make a token's vector, and how."""

    numbers: tuple[int, ...] = (-1,)
    """Layers: 0 is the output of the embeddings, 1 the first layer's; -1 is the last layer's, as in Python."""
    combine: Literal["concatenate", "sum", "weighted"] = "concatenate"
    """How several layers become one vector. weighted: the sum of each layer times its weight."""
    weights: tuple[float, ...] = ()
    """With combine=weighted: one weight a layer."""

    @model_validator(mode="after")
    def _check(self) -> LayersConfig:
        if not self.numbers:
            raise ValueError("layers.numbers is empty; give a layer, such as [-1]")
        if (self.combine == "weighted") != bool(self.weights):
            raise ValueError("layers.weights and layers.combine=weighted belong together; give both or none")
        if self.weights and len(self.weights) != len(self.numbers):
            raise ValueError(
                f"layers.weights has {len(self.weights)} numbers, layers.numbers {len(self.numbers)}; give one for each"
            )
        return self


class FeaturesConfig(Settings):
    """Texts to vectors."""

    model: str
    """Folder of an export, or of a BERT saved by transformers; a path or URL."""
    input: str
    """Texts: one a line (.txt), or a column of .csv, .tsv, .jsonl, .json or .parquet; a path or URL. Text files may be
    compressed (.gz, .bz2, .xz)."""
    output: str
    """File to write. .parquet: columns id (the row's number, from 0) and vector. .npy: float32 [texts, width]."""
    column: str = "text"
    """Column of the texts."""
    second_column: str | None = None
    """Column of second texts, if the texts are pairs."""
    layers: LayersConfig = LayersConfig()
    """Which layers make a token's vector."""
    pool: Literal["cls", "mean", "tokens"] = "mean"
    """The vector of a text: that of [CLS] (not of a model that reads from left to right), or the mean over all its
    tokens, [CLS] and [SEP] included (as in sentence-transformers). tokens: a vector for each token, in columns tokens
    and vectors of .parquet."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Longest row in tokens; longer texts are cut. Null: what the model is for."""
    batch_size: Positive = 64
    """Texts at once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs, in fp32. auto: on a GPU if there is one."""
