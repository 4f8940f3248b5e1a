"""The training loop makes one update per step from micro-batches, and writes metrics, checkpoints and evaluations.

A step is a function of data set, seed and step number. The losses of a step are sums over all ranks divided by counts
over all ranks. Dropout is seeded by step and lane (one of the streams of rows that are divided among the ranks), not by
rank. So at the same number of workers a resumed run has the same curve as an uninterrupted run, bit for bit.
"""

from __future__ import annotations

import hashlib
import math
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from pipeline.storage import locate
from trainer.checkpoint import CheckpointWriter, step_of
from trainer.config import TrainerConfig
from trainer.data import OpenPhase, PlanState, Step, rows_trained
from trainer.engine import Engine, HostCopy, check_compiled_model, learning_rate
from trainer.telemetry import RunFiles, RunLog, StepMetrics, count_flops, row_ids
from trainer.train.divergence import BAD_STEPS_NAME, DivergenceGuard, Fault, RollBack, note_bad_step
from trainer.train.evaluate import Evaluator
from trainer.train.link import Link
from trainer.train.prefetch import RunFeed

LEAST_JUDGED_STEPS = 100
"""A run of at least this number of steps gets an extra evaluation after a tenth of its steps."""


class Clock:
    """The seconds of training over all starts of the run, as rank 0 measures them.

    All ranks decide by `seconds`, which every step sets. Time after the last checkpoint of a killed run is lost.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.perf_counter() - seconds

    def measure(self) -> float:
        """Return the seconds up to now, which differ between ranks."""
        return time.perf_counter() - self._began


@dataclass(frozen=True, slots=True)
class TrainContext:
    """Everything that the training loop uses on one rank."""

    config: TrainerConfig
    engine: Engine
    feed: RunFeed
    phases: tuple[OpenPhase, ...]
    evaluators: tuple[Evaluator | None, ...]
    """One evaluator per phase; None for a phase whose data set has no held-out rows."""
    checkpoints: CheckpointWriter
    guard: DivergenceGuard
    log: RunLog
    files: RunFiles
    """The log files of this rank."""
    peak_tflops: float | None
    """Dense bf16 peak of a worker's device in 10^12 operations a second; None if unknown."""
    link: Link
    clock: Clock
    first_phase: int
    """Index of the phase in which this start of the run begins, or 0 if `rows_before` is empty. A checkpoint records
    facts about all rows so far: `rows_before`, and the rows of the phases from this index on."""
    rows_before: Mapping[str, Any]
    """Facts about the rows on which the weights were trained before this start of the run, as in CheckpointState.rows.
    """


def train(context: TrainContext, *, first_step: int) -> int:
    """Run the steps after `first_step` up to max_steps or max_hours, or until asked to stop. Return the last step done.

    Evaluates as configured and at the end of each phase (part of the run). Before this function returns, it commits a
    checkpoint of the last step. Raises RollBack, on all ranks, when the number of bad steps (with a non-finite or
    spiking loss) in a row reaches guard.max_bad_steps.
    """
    config, step, stopping = context.config, first_step, False
    checks = config.self_check and context.engine.compiled
    checked_phase = -1
    evaluate_if_missed(context, first_step)
    began = time.perf_counter()  # the end of the step before, so that the time between two steps counts too
    while not (stopping or is_done(context, step)):
        step += 1
        if context.guard.is_skipped(step):
            data, last = context.feed.next_step(), step == config.max_steps  # `data` is not used
            if not last:
                context.feed.look_ahead()
        else:
            if checks and phase_of(context, step) != checked_phase:
                checked_phase = phase_of(context, step)
                check_compiled(context, step)
            data, metrics, fault, stopping = train_step(context, step, began=began)
            began = time.perf_counter()
            last = stopping or is_done(context, step)
            context.log.write_step(metrics, data=data, show=last or step % config.logging.every_steps == 0)
            if fault is not None:
                report_fault(context, fault, data=data, metrics=metrics)
        if data.state.phase > 0 and data.state.phase_step == 1:
            context.log.say(context.phases[data.state.phase].describe_place(len(context.phases)))
        # No periodic checkpoint is written while steps are bad, so that none holds weights from bad steps.
        due = step % config.checkpoint.every_steps == 0 and context.guard.bad_steps == 0
        if last or due:
            save(context, step, state=data.state)
        evaluator = None if last else due_evaluator(context, step)
        if evaluator is not None:
            evaluate(context, evaluator, step=step)
        if due or evaluator is not None:
            began = time.perf_counter()
    context.checkpoints.finish()
    evaluator = context.evaluators[-1]
    if evaluator is not None and is_done(context, step):
        evaluate(context, evaluator, step=step)
    return step


def is_done(context: TrainContext, step: int) -> bool:
    """Return whether the run is at its end after `step` steps."""
    return context.config.is_done(step=step, seconds=context.clock.seconds)


