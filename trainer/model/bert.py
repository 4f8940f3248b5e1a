"""BERT with its two pretraining heads over one packed micro-batch.

Per-token work runs on the T tokens that are there (no padding between sequences); on a GPU nothing in
forward() waits for the device. Parameter names are module paths; `ndim >= 2` are the ones to decay.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.model.attention import SequenceLayout
from trainer.model.dropout import draw_seeds
from trainer.model.embeddings import Embeddings
from trainer.model.encoder import SITES_A_LAYER, PostNormEncoder, PreNormEncoder
from trainer.model.heads import MaskedLanguageHead, NextSentenceHead, Pooler, cross_entropy_sum

if TYPE_CHECKING:
    from trainer.model.batch import Batch

VOCABULARY_MULTIPLE = 64
INITIAL_DEVIATION = 0.02
SCALED_EMBEDDINGS, SCALED_DEVIATION = 0.05, 0.06
"""Initial deviation of the embeddings and of other matrices with initial_weights=scaled."""
SCALED_HEAD = 8.0
"""The masked-LM head's dense layer then is this times the identity, and its bias four times this: up there GELU is
linear, and the head's LayerNorm takes both away. A step of Adam is small beside it, so the head does not blur what the
encoder learns: after 240 steps the loss at [MASK] was 0.30 nats below the unigram, with a drawn head 0.03 above."""
TRUNCATION = 2.0


class PretrainingOutput(NamedTuple):
    """Sums over one micro-batch, float32 scalars; only the two losses carry a gradient."""

    mlm_loss_sum: Tensor
    """Cross-entropy in nats, summed over masked positions with masked_weights."""
    nsp_loss_sum: Tensor
    """Cross-entropy in nats, summed over pairs with nsp_weights."""
    mlm_correct: Tensor
    """Masked positions predicted correctly, weighted alike."""
    nsp_correct: Tensor
    """Pairs predicted correctly, weighted alike."""
    mlm_losses: Tensor
    """[M] cross-entropy at each masked position, weighted alike."""

    def sums(self) -> Tensor:
        """[4]: mlm_loss_sum, nsp_loss_sum, mlm_correct, nsp_correct, without gradient."""
        return torch.stack(self[:4]).detach()


class BertForPretraining(nn.Module):
    """Encoder, pooler, masked-language head, next-sentence head.

    The word table has `vocabulary_size` rounded up to a multiple of 64 rows, since the output product is fast only
    then. The extra rows are zero, stay zero, and get no probability: loss and logits are those of the model
    without them. num_parameters() does not count them and an export does not hold them.

    Weights are drawn from a normal truncated at two deviations (as google-research/bert does), of 0.02 or as
    config.initial_weights says, each tensor from a generator of its own keyed by (seed, name); biases are zero,
    LayerNorm is one.
    """

    def __init__(self, config: ModelConfig, *, vocabulary_size: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        num_rows = -(-vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        self.embeddings = Embeddings(config, num_rows=num_rows)
        self.encoder = PreNormEncoder(config) if config.norm == "pre" else PostNormEncoder(config)
        self.pooler = Pooler(config)
        self.mlm_head = MaskedLanguageHead(config, embedding=self.embeddings.word, vocabulary_size=vocabulary_size)
        self.nsp_head = NextSentenceHead(config)
        initialize_weights(self, seed=seed, scaled=config.initial_weights == "scaled")
        with torch.no_grad():
            self.embeddings.word.weight[vocabulary_size:] = 0.0

    def forward(self, batch: Batch) -> PretrainingOutput:
        """Loss sums and counts of correct predictions of one micro-batch.

        Dropout (in training mode) draws from torch's global generator of the batch's device.
        Raises ValueError where a sequence is longer than config.max_positions.
        """
        hidden = self.encode(batch)
        mlm_loss_sum, mlm_correct, mlm_losses = self.mlm_head(
            hidden.index_select(0, batch.masked_positions),
            labels=batch.masked_labels,
            weights=batch.masked_weights,
        )
        nsp_logits = self.nsp_head(self.pooler(hidden.index_select(0, batch.cls_positions)))
        nsp_loss_sum, nsp_correct = cross_entropy_sum(nsp_logits, labels=batch.nsp_labels, weights=batch.nsp_weights)
        return PretrainingOutput(mlm_loss_sum, nsp_loss_sum, mlm_correct, nsp_correct, mlm_losses)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits of both heads: [M, vocabulary_size] at the masked positions and [P, 2] of the pairs."""
        hidden = self.encode(batch)
        mlm_logits = self.mlm_head(hidden.index_select(0, batch.masked_positions))
        nsp_logits = self.nsp_head(self.pooler(hidden.index_select(0, batch.cls_positions)))
        return mlm_logits[:, : self.vocabulary_size], nsp_logits

    def encode(self, batch: Batch) -> Tensor:
        """Last hidden states of all tokens, [T, width]."""
        if batch.max_length > self.config.max_positions:
            raise ValueError(
                f"a sequence of {batch.max_length} tokens exceeds the model's {self.config.max_positions} learned "
                f"positions; build the data with a smaller max_seq_length or raise model.max_positions"
            )
        layout = SequenceLayout(batch.offsets, batch.max_length)
        seeds = draw_seeds(1 + SITES_A_LAYER * self.config.num_layers, device=batch.input_ids.device)
        hidden = self.embeddings(
            batch.input_ids, segment_ids=batch.segment_ids, position_ids=batch.position_ids, seeds=seeds[0]
        )
        return self.encoder(hidden, layout=layout, seeds=seeds[1:])  # type: ignore[no-any-return]

    def num_parameters(self, *, heads: bool = True) -> int:
        """Parameters as transformers counts them: tied weight once, without the rows that pad the vocabulary.

        heads=False: embeddings, encoder and pooler only (BertModel).
        """
        total = sum(
            parameter.numel()
            for name, parameter in self.named_parameters()
            if heads or not name.startswith(("mlm_head.", "nsp_head."))
        )
        num_rows, width = self.embeddings.word.weight.shape
        return total - (num_rows - self.vocabulary_size) * width


@torch.no_grad()
def initialize_weights(model: nn.Module, *, seed: int, scaled: bool = False) -> None:
    """Draw every matrix anew and reset every vector (biases 0, LayerNorm weights 1), in place.

    scaled: ModelConfig.initial_weights.

    A matrix is a function of (seed, parameter name, shape) alone. One pass by the inverse of the distribution
    function: nn.init.trunc_normal_ redraws whole tensors until all fit, at 100 ns an element against 15.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))
        share = math.erf(TRUNCATION / math.sqrt(2.0))
        deviation = INITIAL_DEVIATION
        if scaled:
            deviation = SCALED_EMBEDDINGS if name.startswith("embeddings.") else SCALED_DEVIATION
        bound = TRUNCATION * deviation
        parameter.uniform_(-share, share, generator=generator).erfinv_()
        parameter.mul_(deviation * math.sqrt(2.0)).clamp_(-bound, bound)
    if scaled:
        nn.init.eye_(model.get_parameter("mlm_head.dense.weight")).mul_(SCALED_HEAD)
        model.get_parameter("mlm_head.dense.bias").fill_(4.0 * SCALED_HEAD)
