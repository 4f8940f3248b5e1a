"""Lightning trains on a set: ranks take other rows, and a run that was stopped in an epoch has the same losses."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from pipeline.torch_data import Collator, PairDataset, PairLoader, PairStream
from synthetic import write_data_set

lightning = pytest.importorskip("pytorch_lightning")
transformers = pytest.importorskip("transformers")

VOCABULARY, BATCH = 256, 8


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set")
    write_data_set(folder, shards=2, row_groups=2, rows=17, max_seq_length=32, vocabulary_size=VOCABULARY)
    return folder


def make_bert(*, packed: bool) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return (transformers.BertForMaskedLM if packed else transformers.BertForPreTraining)(config)


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """BERT on a stream, and a record of its losses and rows."""

    def __init__(self, root: Path, *, workers: int = 0, pack_to: int | None = None, seen: Path | None = None) -> None:
        super().__init__()
        self.bert = make_bert(packed=pack_to is not None)
        self.root, self.workers, self.pack_to, self.seen = root, workers, pack_to, seen
        self.losses: list[float] = []

    def train_dataloader(self) -> PairLoader:
        ranks = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        stream = PairStream(self.root, batch_size=BATCH, **ranks)
        collate = Collator(pad=stream.manifest.special.pad, pack_to=self.pack_to)
        return PairLoader(stream, num_workers=self.workers, collate_fn=collate)

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        loss: torch.Tensor = self.bert(**batch).loss
        self.losses.append(loss.item())
        if self.seen is not None:
            with self.seen.with_suffix(f".{self.global_rank}").open("a") as file:
                file.writelines(f"{row.tolist()}\n" for row in batch["input_ids"])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(model: Model, folder: Path, *, steps: int, resume: Path | None = None, **settings: Any) -> Any:
    trainer = lightning.Trainer(
        default_root_dir=folder, accelerator="cpu", max_steps=steps, logger=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, **settings,
    )  # fmt: skip
    trainer.fit(model, ckpt_path=resume)
    return trainer


@pytest.mark.parametrize("pack_to", [None, 64])
@pytest.mark.parametrize("stop", [3, 9, 12])
def test_a_run_stopped_in_an_epoch_goes_on_with_the_same_losses(
    pack_to: int | None, stop: int, root: Path, tmp_path: Path
) -> None:
    """An epoch has nine batches; workers have read ahead of the stop. The same losses in a plain loop."""
    whole = Model(root, pack_to=pack_to)
    fit(whole, tmp_path, steps=14)
    first = Model(root, pack_to=pack_to, workers=2)
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=stop)
    fit(first, tmp_path, steps=stop, callbacks=[saving])
    second = Model(root, pack_to=pack_to)
    fit(second, tmp_path, steps=14, resume=tmp_path / f"step={stop}.ckpt")
    assert first.losses + second.losses == whole.losses

    bert = make_bert(packed=pack_to is not None).train()
    optimizer = torch.optim.SGD(bert.parameters(), lr=0.1)
    losses = []
    stream = PairStream(root, batch_size=BATCH)
    collate = Collator(pad=stream.manifest.special.pad, pack_to=pack_to)
    for epoch in (0, 1):
        stream.set_epoch(epoch)
        for batch in DataLoader(stream, batch_size=BATCH, collate_fn=collate):
            optimizer.zero_grad()
            loss = bert(**batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:14] == whole.losses


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_checkpoint_of_the_end_of_an_epoch_repeats_no_batch(epochs: int, root: Path, tmp_path: Path) -> None:
    """With max_steps, Lightning ends the epoch after such a start behind its first batch, and asks for a new one."""
    whole = Model(root)
    fit(whole, tmp_path, steps=27)
    first = Model(root)
    fit(first, tmp_path, steps=-1, max_epochs=epochs).save_checkpoint(tmp_path / "end.ckpt")
    second = Model(root)
    fit(second, tmp_path, steps=27, resume=tmp_path / "end.ckpt")
    assert (len(first.losses), first.losses + second.losses) == (9 * epochs, whole.losses)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_goes_on_behind_the_last_batch_also_in_running_workers(persistent: bool, root: Path) -> None:
    def open_loader() -> PairLoader:
        stream = PairStream(root, batch_size=BATCH)
        collate = Collator(pad=stream.manifest.special.pad)
        return PairLoader(stream, num_workers=2, persistent_workers=persistent, collate_fn=collate)

    def take(loader: PairLoader, *, count: int = 100) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in islice(loader, count)]

    loader = open_loader()
    epochs = [take(loader), take(loader)]
    assert [len(epoch) for epoch in epochs] == [9, 9]
    stopped = open_loader()
    assert take(stopped, count=4) == epochs[0][:4]
    state = stopped.state_dict()
    assert take(stopped, count=2) == epochs[0][4:6]
    resumed = open_loader()
    resumed.load_state_dict(state)
    assert [take(resumed), take(resumed)] == [epochs[0][4:], epochs[1]]


def test_two_ranks_with_workers_take_other_rows(root: Path, tmp_path: Path) -> None:
    """68 rows: four steps of two ranks with a batch of eight each; the four rows that are left fill no step."""
    settings: dict[str, Any] = {"strategy": "ddp_fork", "devices": 2}
    fit(Model(root, workers=1, seen=tmp_path / "seen"), tmp_path, steps=4, **settings)
    taken = [(tmp_path / f"seen.{rank}").read_text().splitlines() for rank in (0, 1)]
    assert [len(rows) for rows in taken] == [32, 32]
    data = PairDataset(root, mask_set=0)
    pad = data.manifest.special.pad
    stored = Counter(strip(data[number]["input_ids"].tolist(), pad=pad) for number in range(len(data)))
    found = Counter(strip(json.loads(row), pad=pad) for rows in taken for row in rows)
    assert not found - stored


def strip(ids: list[int], *, pad: int) -> tuple[int, ...]:
    return tuple(each for each in ids if each != pad)