def phase_of(context: TrainContext, step: int) -> int:
    """Return the index, from 0, of the phase (part of the run) that `step` belongs to."""
    ends = [opened.phase.last_step for opened in context.phases]
    return min(bisect_left(ends, step), len(ends) - 1)


def check_compiled(context: TrainContext, step: int) -> None:
    """Raise ConfigError if the compiled and the eager model give different losses or gradients on the first micro-batch
    of `step`. All ranks must call this together (collective)."""
    config = context.config
    seed = dropout_seed(config.seed, step=step, lane=0)
    check_compiled_model(context.engine, context.feed.first_batch(), precision=config.precision, seed=seed)


def evaluate(context: TrainContext, evaluator: Evaluator, *, step: int) -> None:
    """Evaluate the weights after `step`, and record the result. All ranks must call this together (collective).

    After a tenth of the run's steps, the model should beat the unigram baseline, which knows only token frequencies.
    From then on, warn if the masked-LM loss is above the loss of the baseline.
    """
    evaluation = evaluator.evaluate(context.engine, step=step)
    context.log.write_evaluation(evaluation)
    if step >= first_judged_step(context.config) and not evaluation.mlm_loss <= evaluation.unigram_loss:  # true for NaN
        context.log.say(
            f"WARNING: after {step:,} of {context.config.max_steps:,} steps the held-out masked-LM loss "
            f"({evaluation.mlm_loss:.2f} nats) is not below the loss of token frequencies alone "
            f"({evaluation.unigram_loss:.2f}): the model has learnt nothing from context. If that does not change, try "
            f"another optimizer.learning_rate or a longer warm-up"
        )


