"""Run one worker from an initialized process group to the last step. Every launcher runs this same code."""

from __future__ import annotations

import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from pipeline import storage
from pipeline.dataset import TOKENIZER_FOLDER, DataSetError, read_manifest
from pipeline.settings import ConfigError
from pipeline.storage import locate
from trainer.checkpoint import CheckpointState, CheckpointWriter, find_together, resume
from trainer.config import CONFIG_NAME, MODEL_SHAPES, ModelConfig, TrainerConfig
from trainer.data import (
    MaskDraws,
    MicroBatchStream,
    OpenPhase,
    PlanState,
    find_start,
    lanes_of,
    open_phases,
    read_tokens,
    resolve_phases,
)
from trainer.engine import Engine
from trainer.hf import initialize_from, read_longest
from trainer.model import BertForPretraining
from trainer.telemetry import RunFiles, RunLog, find_peak
from trainer.train.branch import begin_branch
from trainer.train.divergence import DivergenceGuard, RollBack
from trainer.train.evaluate import Evaluator, unigram_log_probabilities
from trainer.train.link import Link, Outcome, WorkerPlace
from trainer.train.loop import Clock, TrainContext, train
from trainer.train.memory_shortage import memory_shortage_explained
from trainer.train.prefetch import Feed, RunFeed

logger = logging.getLogger(__name__)


def backend_of(config: TrainerConfig) -> str:
    """Return the name of the torch.distributed backend: NCCL for tensors on GPUs, gloo for tensors on CPUs."""
    return "cpu:gloo,cuda:nccl" if config.device == "cuda" else "gloo"


def work(
    config: TrainerConfig,
    *,
    place: WorkerPlace,
    link: Link,
    device: torch.device,
    reader: Literal["local", "ray"] = "local",
    lease_token: str | None = None,
) -> Outcome:
    """Train this rank's share of the run until max_steps or until asked to stop. Return the outcome.

    Resumes from the run directory. `lease_token` belongs to the job's lease (sole right to write) on that directory.
    Once another job holds the lease, nothing is committed. `reader` says what reads the data: "local" for threads of
    this process, "ray" for Ray Data. torch.distributed must be initialized, with gloo for CPU tensors. Raises
    ValueError for bad input, including settings that need more memory than the device has.
    """
    with warnings_to_user(link, place=place), memory_shortage_explained(config, rank=place.rank, device=device):
        set_up_process(config, place=place, device=device)
        return run_share(config, place=place, link=link, device=device, reader=reader, lease_token=lease_token)


