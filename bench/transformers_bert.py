"""transformers' BertForPreTraining as the benches compare with it: our initial weights, the same rows, padded.

Nothing here waits for the device. Padding a step of 128 rows takes the host some 5 ms: do it ahead (`prefetch`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from pipeline.dataset import Manifest
from trainer.config import ModelConfig
from trainer.hf import to_transformers, transformers_config
from trainer.model import Batch, BertForPretraining

IGNORED = -100
"""transformers' label of what is not predicted."""
NO_FIELDS = ("architectures", "dtype", "model_type")

Padded: TypeAlias = dict[str, Tensor]
"""The arguments of BertForPreTraining.forward for [n, length] tokens."""
T = TypeVar("T")


class Row(NamedTuple):
    """One sentence pair; all but `next_sentence` are int64 of its length."""

    input_ids: Tensor
    segment_ids: Tensor
    labels: Tensor
    """IGNORED where nothing is predicted."""
    next_sentence: Tensor
    """int64 []"""


def rows_of(batch: Batch) -> list[Row]:
    """The pairs of a batch without constant shapes, in order."""
    lengths = batch.offsets.diff().tolist()
    labels = torch.full_like(batch.input_ids, IGNORED)
    kept = batch.masked_weights > 0
    labels[batch.masked_positions[kept]] = batch.masked_labels[kept]
    next_sentences = torch.where(batch.nsp_weights > 0, batch.nsp_labels, IGNORED)
    parts = (torch.split(part, lengths) for part in (batch.input_ids, batch.segment_ids, labels))
    return [Row(*row) for row in zip(*parts, next_sentences.unbind(), strict=True)]


def pad(rows: Sequence[Row], *, length: int, pin: bool = False) -> Padded:
    """Rows padded to `length`, on the CPU."""

    def fill(parts: Sequence[Tensor], value: int) -> Tensor:
        whole = pad_sequence(list(parts), batch_first=True, padding_value=value)
        return F.pad(whole, (0, length - whole.shape[1]), value=value)

    lengths = torch.tensor([len(row.input_ids) for row in rows])
    padded = {
        "input_ids": fill([row.input_ids for row in rows], 0),
        "token_type_ids": fill([row.segment_ids for row in rows], 0),
        "labels": fill([row.labels for row in rows], IGNORED),
        "attention_mask": (torch.arange(length) < lengths[:, None]).long(),
        "next_sentence_label": torch.stack([row.next_sentence for row in rows]),
    }
    return {name: tensor.pin_memory() for name, tensor in padded.items()} if pin else padded


def with_places(padded: Padded, *, pin: bool = False) -> Padded:
    """Add "places" and "targets" [m], the predicted positions of all rows and their labels, for `loss_sums`."""
    flat = padded["labels"].flatten()
    places = (flat != IGNORED).nonzero().flatten()
    found = {"places": places, "targets": flat[places]}
    return padded | {name: tensor.pin_memory() if pin else tensor for name, tensor in found.items()}


def send(padded: Padded, device: str) -> Padded:
    """Copy to the device; does not wait where the memory is pinned."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in padded.items()}


def initial_state(config: ModelConfig, *, manifest: Manifest, seed: int) -> dict[str, Tensor]:
    """The weights that ours of `seed` starts from, by transformers' names. Takes 10 s of a core for BERT-Large."""
    size = manifest.vocabulary_size
    ours = BertForPretraining(config, vocabulary_size=size, seed=seed)
    tensors = to_transformers(dict(ours.named_parameters()), norm=config.norm, vocabulary_size=size)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def build_model(config: ModelConfig, *, manifest: Manifest, state: dict[str, Tensor], device: str) -> nn.Module:
    """BertForPreTraining with sdpa and these weights, in training mode. RuntimeError where they do not fit."""
    from transformers import BertConfig, BertForPreTraining

    tree = transformers_config(config, vocabulary_size=manifest.vocabulary_size, pad=manifest.special.pad)
    known = {key: value for key, value in tree.items() if key not in NO_FIELDS}
    model: nn.Module = BertForPreTraining(BertConfig(**known, attn_implementation="sdpa"))
    result = model.load_state_dict(state, strict=False)
    absent = [name for name in result.missing_keys if "decoder" not in name and "position_ids" not in name]
    if absent or result.unexpected_keys:
        raise RuntimeError(f"weights do not fit transformers' model: {absent}, {result.unexpected_keys}")
    model.tie_weights()  # type: ignore[operator]
    return model.to(device).train()


def loss_sums(model: Any, batch: Padded, *, autocast: AbstractContextManager[Any]) -> tuple[Tensor, Tensor]:
    """Sums in nats of masked-LM and next-sentence loss of a batch `with_places`, by one eager forward pass.

    Logits are made at the predicted places alone.
    """
    with autocast:
        hidden = model.bert(
            input_ids=batch["input_ids"],
            token_type_ids=batch["token_type_ids"],
            attention_mask=batch["attention_mask"],
        )
        logits = model.cls.predictions(hidden.last_hidden_state.flatten(0, 1)[batch["places"]])
        pairs = model.cls.seq_relationship(hidden.pooler_output)
    masked = F.cross_entropy(logits.float(), batch["targets"], reduction="sum")
    return masked, F.cross_entropy(pairs.float(), batch["next_sentence_label"], reduction="sum", ignore_index=IGNORED)


def autocast_of(precision: str, *, device: str) -> AbstractContextManager[Any]:
    """bf16 autocast, or nothing for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def prefetch(items: Iterable[T], *, depth: int = 4) -> Iterator[T]:
    """The items, made ahead in a thread; an error in it is raised here. Ends with the generator's close."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    ended = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not ended.is_set():
            try:
                return ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put(item, None)
                if ended.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        ended.set()
        thread.join()
