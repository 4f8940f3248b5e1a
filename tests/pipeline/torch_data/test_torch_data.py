"""A data set in torch: no row is lost or repeated by any number of ranks and workers, and transformers trains on it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from pipeline.dataset import read_manifest
from pipeline.torch_data import Collator, PairDataset, PairLoader, PairStream
from synthetic import write_data_set

transformers = pytest.importorskip("transformers")

VOCABULARY = 256


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    write_data_set(folder, shards=3, row_groups=2, rows=17, max_seq_length=32, vocabulary_size=VOCABULARY)
    return folder


def stored_rows(root: Path, *, mask_set: int) -> list[dict[str, Any]]:
    """The training rows as the files have them, with the masks put in one by one."""
    rows = []
    for shard in read_manifest(root).shards_of("train"):
        for row in pq.read_table(root / shard.path).to_pylist():
            ids, labels = list(row["input_ids"]), [-100] * len(row["input_ids"])
            places = zip(row["masked_positions"][mask_set], row["masked_inputs"][mask_set], strict=True)
            for position, masked in places:
                labels[position], ids[position] = row["input_ids"][position], masked
            segments = [int(place >= row["first_length"]) for place in range(len(ids))]
            rows.append({"input_ids": ids, "token_type_ids": segments, "labels": labels,
                         "next_sentence_label": row["next_sentence_label"]})  # fmt: skip
    return rows


def as_lists(item: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in item.items()}


def keep(items: list[Any]) -> list[Any]:
    return items


def key(item: dict[str, torch.Tensor]) -> str:
    return json.dumps(as_lists(item))


def test_every_row_of_every_mask_set_is_as_stored(root: Path) -> None:
    mask_sets = read_manifest(root).mask_sets
    assert mask_sets > 1
    for mask_set in range(mask_sets):
        data = PairDataset(root, mask_set=mask_set)
        assert [as_lists(data[index]) for index in range(len(data))] == stored_rows(root, mask_set=mask_set)
    assert as_lists(data[-1]) == as_lists(data[len(data) - 1])
    with pytest.raises(IndexError, match="the split has"):
        data[len(data)]
    with pytest.raises(ValueError, match=rf"mask_set={mask_sets}: .* has {mask_sets} mask sets, 0 to {mask_sets - 1}"):
        PairDataset(root, mask_set=mask_sets)


def test_a_sampler_with_workers_takes_every_row_once_and_the_epochs_masks(root: Path) -> None:
    data = PairDataset(root, cache_bytes=1)
    loader = DataLoader(data, batch_size=5, shuffle=True, num_workers=2, collate_fn=keep, persistent_workers=True)
    for epoch in (0, 1):
        data.set_epoch(epoch)
        found = Counter(key(item) for batch in loader for item in batch)
        assert found == Counter(json.dumps(row) for row in stored_rows(root, mask_set=epoch))


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0), (3, 2)])
def test_the_batches_of_a_step_do_not_depend_on_ranks_and_workers(root: Path, world_size: int, workers: int) -> None:
    """Batch j of one rank alone is batch j div W of rank j mod W."""
    alone = [[key(item) for item in batch] for batch in DataLoader(PairStream(root, batch_size=4), batch_size=4,
                                                                    collate_fn=keep)]  # fmt: skip
    assert Counter(one for batch in alone for one in batch) == Counter(
        json.dumps(row) for row in stored_rows(root, mask_set=0)
    )
    assert alone[0] != [json.dumps(row) for row in stored_rows(root, mask_set=0)[:4]]
    ranks = []
    for rank in range(world_size):
        stream = PairStream(root, batch_size=4, rank=rank, world_size=world_size)
        loader = DataLoader(stream, batch_size=4, num_workers=workers, collate_fn=keep)
        ranks.append([[key(item) for item in batch] for batch in loader])
        assert len(stream) == sum(map(len, ranks[-1]))
    steps = len(alone) if world_size == 1 else 102 // (4 * world_size)
    assert [len(batches) for batches in ranks] == [steps] * world_size
    assert [ranks[number % world_size][number // world_size] for number in range(steps * world_size)] == alone[
        : steps * world_size
    ]


def test_epochs_differ_and_a_state_continues_with_other_ranks_and_workers(root: Path) -> None:
    stream = PairStream(root, batch_size=4, seed=3)
    whole = [key(item) for item in stream]
    stream.set_epoch(1)
    second = [key(item) for item in stream]
    assert Counter(second) == Counter(json.dumps(row) for row in stored_rows(root, mask_set=1))
    assert whole != second

    first = [PairStream(root, batch_size=4, seed=3, rank=rank, world_size=2) for rank in (0, 1)]
    taken: list[str] = []
    for stream in first:
        loader = iter(DataLoader(stream, batch_size=4, collate_fn=keep))
        taken += [key(item) for _ in range(3) for item in next(loader)]
    state = json.loads(json.dumps(first[0].state_dict()))
    assert state == first[1].state_dict() == first[0].state_after(3)
    for workers in (0, 2):
        rest = PairStream(root, batch_size=6, seed=3)
        rest.load_state_dict(state)
        rest.set_epoch(0)  # as Trainer says at the start of an epoch
        loader = DataLoader(rest, batch_size=6, num_workers=workers, collate_fn=keep)
        left = [key(item) for batch in loader for item in batch]
        assert Counter(taken + left) == Counter(whole)
        assert left == whole[24:]
    with pytest.raises(ValueError, match=r"the state has seed=3, this stream 4; open the same again"):
        PairStream(root, batch_size=4, seed=4).load_state_dict(state)


def test_a_worker_continues_from_its_own_state(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stateful loader saves and loads it: in each worker."""
    from types import SimpleNamespace

    from pipeline.torch_data import stream as module

    whole = [key(item) for item in PairStream(root, batch_size=4)]
    found = []
    for worker in (0, 1):
        monkeypatch.setattr(module, "get_worker_info", lambda number=worker: SimpleNamespace(id=number, num_workers=2))
        made = PairStream(root, batch_size=4)
        rows = iter(made)
        found += [key(next(rows)) for _ in range(9)]
        state = made.state_dict()
        assert state["worker"] == [worker, 2, 2]
        again = PairStream(root, batch_size=4)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert again.state_dict() == state
        found = found[:-1] + [key(item) for item in again]
    assert Counter(found) == Counter(whole)
    monkeypatch.setattr(module, "get_worker_info", lambda: None)
    with pytest.raises(ValueError, match="saved by worker 1 of 2"):
        list(again)


