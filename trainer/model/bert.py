"""BERT with its two pretraining heads over one packed micro-batch.

Layers that treat each token by itself run on T tokens without padding between sequences. On a GPU, forward() does not
wait for the device.
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
"""Standard deviations of initial weights with initial_weights=scaled: for the embeddings, and for other matrices."""
SCALED_HEAD = 8.0
"""With initial_weights=scaled, the weight of the masked-LM head's dense layer starts as 8 times the identity, and its
bias as 32. GELU is linear for inputs around 32, and the head's LayerNorm removes the factor and the bias. Adam's steps
are small in comparison, so the head does not blur what the encoder learns. After 240 steps the loss at [MASK] was 0.30
nats below the unigram loss (0.03 above with a random head)."""
TRUNCATION = 2.0


class PretrainingOutput(NamedTuple):
    """The results for one micro-batch: four sums (float32 scalars) and the loss at each masked position.

    Only the two loss sums have a gradient.
    """

    mlm_loss_sum: Tensor
    """Cross-entropy in nats, summed over masked positions with weights masked_weights."""
    nsp_loss_sum: Tensor
    """Cross-entropy in nats, summed over pairs with weights nsp_weights."""
    mlm_correct: Tensor
    """Count of masked positions predicted correctly, with weights masked_weights."""
    nsp_correct: Tensor
    """Count of pairs predicted correctly, with weights nsp_weights."""
    mlm_losses: Tensor
    """float32 [M]: weighted cross-entropy at each masked position."""

    def sums(self) -> Tensor:
        """Return the sums as one tensor [4]: mlm_loss_sum, nsp_loss_sum, mlm_correct and nsp_correct. It has no
        gradient."""
        return torch.stack(self[:4]).detach()


class BertForPretraining(nn.Module):
    """BERT with embeddings, encoder, pooler, masked-language head and next-sentence head.

    The word table has one row for each word of the vocabulary. Extra rows fill the table up to a multiple of 64 rows,
    so that the output product is fast. The extra rows always stay zero and get no probability, so they change neither
    loss nor logits. num_parameters() does not count them, and exports leave them out.

    Weights are drawn from a normal distribution truncated at two standard deviations, as in google-research/bert. The
    standard deviation is 0.02. Each tensor has a random generator of its own, seeded from `seed` and the tensor's name.
    Biases are zero and LayerNorm weights one. With initial_weights=scaled in the config, other standard deviations are
    used, and the first layer of the masked-LM head starts with other weights.
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
        """Return loss sums, counts of correct predictions, and the loss at each masked position, for one micro-batch.

        In training mode, dropout draws from torch's global generator of the batch's device. Raises ValueError if
        batch.max_length exceeds config.max_positions.
        """
        hidden = self.encode(batch)
        mlm_loss_sum, mlm_correct, mlm_losses = self.mlm_head(
            hidden.index_select(0, batch.masked_positions), labels=batch.masked_labels, weights=batch.masked_weights
        )
        nsp_logits = self.nsp_head(self.pooler(hidden.index_select(0, batch.cls_positions)))
        nsp_loss_sum, nsp_correct = cross_entropy_sum(nsp_logits, labels=batch.nsp_labels, weights=batch.nsp_weights)
        return PretrainingOutput(mlm_loss_sum, nsp_loss_sum, mlm_correct, nsp_correct, mlm_losses)

    def logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the logits of both heads: [M, vocabulary_size] for the masked positions, and [P, 2] for the pairs."""
        hidden = self.encode(batch)
        mlm_logits = self.mlm_head(hidden.index_select(0, batch.masked_positions))
        nsp_logits = self.nsp_head(self.pooler(hidden.index_select(0, batch.cls_positions)))
        return mlm_logits[:, : self.vocabulary_size], nsp_logits

    def encode(self, batch: Batch) -> Tensor:
        """Return the hidden states of all tokens after the encoder, [T, width].

        Raises ValueError if batch.max_length exceeds config.max_positions.
        """
        if batch.max_length > self.config.max_positions:
            raise ValueError(
                f"a sequence of {batch.max_length} tokens exceeds the model's {self.config.max_positions} learned "
                f"positions; build the data with a smaller max_seq_length or raise model.max_positions"
            )
        layout = SequenceLayout(batch.offsets, batch.max_length, self.config.is_causal)
        seeds = draw_seeds(1 + SITES_A_LAYER * self.config.num_layers, device=batch.input_ids.device)
        hidden = self.embeddings(
            batch.input_ids, segment_ids=batch.segment_ids, position_ids=batch.position_ids, seeds=seeds[0]
        )
        return self.encoder(hidden, layout=layout, seeds=seeds[1:])  # type: ignore[no-any-return]

    def num_parameters(self, *, heads: bool = True) -> int:
        """Return the number of parameters, as transformers counts them.

        The word embedding, which the masked-LM head shares, counts once. The extra rows that round up the word table do
        not count. With heads=False only embeddings, encoder and pooler count, like in BertModel.
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
    """Set all weights in place: draw each matrix at random, set biases to 0 and LayerNorm weights to 1.

    If `scaled`, other standard deviations are used, and the masked-LM head starts with other weights (see
    ModelConfig.initial_weights). A matrix depends only on `scaled`, `seed`, and the parameter's name and shape. The
    inverse of the normal distribution function turns uniform numbers into weights in one pass, which takes 15 ns per
    element. nn.init.trunc_normal_ takes 100 ns, because it redraws until all values fit.
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