def first_judged_step(config: TrainerConfig) -> int:
    """Return the step at a tenth of the run. From this step on, the model should beat the unigram baseline."""
    return -(-config.max_steps // 10)


def save(context: TrainContext, step: int, *, state: PlanState) -> None:
    """Begin to write the checkpoint after `step`. `state` is the run's position in the data after that step."""
    data_hash, began = context.phases[state.phase].manifest.hash, time.perf_counter()
    rows = rows_trained(context.phases[context.first_phase : state.phase + 1], before=context.rows_before)
    context.checkpoints.save(
        step,
        plan_state=state.to_tree(),
        guard=context.guard.to_tree(),
        data_hash=data_hash,
        rows=rows,
        seconds=context.clock.seconds,
    )
    context.log.write_checkpoint(time.perf_counter() - began)


def due_evaluator(context: TrainContext, step: int) -> Evaluator | None:
    """Return the evaluator of the phase (part of the run) of `step` if an evaluation is due after `step`, otherwise
    None.

    Evaluations are due at the steps that evaluation.every_steps gives and at the end of each phase. If the run has at
    least LEAST_JUDGED_STEPS steps, an evaluation is also due after a tenth of the run's steps. A phase without held-out
    rows has no evaluations.
    """
    phase = phase_of(context, step)
    evaluator = context.evaluators[phase]
    judged = context.config.max_steps >= LEAST_JUDGED_STEPS and step == first_judged_step(context.config)
    due = judged or step >= context.phases[phase].phase.last_step
    return evaluator if evaluator is not None and (due or evaluator.is_due(step)) else None


def evaluate_if_missed(context: TrainContext, step: int) -> None:
    """Evaluate before the run starts or resumes training, if the config asks for this or an evaluation was missed.

    `step` is the last step done. If the run is new or a new branch, and evaluation.at_start is set, evaluate the
    weights with which it begins. If the run stopped after `step`, before the evaluation that was due then, evaluate
    now.
    """
    evaluator = due_evaluator(context, step) if step > 0 and not is_done(context, step) else None
    source = context.config.resume_from
    if context.config.evaluation.at_start and step == (0 if source is None else step_of(locate(source))):
        evaluator = context.evaluators[phase_of(context, step + 1)]
    if evaluator is not None and context.engine.broadcast_int(context.log.evaluated_step < step):
        evaluate(context, evaluator, step=step)


def train_step(context: TrainContext, step: int, *, began: float) -> tuple[Step, StepMetrics, Fault | None, bool]:
    """Make one update from one micro-batch of every lane. Lanes are the streams of rows that are divided among the
    ranks.

    `began` is time.perf_counter() at the end of the previous step. If the loss of any rank or the gradient norm is not
    finite, no rank applies the update. Returns this rank's data, the metrics, the fault (None: a good step), and
    whether any rank was asked to stop.
    """
    config, engine = context.config, context.engine
    data = context.feed.next_step()
    sums = torch.zeros(4, dtype=torch.float64, device=engine.device)
    whole = zip(data.micro_batches, data.lanes, data.used, strict=True)
    used = [(micro_batch, lane) for micro_batch, lane, is_used in whole if is_used]
    for index, (micro_batch, lane) in enumerate(used):
        batch = context.feed.to_batch(micro_batch)
        torch.manual_seed(dropout_seed(config.seed, step=step, lane=lane))
        with record_function("forward"):
            output = engine(batch)
        loss = output.mlm_loss_sum / max(1, data.num_masked) + output.nsp_loss_sum / max(1, data.num_labelled)
        # The factor is 1, or NaN if this loss is not finite. All ranks decide by the gradient norm, which is then NaN.
        loss = loss * (1.0 + 0.0 * loss.detach())
        with record_function("backward"):
            engine.backward(loss * engine.world_size, last=index + 1 == len(used))
        sums += output.sums()
    host_sums = HostCopy(sums)
    if step < config.max_steps:
        context.feed.look_ahead()
    rate = learning_rate(step, config, hours=context.clock.seconds / 3600)
    scaled = engine.loss_scale.value > 1.0  # while fp16 can halve its loss scale, overflow is no fault
    with record_function("update"):
        update = engine.step(rate)
    norm_is_bad = not (math.isfinite(update.grad_norm) or scaled)

    clock = context.clock.measure() if engine.rank == 0 else 0.0
    own = torch.tensor([data.wait_s, context.link.stop_requested(), norm_is_bad, clock], dtype=torch.float64)
    totals = torch.cat([host_sums.wait(), own])
    dist.all_reduce(totals)
    mlm, nsp, mlm_correct, nsp_correct, wait_s, stops, bad_norms, context.clock.seconds = totals.tolist()
    labelled = data.num_labelled > 0
    mlm_loss, nsp_loss = mlm / max(1, data.num_masked), nsp / max(1, data.num_labelled)
    seconds = time.perf_counter() - began
    tflops = flops_of(data, context) / seconds / engine.world_size / 1e12
    metrics = StepMetrics(
        step=step,
        epoch=context.feed.epoch,
        loss=mlm_loss + nsp_loss,
        mlm_loss=mlm_loss,
        nsp_loss=nsp_loss if labelled else None,
        mlm_accuracy=mlm_correct / max(1, data.num_masked),
        nsp_accuracy=nsp_correct / data.num_labelled if labelled else None,
        learning_rate=rate,
        grad_norm=update.grad_norm,
        tokens=data.num_tokens,
        pairs=data.num_pairs,
        masked=data.num_masked,
        tokens_per_second=data.num_tokens / seconds,
        tflops=tflops,
        mfu=None if context.peak_tflops is None else tflops / context.peak_tflops,
        data_wait_s=wait_s / engine.world_size,
        step_s=seconds,
        skipped=update.skipped,
        lost_rows=data.num_lost,
        phase=data.state.phase,
        hours=context.clock.seconds / 3600,
        peak_memory_gb=torch.cuda.max_memory_allocated() / 1e9 if engine.device.type == "cuda" else None,
    )
    fault = context.guard.judge(
        step, phase=metrics.phase, loss=metrics.loss, grad_norm=metrics.grad_norm, norm_is_bad=bad_norms > 0
    )
    return data, metrics, fault, stops > 0


def flops_of(data: Step, context: TrainContext) -> float:
    """Return the number of model FLOPs in a step, over all ranks. `data` holds the step's counts, summed over all
    ranks."""
    return count_flops(
        context.config.model,
        vocabulary_size=context.phases[data.state.phase].manifest.vocabulary_size,
        num_tokens=data.num_tokens,
        num_squared=data.num_squared,
        num_masked=data.num_masked,
    )


def report_fault(context: TrainContext, fault: Fault, *, data: Step, metrics: StepMetrics) -> None:
    """Record the rows that all ranks read in a bad step, in the file BAD_STEPS_NAME. All ranks must call this together
    (collective).

    `data` has the rows that this rank read. Raises RollBack if with this step the number of bad steps in a row reaches
    guard.max_bad_steps.
    """
    own = row_ids(data)
    everyone: list[list[list[int]]] | None = [own] * context.engine.world_size if context.engine.rank == 0 else None
    dist.gather_object(own, everyone)
    if everyone is not None:
        rows = [row for part in everyone for row in part]
        shards, folder = data.shard_paths, context.files.folder
        note_bad_step(folder, step=metrics.step, epoch=metrics.epoch, fault=fault, rows=rows, shards=shards)
        context.files.make_durable()
    context.log.say(f"step {metrics.step}: {fault.reason}; its rows are in {BAD_STEPS_NAME}")
    if context.guard.is_exhausted():
        raise RollBack(fault, step=metrics.step)


def dropout_seed(seed: int, *, step: int, lane: int) -> int:
    """Return the 63-bit seed for dropout in one lane's micro-batch of one step. `seed` is the run's seed.

    A lane is one of the streams of rows that are divided among the ranks.
    """
    digest = hashlib.blake2b(f"dropout/{seed}/{step}/{lane}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