def run_share(
    config: TrainerConfig,
    *,
    place: WorkerPlace,
    link: Link,
    device: torch.device,
    reader: Literal["local", "ray"],
    lease_token: str | None = None,
) -> Outcome:
    """Train this rank's share of the run as `work` describes, in a process that set_up_process has prepared. Return the
    outcome."""
    run_directory = locate(config.output)
    phases = open_shared_folders(config)
    rank, world_size = place.rank, place.world_size
    files = RunFiles(
        run_directory, rank=rank, world_size=world_size, working_folder=config.working_folder, lease_token=lease_token
    )
    files.fetch_logs()
    if files.is_local_copy and rank == 0:
        link.say(f"logs are written to {files.folder} and sent to {files.run} with every checkpoint and at the end")
    found = find_together(run_directory)
    engine, given = build_engine(config, phases=phases, place=place, device=device, begun=bool(found))
    checkpoints = CheckpointWriter(run_directory, engine=engine, config=config, lease_token=lease_token, files=files)
    evaluators = tuple(
        Evaluator(opened.phase.config, manifest=opened.manifest, shape=opened.shape, phase=opened.phase.index)
        if opened.manifest.num_rows("validation")
        else None
        for opened in phases
    )
    saved = resume(found, engine=engine)
    if saved is None and config.resume_from is not None:
        saved = begin_branch(config, phases=phases, engine=engine, checkpoints=checkpoints)
    guard = DivergenceGuard(config.guard, tree=None if saved is None else saved.guard)
    clock = Clock(0.0 if saved is None else saved.seconds)
    resumed_at = 0 if saved is None else saved.step
    gauges = None
    if reader == "ray" and rank == 0:
        from trainer.telemetry import prometheus  # imported here because Ray is not installed everywhere

        gauges = prometheus.Gauges(config.output)

    open_log = partial(
        RunLog, files.folder, config=config, rank=rank, world_size=world_size, say=link.say, gauges=gauges
    )

    def open_feed(state: PlanState) -> Feed:
        opened = phases[state.phase]
        stream = MicroBatchStream(
            opened.plan,
            opened.phase.config.data,
            rank=rank,
            world_size=world_size,
            state=state,
            reader=reader,
            read_ahead_blocks=config.ingest.read_ahead_blocks,
            object_store_mb=config.ingest.object_store_mb,
            skip_corrupt=config.ingest.skip_corrupt,
            masks=make_masks(opened),
            objective=config.model.objective,
        )
        return Feed(stream, shape=opened.shape.micro_batch, special=opened.manifest.special, device=device)

    def train_on(saved: CheckpointState | None) -> int:
        first_step = 0 if saved is None else saved.step
        start = find_start(phases, None if saved is None else PlanState.from_tree(saved.plan_state))
        rows_before = given.rows if saved is None else saved.rows
        feed = RunFeed(start, open_feed=open_feed, next_start=partial(find_start, phases))
        log = open_log(resume_step=first_step)
        context = TrainContext(
            config=config,
            engine=engine,
            feed=feed,
            phases=phases,
            evaluators=evaluators,
            checkpoints=checkpoints,
            guard=guard,
            peak_tflops=peak_of(device, config=config),
            log=log,
            files=files,
            link=link,
            clock=clock,
            first_phase=start.phase if rows_before else 0,
            rows_before=rows_before,
        )
        lines = [describe_start(config, place=place, device=device, start=start, given=given.notes)]
        if first_step == resumed_at:  # after a rollback, the guard has said it
            lines += describe_repeated(log.recorded_step, first_step=first_step)
        lines += warn_of_cpu(config.model) if device.type == "cpu" else []
        if world_size != config.workers:  # with the configured number, the user has seen these lines already
            lines += phases[start.phase].describe_empty(world_size)
        for line in lines:
            log.say(line)
        try:
            return train(context, first_step=first_step)
        finally:
            feed.close()
            log.close()

    while True:
        try:
            last_step = train_on(saved)
            break
        except RollBack as back:
            guard.check_may_go_back(back, config=config)
            seconds = clock.seconds
            saved = go_back(back, guard=guard, checkpoints=checkpoints, engine=engine, config=config, seconds=seconds)
    checkpoints.send_logs()
    engine.close()
    return Outcome(
        first_step=resumed_at, last_step=last_step, finished=config.is_done(step=last_step, seconds=clock.seconds)
    )


def make_masks(opened: OpenPhase) -> MaskDraws | None:
    """Return what draws masks in the phase `opened`, or None if it uses the stored ones."""
    config, manifest = opened.phase.config, opened.manifest
    if config.masking.source == "stored":
        return None
    return MaskDraws.make(
        config.masking,
        tokens=read_tokens(config.data),
        special=manifest.special,
        seed=opened.plan.seed,
        max_steps=config.max_steps,
        longest=manifest.max_seq_length,
    )


def peak_of(device: torch.device, *, config: TrainerConfig) -> float | None:
    """Return the dense bf16 peak rate of this rank's device in 10^12 operations a second, or None if it is unknown."""
    if config.logging.peak_tflops is not None or device.type != "cuda":
        return config.logging.peak_tflops
    return find_peak(torch.cuda.get_device_name(device))


