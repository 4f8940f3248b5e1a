"""A run's phases (parts with their own data set, batch or schedule), and the phase that a checkpoint belongs to.

A run without phases is one phase. Steps are counted over the whole run, but epochs and the order of the data restart
with each phase. A checkpoint made after the last step of a phase still belongs to that phase. No I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from pipeline.dataset import Manifest
from pipeline.settings import ConfigError
from pipeline.units import count_of
from trainer.config import Objective, PhaseConfig, TrainerConfig
from trainer.data.batch_shape import BatchShape, derive_shape
from trainer.data.plan import BatchWarmup, Plan, PlanError, PlanState

OBJECTIVES: dict[Objective, str] = {
    "masked_next_sentence": "masked tokens and next sentences",
    "masked": "masked tokens, no next sentences",
    "left_to_right": "the next token from left to right (causal attention), no masks, no next sentences",
}
"""What is predicted, in words."""
MANY_EPOCHS = 200
"""The number of epochs above which to warn: the model memorizes its data set, or a setting is wrong."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run with settings of its own. It takes the steps `first_step` + 1 to `last_step`."""

    index: int
    """Index of the phase, from 0."""
    first_step: int
    """Number of steps that the run has done when the phase begins."""
    last_step: int
    """Number of steps that the run has done when the phase ends."""
    config: TrainerConfig
    """The run's config with the phase's data, batch and evaluation, and without phases."""

    @property
    def num_steps(self) -> int:
        """Number of steps in the phase."""
        return self.last_step - self.first_step


