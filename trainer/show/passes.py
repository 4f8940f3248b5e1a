"""One forward pass over a text or a pair of texts, with all attention weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.settings import ConfigError
from pipeline.storage import locate
from trainer.features import hidden_states
from trainer.finetune import Feature, TextEncoder, pack
from trainer.hf import MASK, Guess, rank_guesses, read_longest, read_model, read_vocabulary
from trainer.model import BertForPretraining


@dataclass(frozen=True, slots=True)
class Seen:
    """What the model computes for one row: [CLS] first [SEP], or [CLS] first [SEP] second [SEP]."""

    first: str
    second: str | None
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """Where each token stands in `first`, in characters; (0, 0) for special tokens and those of `second`."""
    states: Tensor
    """[layers + 1, T, width]: the output of the embeddings and of every layer."""
    attention: Tensor
    """[layers, heads, T, T]: for each token (third dimension) its weights over all tokens, which sum to 1."""
    guesses: tuple[tuple[int, tuple[Guess, ...]], ...]
    """For each [MASK] its place among the tokens and the likeliest tokens, best first."""
    is_next: float | None
    """The probability that `second` follows `first`; None without a second text or without this head."""


class Viewer:
    """A model with its tokenizer. Raises ValueError (PretrainedError, TaskDataError) if the folder cannot be read."""

    def __init__(self, folder: str | Path) -> None:
        self.model: BertForPretraining
        self.model, self.has_pair_head = read_model(folder)
        self.longest = read_longest(locate(folder))
        self._encoder = TextEncoder(folder, max_length=self.longest)
        self._vocabulary = read_vocabulary(folder).tokens

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of layers and of heads in a layer."""
        return self.model.config.num_layers, self.model.config.num_heads

    @torch.no_grad()
    def look(self, first: str, second: str | None = None, *, count: int) -> Seen:
        """Return what the model computes, with `count` guesses for each [MASK]. ConfigError if a text is too long or
        empty, or has a [MASK] that a model of next tokens cannot fill."""
        texts = [first] if second is None else [first, second]
        try:
            encoded = self._encoder.encode(texts)
        except TypeError as error:  # undecodable bytes from the command line
            raise ConfigError(f"{first!r}: is not UTF-8 text") from error
        for text, encoding in zip(texts, encoded, strict=True):
            if not encoding.ids:
                raise ConfigError(f"{text!r}: has no token; give a text")
        row = self._encoder.join(encoded[0].ids, encoded[1].ids if second is not None else None)
        whole = sum(len(each.ids) for each in encoded) + (2 if second is None else 3)
        if whole > self.longest:
            raise ConfigError(f"'{first[:40]}...': {whole} tokens, but the model is for {self.longest}; shorten it")
        tokens = self._encoder.names(row.ids)
        masks = [place for place, token in enumerate(tokens) if token == MASK]
        if masks and self.model.config.is_causal:
            raise ConfigError(f"'{first[:40]}': has {MASK}, but this model predicts next tokens; leave {MASK} out")
        batch = pack([Feature(0, (row,), 0)], kind="classification", device=torch.device("cpu")).tokens
        states = hidden_states(self.model, batch)
        spans = [(0, 0), *encoded[0].offsets, *[(0, 0)] * (len(tokens) - len(encoded[0].ids) - 1)]
        guesses: list[tuple[Guess, ...]] = []
        if masks:
            logits = self.model.mlm_head(states[-1][masks])[:, : self.model.vocabulary_size]
            guesses = rank_guesses(logits, tokens=self._vocabulary, count=count)
        is_next = None
        if second is not None and self.has_pair_head:
            is_next = float(torch.softmax(self.model.nsp_head(self.model.pooler(states[-1][:1])), -1)[0, 0])
        return Seen(
            first=first,
            second=second,
            tokens=tuple(tokens),
            spans=tuple(spans),
            states=torch.stack(states),
            attention=torch.stack(
                [self._weights(layer, state) for layer, state in zip(self.model.encoder.layers, states, strict=False)]
            ),
            guesses=tuple(zip(masks, guesses, strict=True)),
            is_next=is_next,
        )

    def _weights(self, layer: Any, state: Tensor) -> Tensor:
        """Return a layer's attention weights [heads, T, T] for its input `state` [T, width]."""
        if self.model.config.norm == "pre":
            state = layer.attention_norm(state)
        size, width = state.shape
        queries, keys, _ = layer.attention.qkv(state).view(size, 3, self.shape[1], -1).permute(1, 2, 0, 3)
        scores = queries @ keys.transpose(1, 2) / (width // self.shape[1]) ** 0.5
        if self.model.config.is_causal:
            scores = scores.masked_fill(torch.ones(size, size, dtype=torch.bool).triu(1), -torch.inf)
        return torch.softmax(scores, -1)
