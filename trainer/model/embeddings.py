"""Sum of token, segment and position embeddings of packed tokens."""

from __future__ import annotations

from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.dropout import Dropout
from trainer.model.layers import Embedding, layer_norm

NUM_SEGMENTS = 2


class Embeddings(nn.Module):
    """Sums the token, segment and position embeddings, and applies dropout.

    Post-LN models apply LayerNorm before this dropout. Pre-LN models (like megatron-bert) apply LayerNorm after the
    encoder instead.
    """

    def __init__(self, config: ModelConfig, *, num_rows: int) -> None:
        super().__init__()
        self.word = Embedding(num_rows, config.width)
        self.segment = Embedding(NUM_SEGMENTS, config.width)
        self.position = Embedding(config.max_positions, config.width)
        self.norm = layer_norm(config.width) if config.norm == "post" else None
        self.dropout = Dropout(config.dropout)

    def forward(self, input_ids: Tensor, *, segment_ids: Tensor, position_ids: Tensor, seeds: Tensor) -> Tensor:
        """Return the embedding of each token, [T, width].

        `input_ids`, `segment_ids` and `position_ids` are int64 [T]. `seeds` is one row of the result of
        dropout.draw_seeds.
        """
        hidden: Tensor = self.word(input_ids) + self.segment(segment_ids) + self.position(position_ids)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.dropout(hidden, seeds=seeds)  # type: ignore[no-any-return]