@dataclass(frozen=True, slots=True)
class OpenPhase:
    """A phase (part of a run) with its data set's manifest, its batch shape and its plan (order of rows).

    No rows have been read.
    """

    phase: Phase
    manifest: Manifest
    shape: BatchShape
    plan: Plan

    @property
    def epochs(self) -> float:
        """The number of times, such as 3.97, that the phase (part of a run) reads its data set."""
        return self.full_steps(self.phase.first_step) * self.shape.pairs_mean / self.plan.num_rows

    def full_steps(self, done: int) -> float:
        """Return how many steps with a full batch the phase's steps after step `done` of the run are together."""
        first, last = (max(0, step - self.phase.first_step) for step in (done, self.phase.last_step))
        if self.plan.warmup is None:
            return max(0, last - first)
        return max(0.0, float(self.plan.warmup.full_batches(last) - self.plan.warmup.full_batches(first)))

    def describe(self) -> list[str]:
        """Return lines of text that tell the user the data, batch and plan."""
        manifest = self.manifest
        train, held_out = manifest.num_rows("train"), manifest.num_rows("validation")
        data = (
            f"data: {self.phase.config.data}: {train:,} pairs, {manifest.num_tokens('train'):,} tokens, {held_out:,} "
            f"pairs held out, vocabulary of {manifest.vocabulary_size:,}, rows of at most {manifest.max_seq_length} "
            f"tokens"
        )
        lines = [data, *self.shape.describe().splitlines(), *self.describe_empty(self.phase.config.workers)]
        masking = self.phase.config.masking
        if (warmup := self.plan.warmup) is not None:
            share, lanes = float(warmup.first), self.plan.lanes
            lines.append(
                f"batch warm-up: from {share:.0%} of the batch, {share * lanes:.3g} of {lanes} micro-batches a step, "
                f"to the whole after {count_of(warmup.steps, 'step')}"
            )
        if masking.source == "drawn":
            final = "" if masking.final_rate is None else f", moving to {masking.final_rate:.0%} at the last step"
            lines.append(
                f"masks: drawn while training, {masking.rate:.0%} of the tokens{final}; {masking.masked_share:.0%} "
                f"become [MASK], {masking.random_share:.0%} random; evaluation uses the data set's masks"
            )
        objective = self.phase.config.model.objective
        if objective != "masked_next_sentence":
            lines.append(f"objective: {OBJECTIVES[objective]}")
        if self.epochs > MANY_EPOCHS and self.phase.config.max_hours is None:
            lines.append(
                f"WARNING: {self.epochs:,.0f} epochs: {count_of(self.phase.num_steps, 'step')} read {train:,} pairs "
                f"this often, while BERT was trained for 40; check max_steps, the batch and the data set"
            )
        return lines

    def describe_empty(self, workers: int) -> list[str]:
        """Return a list with one warning if `workers` does not divide the number of lanes, and otherwise an empty list.

        The warning says how much of the workers' time is lost, because some workers get an empty micro-batch in each
        step.
        """
        lanes = self.plan.lanes
        rounded = -(-lanes // workers) * workers
        if rounded == lanes:
            return []
        divisors = ", ".join(str(number) for number in range(1, lanes + 1) if lanes % number == 0)
        return [
            f"WARNING: empty micro-steps: {rounded - lanes} of {rounded} a step, {1 - lanes / rounded:.0%} of the time "
            f"of all workers, since {lanes} lanes run on {workers} workers; give a number of workers that divides the "
            f"lanes ({divisors}), or in a new run batch.lanes={rounded}"
        ]

    def describe_place(self, phases: int) -> str:
        """Return a line that says which part of the run this phase is, such as `phase 2 of 2: steps 900,001 to
        1,000,000, 3.97 epochs`. `phases` is the number of phases."""
        phase = self.phase
        return (
            f"phase {phase.index + 1} of {phases}: steps {phase.first_step + 1:,} to {phase.last_step:,}, "
            f"{self.epochs:,.2f} epochs"
        )


def resolve_phases(config: TrainerConfig) -> tuple[Phase, ...]:
    """Return the phases of a run (parts with settings of their own) in order, at least one.

    A phase's config includes what the phase inherits from the run.
    """
    phases = config.phases or (PhaseConfig(),)
    ends = list(accumulate(config.phase_steps))
    resolved = []
    for index, (phase, first, last) in enumerate(zip(phases, [0, *ends[:-1]], ends, strict=True)):
        changes = {
            "data": config.data if phase.data is None else phase.data,
            "batch": phase.batch_in(config.batch),
            "evaluation": config.evaluation.model_copy(update=phase.evaluation.model_dump(exclude_none=True)),
            "phases": (),
        }
        resolved.append(Phase(index, first, last, config.model_copy(update=changes)))
    return tuple(resolved)


def open_phases(phases: Sequence[Phase], *, manifests: Sequence[Manifest]) -> tuple[OpenPhase, ...]:
    """Return each phase (part of a run) with its data set's manifest, its batch shape and its plan (order of rows).

    Shape and plan are derived from the phase's settings and the manifest. Raises ConfigError if vocabularies differ, or
    PlanError if a phase's batch does not fit its data set.
    """
    check_vocabularies(phases, manifests=manifests)
    opened = []
    for phase, manifest in zip(phases, manifests, strict=True):
        try:
            shape = derive_shape(
                manifest,
                batch=phase.config.batch,
                masking=phase.config.masking,
                every_token=phase.config.model.is_causal,
            )
            seed = order_seed(phase.config.seed, phase=phase.index)
            warmup = None
            if phase.index == 0 and phase.config.batch.warmup_steps is not None:
                first = Fraction(str(phase.config.batch.warmup_from))
                warmup = BatchWarmup(phase.config.batch.warmup_steps, first)
            plan = Plan(
                manifest, lanes=shape.lanes, shape=shape.micro_batch, seed=seed, pairs=shape.pairs, warmup=warmup
            )
        except ValueError as error:
            if len(phases) == 1:
                raise
            raise PlanError(f"phases.{phase.index}: {error}") from error
        opened.append(OpenPhase(phase, manifest, shape, plan))
    return tuple(opened)


def check_vocabularies(phases: Sequence[Phase], *, manifests: Sequence[Manifest]) -> None:
    """Raise ConfigError if the data sets of `phases` (parts of a run) do not all have the same vocabulary."""
    first = manifests[0]
    for phase, manifest in zip(phases, manifests, strict=True):
        same = ("vocabulary_hash", "vocabulary_size", "special")
        if any(getattr(manifest, name) != getattr(first, name) for name in same):
            raise ConfigError(
                f"phases.{phase.index}.data={phase.config.data}: its vocabulary ({manifest.vocabulary_hash[:12]}, "
                f"{manifest.vocabulary_size:,} entries) differs from phase 0's, {phases[0].config.data} "
                f"({first.vocabulary_hash[:12]}, {first.vocabulary_size:,} entries): the same id would mean another "
                f"token; build both with one vocabulary (vocabulary.path of the pipeline)"
            )


def rows_trained(phases: Sequence[OpenPhase], *, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts about all rows that the weights were trained on. Checkpoints keep these facts for the export.

    "longest" is the greatest `max_seq_length` of the data sets, in tokens. "next_sentence" says whether a data set had
    next-sentence labels. "vocabulary_hash" identifies the vocabulary. `before` has the same keys, or is empty. It
    describes the rows that the weights were trained on before this run.
    """
    manifests = [each.manifest for each in phases]
    return {
        "longest": max([before.get("longest", 0), *(manifest.max_seq_length for manifest in manifests)]),
        "next_sentence": before.get("next_sentence", False) or any(m.next_sentence != "none" for m in manifests),
        "vocabulary_hash": manifests[-1].vocabulary_hash,
    }


def order_seed(seed: int, *, phase: int) -> int:
    """Return the seed (63 bits) for the order of the rows in a phase (part of a run).

    The first phase has the run's seed. Each later phase has a seed of its own. So if two phases read the same data set,
    they read it in different orders.
    """
    if phase == 0:
        return seed
    digest = hashlib.blake2b(f"order/{seed}/{phase}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def find_start(phases: Sequence[OpenPhase], state: PlanState | None) -> PlanState:
    """Return the position in the data at which the next step begins. `state` is where the last step ended.

    If `state` is None, no step was done, and the result is the start of the first phase (part of the run). If `state`
    is the end of a phase and another phase follows, the result is the start of that next phase. Otherwise it is
    `state`. Raises PlanError if `state` does not fit these phases.
    """
    if state is None:
        return phases[0].plan.start()
    if state.phase >= len(phases):
        raise PlanError(
            f"the checkpoint at step {state.step} is of phase {state.phase}, counted from 0, but this run has "
            f"{count_of(len(phases), 'phase')}; restore the phases, or begin in a new output"
        )
    here = phases[state.phase]
    phase, last = here.phase, state.phase + 1 == len(phases)
    begun = state.step - state.phase_step
    if begun != phase.first_step or (state.step > phase.last_step and not last):
        raise PlanError(
            f"the checkpoint at step {state.step} is {state.phase_step} steps into phase {state.phase}, which began "
            f"after step {begun}; in this config it takes the steps {phase.first_step + 1} to {phase.last_step}: "
            f"restore the phases' lengths, or begin in a new output"
        )
    here.plan.check(state)
    if state.step < phase.last_step or last:
        return state
    return phases[state.phase + 1].plan.start(phase=state.phase + 1, step=state.step)