def make_model(name: str = "BertForPreTraining") -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return getattr(transformers, name)(config)


def test_a_packed_batch_has_the_loss_of_a_padded_one(root: Path) -> None:
    data = PairDataset(root, mask_set=0)
    pad = data.manifest.special.pad
    items = [data[index] for index in range(9)]
    padded, packed = Collator(pad=pad, multiple_of=8)(items), Collator(pad=pad, pack_to=64)(items)
    assert padded["input_ids"].shape[1] % 8 == 0
    assert packed["input_ids"].shape[0] < 9
    assert int(packed["attention_mask"].sum()) >= sum(item["input_ids"].numel() ** 2 for item in items)
    model = make_model("BertForMaskedLM").eval()
    next_sentence = padded.pop("next_sentence_label")
    assert next_sentence.tolist() == [int(item["next_sentence_label"]) for item in items]
    torch.testing.assert_close(model(**packed).loss, model(**padded).loss)
    with pytest.raises(ValueError, match=r"pack_to=4: a row has \d+ tokens; raise it"):
        Collator(pad=pad, pack_to=4)(items)


def test_transformers_trains_on_a_set_and_the_loss_falls(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    for kind in ("map", "stream"):
        data = PairDataset(root) if kind == "map" else PairStream(root, batch_size=8)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / kind), per_device_train_batch_size=8, max_steps=24, learning_rate=1e-2,
            logging_steps=6, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, seed=1,
        )  # fmt: skip
        trainer = transformers.Trainer(
            make_model(), arguments, train_dataset=data, data_collator=Collator(pad=data.manifest.special.pad)
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert losses[-1] < losses[0] - 0.1, (kind, losses)


def test_a_plain_loop_stopped_between_steps_has_the_same_losses(root: Path) -> None:
    """With workers, by the state of the batches that the loop has used."""

    def train(
        state: dict[str, Any] | None, *, model: Any, steps: int, workers: int
    ) -> tuple[list[float], dict[str, Any]]:
        stream = PairStream(root, batch_size=8)
        if state is not None:
            stream.load_state_dict(state)
        collator = Collator(pad=stream.manifest.special.pad)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses: list[float] = []
        for batch in DataLoader(stream, batch_size=8, num_workers=workers, collate_fn=collator):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
        return losses, stream.state_after(len(losses))

    whole, _ = train(None, model=make_model(), steps=5, workers=0)
    model = make_model()
    first, state = train(None, model=model, steps=2, workers=2)
    second, _ = train(state, model=model, steps=3, workers=0)
    assert first + second == whole


def test_the_page_of_other_trainers_runs_as_it_stands(
    root: Path, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its code, with a smaller model and fewer steps."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs it")
    pytest.importorskip("pytorch_lightning")
    monkeypatch.chdir(tmp_path)
    text = (repository / "docs/how-to/other-trainers.md").read_text(encoding="utf-8")
    small = "hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64"
    for old, new in (
        ("sets/mine", str(root)),
        ("max_position_embeddings=512", small),
        ("max_steps=10_000", "max_steps=2"),
        ("warmup_steps=500", "warmup_steps=1"),
        ("batch_size=32", "batch_size=8"),
        ("num_workers=4", "num_workers=1"),
        ("every_n_train_steps=1000", "every_n_train_steps=1"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"rank": 0, "world_size": 1, "state": None, "DataLoader": DataLoader, "torch": torch}
    for block in blocks:
        exec(block, names)
    assert names["state"]["rows"] == 102
    assert list((tmp_path / "runs" / "lightning").glob("*.ckpt"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_drops_the_last_batch_goes_on_to_the_next_epoch(workers: int, root: Path) -> None:
    stream = PairStream(root, batch_size=8)
    collate = Collator(pad=stream.manifest.special.pad)
    loader = PairLoader(stream, num_workers=workers, drop_last=True, collate_fn=collate)
    epochs = [[batch["input_ids"] for batch in loader] for _ in range(3)]
    assert [len(batches) for batches in epochs] == [len(stream) // 8] * 3
    assert len(stream) % 8, "a batch is dropped"
    assert not torch.equal(epochs[0][0], epochs[1][0])
    assert loader.state_dict() == {**stream.state_after(0), "epoch": 3, "rows": 0}
