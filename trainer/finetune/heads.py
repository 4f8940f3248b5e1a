"""Our encoder with a task's head: logits, and the mean loss of a batch.

The same as transformers' BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering and
BertForMultipleChoice; see the room for the one difference.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from trainer.data import NO_LABEL
from trainer.finetune.batches import TaskBatch
from trainer.finetune.examples import Kind
from trainer.model import BertForPretraining, initialize_weights

ON_TOKENS = ("tagging", "qa")
"""Kinds whose head is on every token, without a pooler."""


class TaskModel(nn.Module):
    """Encoder, pooler unless the head is on tokens, dropout, and a dense layer.

    Takes the encoder and pooler of `bert` over, whose other heads are removed. The new weights are drawn by `seed`, the
    pooler's too where nothing has trained it (`pooler_trained` False). A causal model keeps its mask. Its row is read
    at the last token, as in GPT-1, because [CLS] sees only itself. With `bilstm`, a bidirectional LSTM replaces the
    pooler; a row is then the last state of each direction.
    """

    def __init__(
        self,
        bert: BertForPretraining,
        *,
        kind: Kind,
        num_outputs: int,
        seed: int,
        pooler_trained: bool = True,
        bilstm: bool = False,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.bert = bert
        del bert.mlm_head, bert.nsp_head
        self.bilstm = make_bilstm(bert.config.width, seed=seed) if bilstm else None
        if kind in ON_TOKENS or bilstm:
            del bert.pooler
        elif not pooler_trained:
            initialize_weights(bert.pooler, seed=seed)
        self.dropout = nn.Dropout(bert.config.dropout if kind != "qa" else 0.0)
        width = bert.config.width if self.bilstm is None else 2 * self.bilstm.hidden_size
        self.head = nn.Linear(width, num_outputs)
        initialize_weights(self.head, seed=seed)

    def forward(self, batch: TaskBatch) -> Tensor:
        """Logits: [N, classes]; regression [N]; choice [N, choices]; tagging [T, classes]; qa [T, 2], start and end."""
        hidden = self.bert.encode(batch.tokens)
        if self.bilstm is not None:
            on_tokens, on_rows = run_bilstm(self.bilstm, hidden, batch=batch)
            hidden = on_tokens if self.kind in ON_TOKENS else on_rows
        elif self.kind not in ON_TOKENS:
            places = batch.tokens.cls_positions
            if self.bert.config.is_causal:
                places = batch.tokens.offsets[1:].long() - 1
            hidden = self.bert.pooler(hidden.index_select(0, places))
        logits: Tensor = self.head(self.dropout(hidden))
        if self.kind == "regression":
            return logits.squeeze(-1)
        return logits.view(batch.num_features, -1) if self.kind == "choice" else logits

    @property
    def is_known_to_transformers(self) -> bool:
        """Whether a class of transformers gives the same outputs."""
        return self.bilstm is None and (self.kind in ON_TOKENS or not self.bert.config.is_causal)


def make_bilstm(width: int, *, seed: int) -> nn.LSTM:
    """Return an LSTM of both directions, [.., width] -> [.., 2 x (width / 2 rounded up)], drawn by `seed`."""
    lstm = nn.LSTM(width, -(-width // 2), batch_first=True, bidirectional=True)
    generator, bound = torch.Generator().manual_seed(seed), 1 / math.sqrt(lstm.hidden_size)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return lstm


def run_bilstm(lstm: nn.LSTM, hidden: Tensor, *, batch: TaskBatch) -> tuple[Tensor, Tensor]:
    """Return the states at all tokens, [T, C], and the last state of both directions in each row, [S, C]."""
    offsets = batch.tokens.offsets.long()
    lengths = offsets.diff()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=hidden.device), lengths)
    rows = hidden.new_zeros(len(lengths), batch.tokens.max_length, hidden.shape[-1])
    rows = rows.index_put((row, batch.tokens.position_ids), hidden)
    packed, (last, _) = lstm(pack_padded_sequence(rows, lengths.cpu(), batch_first=True, enforce_sorted=False))
    states, _ = pad_packed_sequence(packed, batch_first=True)
    return states[row, batch.tokens.position_ids], torch.cat([last[0], last[1]], -1)


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