def go_back(
    back: RollBack,
    *,
    guard: DivergenceGuard,
    checkpoints: CheckpointWriter,
    engine: Engine,
    config: TrainerConfig,
    seconds: float,
) -> CheckpointState:
    """Restore the newest checkpoint from before the bad steps, and commit it again with the guard's new state.

    If all checkpoints are from after the first bad step, the newest of all checkpoints is restored. The guard's new
    state says which steps are skipped from now on. Because this state is committed, a run that is killed right
    afterwards skips the same steps when it resumes. `seconds` is the time that the run has used, which a rollback does
    not give back. Returns the restored state. All ranks must call this together (collective). Raises DivergenceError if
    there is no checkpoint.
    """
    checkpoints.finish()
    saved = resume(find_together(config.output), engine=engine, through=guard.first_bad - 1)
    if saved is None:
        raise guard.give_up(back, config=config, why="and there is no checkpoint to go back to")
    first, last = guard.go_back(step=back.step, to=saved.step, tree=saved.guard)
    if engine.rank == 0:
        logger.warning(
            "%s, the last of %d: back to the checkpoint of step %d; the data of steps %d to %d are skipped",
            back, last - guard.first_bad + 1, saved.step, first, last,
        )  # fmt: skip
    checkpoints.save(
        saved.step,
        plan_state=saved.plan_state,
        guard=guard.to_tree(),
        data_hash=saved.data_hash,
        rows=saved.rows,
        seconds=seconds,
    )
    checkpoints.finish()
    return saved


@contextmanager
def warnings_to_user(link: Link, *, place: WorkerPlace) -> Iterator[None]:
    """Show the trainer's warnings to the user through `link` inside the `with` block, because Ray hides the standard
    error of a worker."""
    handler = _LinkHandler(link, place=place)
    logger = logging.getLogger("trainer")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _LinkHandler(logging.Handler):
    def __init__(self, link: Link, *, place: WorkerPlace) -> None:
        super().__init__(level=logging.WARNING)
        self._link, self._place = link, place

    def emit(self, record: logging.LogRecord) -> None:
        who = f" (worker {self._place.rank})" if self._place.rank else ""
        self._link.say(f"warning{who}: {record.getMessage()}")


