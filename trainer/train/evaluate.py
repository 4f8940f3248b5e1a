"""Evaluate on held-out pairs, next to two baselines: token frequencies (unigram) and neighbouring tokens (bigram).

Reads held-out pairs in an order that depends on the data set alone. The setting evaluation.max_pairs limits how many
pairs are read. If the data set holds several maskings of each pair, the first is used. So all evaluations on a data set
with one objective are comparable. Dropout is off. Sums over ranks are made once, at the end.
"""

from __future__ import annotations

import math
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
"""Number added to each token's count, so that tokens unseen in training have a probability too."""


class Evaluator:
    """Evaluates the model on the held-out rows of the data set of one phase (part of a run).

    `config` is the run's config with the phase's settings, and `phase` is the phase's index from 0. Raises ValueError
    if the data set has no held-out rows.
    """

    def __init__(self, config: TrainerConfig, *, manifest: Manifest, shape: BatchShape, phase: int = 0) -> None:
        self._config, self._manifest, self._shape = config, manifest, shape.micro_batch
        self._phase, self._data_hash = phase, manifest.hash
        self._plan = validation_plan(
            manifest, shape=shape.micro_batch, lanes=shape.lanes, max_pairs=config.evaluation.max_pairs
        )
        self._unigram = unigram_log_probabilities(config.data, vocabulary_size=manifest.vocabulary_size)
        self._bigrams: Bigrams | None = None

    def is_due(self, step: int) -> bool:
        """Return whether evaluation.every_steps asks for an evaluation after this step."""
        every = self._config.evaluation.every_steps
        return every is not None and step % every == 0

    def evaluate(self, engine: Engine, *, step: int) -> Evaluation:
        """Evaluate the weights after `step` steps. Return the result, which is the same on every rank. All ranks must
        call this together (collective)."""
        if self._bigrams is None and not self._config.model.is_causal:
            skip = self._config.ingest.skip_corrupt
            self._bigrams = count_bigrams(
                self._config.data, manifest=self._manifest, unigram=self._unigram, skip_corrupt=skip
            )
        rank, world_size, data_set = engine.rank, engine.world_size, self._config.data
        objective, causal = self._config.model.objective, self._config.model.is_causal
        stream = MicroBatchStream(
            self._plan,
            data_set,
            rank=rank,
            world_size=world_size,
            all_reduce=sum_over_ranks,
            objective=objective,
        )
        sums = torch.zeros(4, dtype=torch.float64)
        by_source = SourceSums(len(self._manifest.sources))
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
                        if self._bigrams is not None:
                            bigram += float(self._bigrams.losses(micro_batch).sum())
                        by_source.add(micro_batch, losses=losses, unigram=-self._unigram[micro_batch.masked_labels])
        totals = torch.tensor([*sums.tolist(), bigram, *by_source.table.ravel()], dtype=torch.float64)
        dist.all_reduce(totals)
        mlm, nsp, mlm_correct, nsp_correct, bigram = totals[:5].tolist()
        table = totals[5:].reshape(by_source.table.shape).numpy()
        by_name = list(zip(self._manifest.sources, table.tolist(), strict=True)) if len(table) > 1 else []
        return Evaluation(
            step=step,
            pairs=pairs,
            masked=masked,
            mlm_loss=mlm / max(1, masked),
            mlm_accuracy=mlm_correct / max(1, masked),
            nsp_loss=nsp / labelled if labelled else None,
            nsp_accuracy=nsp_correct / labelled if labelled else None,
            unigram_loss=float(table[:, SourceSums.UNIGRAM].sum()) / max(1, masked),
            bigram_loss=None if causal else bigram / max(1, masked),
            objective="left_to_right" if causal else None,
            phase=self._phase,
            data_hash=self._data_hash,
            shortcut_accuracy=self._manifest.best_shortcut,
            sources=tuple(
                SourceLoss(
                    name, pairs=int(pairs), masked=int(count), mlm_loss=loss / count, unigram_loss=unigram / count
                )
                for name, (pairs, count, loss, unigram) in by_name
                if count
            ),
            unseen=tuple(name for name, sums in by_name if not sums[SourceSums.MASKED]),
        )


class SourceSums:
    """Sums over the micro-batches of one rank, for each source (a corpus in the data set).

    `table` is float64 [sources, 4]. Its columns are the number of pairs, the number of masked positions, and the sums
    of two losses in nats: the model's and the unigram baseline's.
    """

    PAIRS, MASKED, LOSS, UNIGRAM = range(4)

    def __init__(self, num_sources: int) -> None:
        self.table: npt.NDArray[np.float64] = np.zeros((num_sources, 4))

    def add(
        self, micro_batch: MicroBatch, *, losses: npt.NDArray[np.float64], unigram: npt.NDArray[np.float64]
    ) -> None:
        """Add a micro-batch. `losses` holds the model's loss at each of its m masked positions. `unigram` holds the
        unigram baseline's loss at the same positions. Both are [m], in nats."""
        size = len(self.table)
        places = micro_batch.masked_sources
        self.table[:, self.PAIRS] += np.bincount(micro_batch.sources, minlength=size)
        self.table[:, self.MASKED] += np.bincount(places, minlength=size)
        self.table[:, self.LOSS] += np.bincount(places, weights=losses, minlength=size)
        self.table[:, self.UNIGRAM] += np.bincount(places, weights=unigram, minlength=size)


def sum_over_ranks(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the element-wise sum of `counts` over all ranks. The sum also replaces the content of `counts`. All ranks
    must call this together (collective)."""
    total = torch.from_numpy(counts)
    dist.all_reduce(total)
    return total.numpy()


def unigram_log_probabilities(data: str | Path, *, vocabulary_size: int) -> npt.NDArray[np.float64]:
    """Return the natural logarithm of each token id's smoothed share of the training tokens, [vocabulary_size].

    The share is (count + 1) / (sum of counts + vocabulary_size). The counts are in `data`/token_counts.parquet.
    """
    content = storage.read_bytes(storage.join(data, TOKEN_COUNTS_NAME))
    table = pq.read_table(pa.BufferReader(content), columns=["id", "count"])
    counts = np.full(vocabulary_size, UNIGRAM_SMOOTHING)
    np.add.at(counts, table["id"].to_numpy(), table["count"].to_numpy())
    return np.asarray(np.log(counts) - math.log(counts.sum()), dtype=np.float64)
