"""Held-out evaluation, beside what knowing the training set's token frequencies, or its neighbours, alone would give.

It reads the first evaluation.max_pairs held-out pairs of an order that depends on the data set alone, with their first
mask set, so that all evaluations on a data set compare; dropout is off. Sums are reduced once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

from pipeline import storage
from pipeline.dataset import TOKEN_COUNTS_NAME, Manifest
from trainer.config import TrainerConfig
from trainer.data import BatchShape, MicroBatch, MicroBatchStream, validation_plan
from trainer.engine import Engine
from trainer.model import to_batch
from trainer.telemetry import Evaluation, SourceLoss
from trainer.train.bigram import Bigrams, count_bigrams

UNIGRAM_SMOOTHING = 1.0
"""Added to every token's count, so that tokens which training never saw have a probability too."""


class Evaluator:
    """Evaluates on the held-out rows of a phase's data set. ValueError where it holds none."""

    def __init__(self, config: TrainerConfig, *, manifest: Manifest, shape: BatchShape, phase: int = 0) -> None:
        self._config, self._manifest, self._shape = config, manifest, shape.micro_batch
        self._phase, self._data_hash = phase, manifest.hash
        self._plan = validation_plan(
            manifest, shape=shape.micro_batch, lanes=shape.lanes, max_pairs=config.evaluation.max_pairs
        )
        log_probabilities = unigram_log_probabilities(config.data, vocabulary_size=manifest.vocabulary_size)
        self._unigram = log_probabilities
        self._sources = manifest.sources
        self._bigrams: Bigrams | None = None

    def is_due(self, step: int) -> bool:
        """Whether the config asks for an evaluation after this step, before the end of the run."""
        every = self._config.evaluation.every_steps
        return every is not None and step % every == 0

    def evaluate(self, engine: Engine, *, step: int) -> Evaluation:
        """Evaluate the weights after `step` steps; the same result on every rank. Collective."""
        if self._bigrams is None:
            skip = self._config.ingest.skip_corrupt
            self._bigrams = count_bigrams(
                self._config.data, manifest=self._manifest, unigram=self._unigram, skip_corrupt=skip
            )
        stream = MicroBatchStream(
            self._plan,
            self._config.data,
            rank=engine.rank,
            world_size=engine.world_size,
            all_reduce=sum_over_ranks,
        )
        sums = torch.zeros(4, dtype=torch.float64)
        by_source = SourceSums(len(self._sources))
        pairs = masked = labelled = 0
        bigram = 0.0
        with closing(stream), engine.evaluation():
            for data in stream.one_epoch():
                pairs += data.num_pairs
                masked += data.num_masked
                labelled += data.num_labelled
                for micro_batch in data.micro_batches:
                    batch = to_batch(
                        micro_batch,
                        shape=self._shape,
                        special=self._manifest.special,
                        constant_shapes=engine.device.type == "cuda",
                        device=engine.device,
                    )
                    output = engine(batch)
                    sums += output.sums().double().cpu()
                    if micro_batch is not None:
                        losses = output.mlm_losses[: micro_batch.num_masked].double().cpu().numpy()
                        bigram += float(self._bigrams.losses(micro_batch).sum())
                        by_source.add(micro_batch, losses=losses, unigram=-self._unigram[micro_batch.masked_labels])
        totals = torch.tensor([*sums.tolist(), bigram, *by_source.table.ravel()], dtype=torch.float64)
        dist.all_reduce(totals)
        mlm, nsp, mlm_correct, nsp_correct, bigram = totals[:5].tolist()
        table = totals[5:].reshape(by_source.table.shape).numpy()
        return Evaluation(
            step=step,
            pairs=pairs,
            masked=masked,
            mlm_loss=mlm / max(1, masked),
            mlm_accuracy=mlm_correct / max(1, masked),
            nsp_loss=nsp / labelled if labelled else None,
            nsp_accuracy=nsp_correct / labelled if labelled else None,
            unigram_loss=float(table[:, SourceSums.UNIGRAM].sum()) / max(1, masked),
            bigram_loss=bigram / max(1, masked),
            phase=self._phase,
            data_hash=self._data_hash,
            sources=_source_losses(table, names=self._sources) if len(self._sources) > 1 else (),
            unseen=tuple(
                name for name, counts in zip(self._sources, table, strict=True) if not counts[SourceSums.MASKED]
            )
            if len(self._sources) > 1
            else (),
        )


class SourceSums:
    """Sums over what one rank evaluated, by source: float64[sources, 4], exact counts and losses in nats."""

    PAIRS, MASKED, LOSS, UNIGRAM = range(4)

    def __init__(self, num_sources: int) -> None:
        self.table: npt.NDArray[np.float64] = np.zeros((num_sources, 4))

    def add(
        self, micro_batch: MicroBatch, *, losses: npt.NDArray[np.float64], unigram: npt.NDArray[np.float64]
    ) -> None:
        """Count a micro-batch: `losses` and `unigram` of its masked positions, [m] each."""
        size = len(self.table)
        places = micro_batch.masked_sources
        self.table[:, self.PAIRS] += np.bincount(micro_batch.sources, minlength=size)
        self.table[:, self.MASKED] += np.bincount(places, minlength=size)
        self.table[:, self.LOSS] += np.bincount(places, weights=losses, minlength=size)
        self.table[:, self.UNIGRAM] += np.bincount(places, weights=unigram, minlength=size)


def _source_losses(table: npt.NDArray[np.float64], *, names: Sequence[str]) -> tuple[SourceLoss, ...]:
    return tuple(
        SourceLoss(name, pairs=int(pairs), masked=int(masked), mlm_loss=loss / masked, unigram_loss=unigram / masked)
        for name, (pairs, masked, loss, unigram) in zip(names, table.tolist(), strict=True)
        if masked
    )


def sum_over_ranks(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Element-wise sum over all ranks, on the host."""
    total = torch.from_numpy(counts)
    dist.all_reduce(total)
    return total.numpy()


def unigram_log_probabilities(data: str | Path, *, vocabulary_size: int) -> npt.NDArray[np.float64]:
    """Natural logarithm of each id's share of the training tokens, add-one smoothed; [vocabulary_size].

    (count + 1) / (sum of counts + vocabulary_size), from OUT/token_counts.parquet.
    """
    content = storage.read_bytes(storage.join(data, TOKEN_COUNTS_NAME))
    table = pq.read_table(pa.BufferReader(content), columns=["id", "count"])
    counts = np.full(vocabulary_size, UNIGRAM_SMOOTHING)
    np.add.at(counts, table["id"].to_numpy(), table["count"].to_numpy())
    return np.asarray(np.log(counts) - math.log(counts.sum()), dtype=np.float64)