def set_up_process(config: TrainerConfig, *, place: WorkerPlace, device: torch.device) -> None:
    """Set this process's threads, device, random seed and determinism as the config asks."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(config.threads_per_worker or max(1, cores // place.local_world_size))
    torch.manual_seed(config.seed)
    torch.use_deterministic_algorithms(config.deterministic or device.type == "cpu", warn_only=device.type != "cpu")
    # Filling new tensors would only reveal reads of uninitialized memory, and costs a pass over each of them.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cuda":
        if config.deterministic:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it at its start; without it, sums vary
            compiler: Any = importlib.import_module("torch._inductor.config")
            compiler.deterministic = True  # the compiler then does not choose kernels by measured speed
        torch.cuda.set_device(device)


def open_shared_folders(config: TrainerConfig) -> tuple[OpenPhase, ...]:
    """Check that this worker's node sees the run directory, and return the phases (parts of the run) with their data
    sets.

    Raises ConfigError if the node does not see the run directory or a data set. The message names the node.
    """
    host = socket.gethostname()
    remedy = "give an absolute path on storage that all nodes mount"
    phases = resolve_phases(config)
    manifests = {}
    for data in dict.fromkeys(phase.config.data for phase in phases):
        try:
            manifests[data] = read_manifest(data)
        except DataSetError as error:
            raise ConfigError(f"data={data}: on node {host}: {error}; {remedy}") from error
    if storage.find_file(locate(config.output, CONFIG_NAME)) is None:
        raise ConfigError(f"output={config.output}: node {host} does not see the run directory; {remedy}")
    return open_phases(phases, manifests=[manifests[phase.config.data] for phase in phases])


@dataclass(frozen=True, slots=True)
class GivenStart:
    """What the weights with which a run begins come with. Empty if they are random."""

    rows: dict[str, Any]
    """Facts about the rows that the weights were trained on, as in CheckpointState.rows: "longest" (the most tokens
    that a row may have) and "next_sentence" (whether the weights can predict next sentences)."""
    notes: tuple[str, ...]
    """What was not copied as it is from the model in model.initialize_from, for the user."""


def build_engine(
    config: TrainerConfig, *, phases: Sequence[OpenPhase], place: WorkerPlace, device: torch.device, begun: bool
) -> tuple[Engine, GivenStart]:
    """Return the engine, and what the model's initial weights come with.

    `begun` says whether the run has checkpoints. If it has none and model.initialize_from is set, the weights come from
    that model. Otherwise the weights are random. A checkpoint, if there is one, replaces the random weights later.
    """
    start = GivenStart({}, ())
    manifest, data = phases[0].manifest, phases[0].phase.config.data
    model = BertForPretraining(config.model, vocabulary_size=manifest.vocabulary_size, seed=config.seed)
    if config.model.output_bias == "unigram":
        shares = unigram_log_probabilities(data, vocabulary_size=manifest.vocabulary_size)
        with torch.no_grad():
            model.mlm_head.bias.copy_(torch.from_numpy(shares))
    if config.model.initialize_from is not None and not begun:
        tokenizer = storage.join(data, TOKENIZER_FOLDER)
        given = initialize_from(model, folder=config.model.initialize_from, data_tokenizer=tokenizer)
        longest = min(read_longest(locate(config.model.initialize_from)), config.model.max_positions)
        start = GivenStart({"longest": longest, "next_sentence": given.pair_heads}, given.notes)
    lanes = max(opened.plan.lanes for opened in phases)
    micro_batches = len(lanes_of(place.rank, world_size=place.world_size, lanes=lanes))
    return Engine(model, config=config, device=device, micro_batches=micro_batches), start


def warn_of_cpu(model: ModelConfig) -> list[str]:
    """Return a list with a warning if a model is too large to pretrain on CPUs. Otherwise return an empty list.

    For GPU speeds see bench/trainer.md.
    """
    layers, _, width = MODEL_SHAPES["medium"]
    if model.num_layers * model.width**2 <= layers * width**2:
        return []
    return [
        f"WARNING: {model.title} on CPUs: a step takes hundreds of times as long as on a GPU; set device=cuda on a "
        f"machine with GPUs, or a smaller model.size"
    ]


def describe_repeated(recorded_step: int, *, first_step: int) -> list[str]:
    """Return a line if the run's logs recorded steps up to `recorded_step`, but its checkpoint is of `first_step`."""
    if recorded_step <= first_step:
        return []
    steps = (
        f"step {recorded_step} is"
        if recorded_step == first_step + 1
        else f"steps {first_step + 1} to {recorded_step} are"
    )
    return [f"{steps} in the logs, but in no checkpoint: done again, and recorded anew"]


def describe_start(
    config: TrainerConfig, *, place: WorkerPlace, device: torch.device, start: PlanState, given: Sequence[str] = ()
) -> str:
    """Return a line such as `resumed at step 40` or `training from step 0`, with model, workers and devices.

    `start` is the position in the data from which training starts. `given` says what was not copied as it is from the
    model in model.initialize_from.
    """
    begin = f"resumed at step {start.step}" if start.step else "training from step 0"
    source = f" (a branch of {config.resume_from})" if config.resume_from is not None else ""
    if config.model.initialize_from is not None and not start.step:
        source = f" ({'; '.join((f'with the weights of {config.model.initialize_from}', *given))})"
    phase = f" (phase {start.phase + 1} of {len(config.phases)}, {start.phase_step} steps of it done)"
    return (
        f"{begin} of {config.max_steps}{source}{phase if config.phases else ''}: {config.model.title}, "
        f"{place.world_size} worker{'s' * (place.world_size > 1)} on {device.type}, "
        f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)} each, {config.precision}, "
        f"ZeRO {config.zero_stage}"
    )
