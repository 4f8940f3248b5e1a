"""What a run would be, before anything is started or written: steps, tokens, hours, price, room on disk, machines.

`python -m trainer.run --dry-run [--tokens-per-second=N | --gpu=NAME] [--price=P] [--rows=N --tokens=N]`. All checks of
a real start are made, but for a set or for GPUs that are not there (trainer/launch/planned.py); a rate comes from the
options, or from the steps that the run has done.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from pipeline import storage
from pipeline.settings import ConfigError
from pipeline.storage import free_bytes, locate
from pipeline.units import count_of, describe_bytes, describe_seconds
from trainer.config import TrainerConfig
from trainer.data import OpenPhase
from trainer.engine import count_parameters
from trainer.launch import planned
from trainer.launch.preflight import Checked, check
from trainer.telemetry import METRICS_NAME, read_last_lines
from trainer.train import steps_done, warn_of_cpu

FLAG, RATE, PRICE, GPU, ROWS, TOKENS = "--dry-run", "--tokens-per-second", "--price", "--gpu", "--rows", "--tokens"
FLAGS = (FLAG, *(f"{name}=" for name in (RATE, PRICE, GPU, ROWS, TOKENS)))
BYTES_PER_PARAMETER = 12
"""Of a checkpoint: weight and two moments, fp32."""
RECENT_STEPS = 100


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the config."""

    tokens_per_second: float | None
    """Of one worker."""
    price: float | None
    """Of one worker's hour, in any currency."""
    gpu: str | None = None
    """Of each worker, by its name in PEAK_TFLOPS."""
    rows: int | None = None
    """Training rows of a set that is not there yet."""
    tokens: int | None = None
    """Its training tokens."""


def read_options(flags: Sequence[str], *, program: str) -> Options:
    """Read what goes with --dry-run; ConfigError if a number is none above 0, or a GPU is not known."""
    found: dict[str, float] = {}
    gpu: str | None = None
    for flag in flags:
        name, _, text = flag.partition("=")
        if name == GPU:
            gpu = planned.find_gpu(text, program=program)
        if name not in (RATE, PRICE, ROWS, TOKENS):
            continue
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = math.nan
        whole = name not in (ROWS, TOKENS) or found[name].is_integer()
        if not (0 < found[name] < math.inf and whole):
            kind = "whole number" if name in (ROWS, TOKENS) else "number"
            raise ConfigError(f"{program}: {flag}: give a {kind} above 0, as in {name}=100")
    given = [*found, *([GPU] if gpu is not None else [])]
    if given and FLAG not in flags:
        raise ConfigError(f"{program}: {given[0]} goes with {FLAG}; add it")
    if (ROWS in found) != (TOKENS in found):
        raise ConfigError(f"{program}: {ROWS} and {TOKENS} say together how large a set will be; give both or none")
    if gpu is not None and RATE in found:
        raise ConfigError(f"{program}: {GPU} and {RATE} both give a rate; give one of them")
    rows, tokens = (int(found[name]) if name in found else None for name in (ROWS, TOKENS))
    return Options(found.get(RATE), found.get(PRICE), gpu, rows, tokens)


def check_or_plan(config: TrainerConfig, options: Options, *, fresh: bool = False) -> Checked:
    """preflight.check; where the options state the size of a data set that is not there yet, the same with that."""
    if options.rows is None or options.tokens is None:
        return check(config, fresh=fresh)
    return planned.plan_without_data(config, rows=options.rows, tokens=options.tokens, gpu=options.gpu, fresh=fresh)


def describe_run(checked: Checked, options: Options) -> Iterator[str]:
    """Lines of the plan; ConfigError where machines or disk do not hold it."""
    config, phases = checked.config, checked.phases
    done = steps_done(config, checkpoints=checked.checkpoints)
    tokens = tokens_left(phases, done=done)
    yield f"steps: {max(0, config.max_steps - done):,} of {config.max_steps:,} to do, {_millions(tokens)}"
    work = planned.count_work(config.model, phases=phases, done=done)
    yield from describe_time(config, options, tokens=tokens, work=work)
    elsewhere = is_elsewhere(config, options)
    yield describe_room(config, vocabulary_size=phases[0].manifest.vocabulary_size, elsewhere=elsewhere)
    machines = describe_machines(config, elsewhere=elsewhere)
    yield machines
    if " on cpu" in machines:
        yield from warn_of_cpu(config.model)


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:,.1f} M tokens" if tokens >= 50_000 else f"{tokens:,.0f} tokens"


def tokens_left(phases: Sequence[OpenPhase], *, done: int) -> float:
    """Expected tokens of the steps after `done`."""
    return sum(
        max(0, each.phase.last_step - max(done, each.phase.first_step)) * each.shape.tokens_mean for each in phases
    )


