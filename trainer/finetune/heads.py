"""Our encoder with a task's head: logits, and the mean loss of a batch.

The same as transformers' BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering and
BertForMultipleChoice; see the room for the one difference.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.data import NO_LABEL
from trainer.finetune.batches import TaskBatch
from trainer.finetune.examples import Kind
from trainer.model import BertForPretraining, initialize_weights

ON_TOKENS = ("tagging", "qa")
"""Kinds whose head is on every token, without a pooler."""


class TaskModel(nn.Module):
    """Encoder, pooler unless the head is on tokens, dropout, and a dense layer.

    Takes the encoder and pooler of `bert` over, whose other heads are removed. The new weights are drawn by `seed`, the
    pooler's too where nothing has trained it (`pooler_trained` False).
    """

    def __init__(
        self, bert: BertForPretraining, *, kind: Kind, num_outputs: int, seed: int, pooler_trained: bool = True
    ) -> None:
        super().__init__()
        self.kind = kind
        self.bert = bert
        del bert.mlm_head, bert.nsp_head
        if kind in ON_TOKENS:
            del bert.pooler
        elif not pooler_trained:
            initialize_weights(bert.pooler, seed=seed)
        self.dropout = nn.Dropout(bert.config.dropout if kind != "qa" else 0.0)
        self.head = nn.Linear(bert.config.width, num_outputs)
        initialize_weights(self.head, seed=seed)

    def forward(self, batch: TaskBatch) -> Tensor:
        """Logits: [N, classes]; regression [N]; choice [N, choices]; tagging [T, classes]; qa [T, 2], start and end."""
        hidden = self.bert.encode(batch.tokens)
        if self.kind not in ON_TOKENS:
            hidden = self.bert.pooler(hidden.index_select(0, batch.tokens.cls_positions))
        logits: Tensor = self.head(self.dropout(hidden))
        if self.kind == "regression":
            return logits.squeeze(-1)
        return logits.view(batch.num_features, -1) if self.kind == "choice" else logits


def mean_loss(logits: Tensor, *, kind: Kind, batch: TaskBatch) -> Tensor:
    """The loss of a batch: cross-entropy in nats over what has a label, or the squared error; a float32 scalar."""
    if kind == "regression":
        return F.mse_loss(logits.float(), batch.targets)
    if kind == "qa":
        rows = by_row(logits.float(), batch=batch)
        start, end = (F.cross_entropy(rows[..., side], batch.targets[:, side]) for side in (0, 1))
        return (start + end) / 2
    return F.cross_entropy(logits.float(), batch.targets, ignore_index=NO_LABEL)


def by_row(logits: Tensor, *, batch: TaskBatch) -> Tensor:
    """[T, C] -> [N, longest, C]; behind a row's end minus infinity, which no softmax sees."""
    offsets = batch.tokens.offsets.long()
    row = torch.repeat_interleave(torch.arange(batch.num_features, device=logits.device), offsets.diff())
    padded = logits.new_full((batch.num_features, batch.tokens.max_length, logits.shape[-1]), -torch.inf)
    return padded.index_put((row, batch.tokens.position_ids), logits)
