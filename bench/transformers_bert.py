"""transformers' BertForPreTraining, as benchmarks compare it with our model: same initial weights, same rows, padded.

No function here waits for the device. Padding a step of 128 rows takes the host about 5 ms, so `prefetch` does it ahead
of time in a thread.
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
"""transformers' label for positions and pairs that have nothing to predict."""
NO_FIELDS = ("architectures", "dtype", "model_type")

Padded: TypeAlias = dict[str, Tensor]
"""The arguments of BertForPreTraining.forward for n rows, padded to [n, length] tokens."""
T = TypeVar("T")


class Row(NamedTuple):
    """One sentence pair. All tensors but `next_sentence` are int64 and as long as the pair."""

    input_ids: Tensor
    segment_ids: Tensor
    labels: Tensor
    """The token ids to predict, and IGNORED at all other positions."""
    next_sentence: Tensor
    """The next-sentence label (or IGNORED), an int64 scalar."""


def rows_of(batch: Batch) -> list[Row]:
    """Return the pairs of a batch in order. The batch must not have constant shapes, so that it has no dummy pairs."""
    lengths = batch.offsets.diff().tolist()
    labels = torch.full_like(batch.input_ids, IGNORED)
    kept = batch.masked_weights > 0
    labels[batch.masked_positions[kept]] = batch.masked_labels[kept]
    next_sentences = torch.where(batch.nsp_weights > 0, batch.nsp_labels, IGNORED)
    parts = (torch.split(part, lengths) for part in (batch.input_ids, batch.segment_ids, labels))
    return [Row(*row) for row in zip(*parts, next_sentences.unbind(), strict=True)]


def pad(rows: Sequence[Row], *, length: int, pin: bool = False) -> Padded:
    """Return the rows as tensors on the CPU, padded to `length` tokens. If `pin`, the memory is pinned."""

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
    """Return a copy of `padded` with two more tensors, which `loss_sums` needs.

    "places" [m] holds the indices of the m predicted positions among all tokens of the batch, padding included.
    "targets" [m] holds the labels at these positions.
    """
    flat = padded["labels"].flatten()
    places = (flat != IGNORED).nonzero().flatten()
    found = {"places": places, "targets": flat[places]}
    return padded | {name: tensor.pin_memory() if pin else tensor for name, tensor in found.items()}


def send(padded: Padded, device: str) -> Padded:
    """Copy a batch to the device. If the memory is pinned, the copy is asynchronous."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in padded.items()}


def initial_state(config: ModelConfig, *, manifest: Manifest, seed: int) -> dict[str, Tensor]:
    """Return the initial weights of our model for `seed`, with transformers' names. Takes 10 s on a core for
    BERT-Large."""
    size = manifest.vocabulary_size
    ours = BertForPretraining(config, vocabulary_size=size, seed=seed)
    tensors = to_transformers(dict(ours.named_parameters()), norm=config.norm, vocabulary_size=size)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def build_model(config: ModelConfig, *, manifest: Manifest, state: dict[str, Tensor], device: str) -> nn.Module:
    """Return transformers' BertForPreTraining with the weights `state`, in training mode.

    It computes attention with sdpa (torch's scaled_dot_product_attention). Raises RuntimeError if the weights do not
    fit.
    """
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
    """Return the sums of masked-LM and next-sentence losses of a batch, in nats, from one eager forward pass.

    `batch` comes from `with_places`. Logits are computed only at the predicted positions.
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
    """Return a context manager: bf16 autocast, or for fp32 one that does nothing."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def prefetch(items: Iterable[T], *, depth: int = 4) -> Iterator[T]:
    """Yield `items`, which a thread produces up to `depth` items ahead. An error in the thread is raised here.

    The thread ends when the generator is closed.
    """
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