def describe_time(config: TrainerConfig, options: Options, *, tokens: float, work: float) -> Iterator[str]:
    """Hours and price at the rate that was stated or measured; without any, a table of rates by GPU.

    `work`: model FLOPs.
    """
    rate, origin = 0.0, ""
    if options.tokens_per_second is not None:
        rate, origin = options.tokens_per_second * config.workers, "stated"
    elif options.gpu is not None and work:
        tflops, _ = planned.tflops_of(options.gpu, size=config.model.size)
        rate = tokens / work * tflops * 1e12 * config.workers
        origin = planned.describe_origin(options.gpu, size=config.model.size)
    else:
        steps = read_last_lines(locate(config.output, METRICS_NAME))[-RECENT_STEPS:]
        if steps:
            rate, origin = median(step["tokens_per_second"] for step in steps), "measured in this run"
    if not rate:
        yield f"time: not known; give {RATE}=N of one worker, or begin the run: its steps are then the measure"
        if config.device != "cpu" and work:
            yield f"time: or {GPU}=NAME, for what follows:"
            yield from planned.list_rates(config, work=work, tokens=tokens)
        return
    hours = tokens / rate / 3600
    workers = count_of(config.workers, "worker")
    yield f"time: {describe_seconds(3600 * hours)} at {rate:,.0f} tokens/s of {workers} ({origin})"
    if options.price is not None:
        yield f"price: {hours * config.workers * options.price:,.2f} at {options.price:g} a worker and hour"


def describe_room(config: TrainerConfig, *, vocabulary_size: int, elsewhere: bool = False) -> str:
    """Bytes of the checkpoints beside those that are free, unless the run is `elsewhere`.

    ConfigError where not even one fits.
    """
    each = count_parameters(config.model, vocabulary_size=vocabulary_size) * BYTES_PER_PARAMETER
    best = config.checkpoint.keep_best * max(1, len(config.phases))
    kept = config.checkpoint.keep_last + best + 1  # and the one that is being written
    if config.checkpoint.keep_every_steps is not None:
        kept += config.max_steps // config.checkpoint.keep_every_steps
    text = f"checkpoints: {describe_bytes(each)} each, up to {kept}: {describe_bytes(each * kept)}"
    if elsewhere or storage.is_url(config.output):
        return text
    folder = Path(config.output)
    free = free_bytes(folder)
    if free < each:
        raise ConfigError(
            f"output={folder}: a checkpoint needs {each:,} bytes and {free:,} are free; free space, or give another "
            f"output"
        )
    short = "; WARNING: that is not enough, lower checkpoint.keep_last or free space" if free < each * kept else ""
    return f"{text}; {describe_bytes(free)} are free{short}"


def is_elsewhere(config: TrainerConfig, options: Options) -> bool:
    """Whether a run is planned for GPUs, here are none, and no cluster is known."""
    asks = config.device == "cuda" or (options.gpu is not None and config.device != "cpu")
    return asks and not torch.cuda.device_count() and not os.environ.get("RAY_ADDRESS")


def describe_machines(config: TrainerConfig, *, elsewhere: bool = False) -> str:
    """Where the workers would run; ConfigError where they do not fit. Asks a Ray cluster that there is, and starts
    none. `elsewhere`: not here."""
    gpus, cores = torch.cuda.device_count(), len(os.sched_getaffinity(0))
    here, workers = f"{count_of(cores, 'core')} and {count_of(gpus, 'GPU')}", count_of(config.workers, "worker")
    if elsewhere:
        return f"machines: planned for {workers} on cuda elsewhere; this machine has {here}"
    if config.launcher == "processes":
        from trainer.launch.processes import resolve_device

        device = resolve_device(config).device
        processes = count_of(config.workers, "process", plural="processes")
        return f"machines: {processes} on {device}, this machine has {here}"
    from trainer.launch import ray_train

    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith(("http://", "https://")):
        return _describe_from_afar(config, address)
    if address:
        with ray_train.ray_session(config) as settled:
            return f"machines: {workers} on {settled.device} fit the cluster {address}"
    needed = math.ceil(ray_train.cpus_needed(config, workers=config.workers))
    resources = {"CPU": float(max(cores, needed)), "GPU": float(gpus)}
    device = ray_train.check_resources(config, resources, cluster=False).device
    return f"machines: {workers} on {device}, this machine has {here}"


def _describe_from_afar(config: TrainerConfig, address: str) -> str:
    """As the dashboard tells it, where jobs are submitted: nobody outside the cluster can join it."""
    from trainer.launch import ray_dashboard, ray_train
    from trainer.launch.elastic import largest_resources

    try:
        present = ray_dashboard.list_resources(address)
    except ConnectionError as error:
        return (
            f"machines: not looked at: the dashboard at RAY_ADDRESS={address} does not tell its nodes ({error}); "
            f"`ray job submit -- python trainer/run.py {FLAG} ...` looks from inside the cluster"
        )
    device = ray_train.check_resources(config, largest_resources(present, config=None), cluster=True).device
    return f"machines: {count_of(config.workers, 'worker')} on {device} fit the cluster {address}"
