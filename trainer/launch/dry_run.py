"""Print what a run would do and need, without starting or writing anything: steps, tokens, hours, price, disk space and
machines.

`python -m trainer.run --dry-run [--tokens-per-second=N | --gpu=NAME] [--price=P] [--rows=N --tokens=N]` makes all
checks of a real start, but data set and GPUs may be missing (trainer/launch/planned.py). The training rate (tokens per
second) comes from the options or, if the run has begun, from the steps that it has recorded.
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
from trainer.engine import corners, count_moments, count_parameters
from trainer.launch import planned
from trainer.launch.preflight import CheckResult, check
from trainer.telemetry import METRICS_NAME, read_last_lines
from trainer.train import steps_done, warn_of_cpu

FLAG, RATE, PRICE, GPU, ROWS, TOKENS = "--dry-run", "--tokens-per-second", "--price", "--gpu", "--rows", "--tokens"
FLAGS = (FLAG, *(f"{name}=" for name in (RATE, PRICE, GPU, ROWS, TOKENS)))
RECENT_STEPS = 100


@dataclass(frozen=True, slots=True)
class Options:
    """The options of --dry-run. A field is None if the user did not give its option."""

    tokens_per_second: float | None
    """Tokens per second of one worker."""
    price: float | None
    """Price of one worker for an hour, in any currency."""
    gpu: str | None = None
    """Name of each worker's GPU, a key of PEAK_TFLOPS."""
    rows: tuple[int, ...] | None = None
    """Training rows of each data set that does not exist yet, in the order of the phases, or one number for all."""
    tokens: tuple[int, ...] | None = None
    """Training tokens of each of these data sets."""


def read_options(flags: Sequence[str], *, program: str) -> Options:
    """Return the options of --dry-run among `flags`, the words of the command line that begin with --.

    `program` names the command in errors. Raises ConfigError if a number is not above 0, a GPU is unknown, or two
    options conflict.
    """
    found: dict[str, tuple[float, ...]] = {}
    gpu: str | None = None
    for flag in flags:
        name, _, text = flag.partition("=")
        if name == GPU:
            gpu = planned.find_gpu(text, program=program)
        if name not in (RATE, PRICE, ROWS, TOKENS):
            continue
        sizes = name in (ROWS, TOKENS)
        try:
            found[name] = tuple(map(float, text.split(",") if sizes else [text]))
        except ValueError:
            found[name] = (math.nan,)
        if not all(0 < number < math.inf and (number.is_integer() or not sizes) for number in found[name]):
            kind = "whole number" if sizes else "number"
            raise ConfigError(f"{program}: {flag}: give a {kind} above 0, as in {name}=100")
    given = [*found, *([GPU] if gpu is not None else [])]
    if given and FLAG not in flags:
        raise ConfigError(f"{program}: {given[0]} works only with {FLAG}; add it")
    if (ROWS in found) != (TOKENS in found):
        raise ConfigError(f"{program}: {ROWS} and {TOKENS} together state the size of a data set; give both or neither")
    if gpu is not None and RATE in found:
        raise ConfigError(f"{program}: {GPU} and {RATE} both set the rate; give only one")
    rate, price = (found[name][0] if name in found else None for name in (RATE, PRICE))
    rows, tokens = (tuple(map(int, found[name])) if name in found else None for name in (ROWS, TOKENS))
    if rows is not None and tokens is not None and len(rows) != len(tokens):
        raise ConfigError(f"{program}: {ROWS} gives {len(rows)} sizes and {TOKENS} {len(tokens)}; give as many of each")
    return Options(rate, price, gpu, rows, tokens)


def check_or_plan(config: TrainerConfig, options: Options, *, fresh: bool = False) -> CheckResult:
    """Check the run with preflight.check, and return what was found. If `options` state the size of a data set that
    does not exist yet, plan the run with plan_without_data instead.

    If `fresh`, an output that already holds a run is refused. Raises ValueError if a check fails.
    """
    if options.rows is None or options.tokens is None:
        return check(config, fresh=fresh, gpu=options.gpu)
    return planned.plan_without_data(config, rows=options.rows, tokens=options.tokens, gpu=options.gpu, fresh=fresh)


def describe_run(checked: CheckResult, options: Options) -> Iterator[str]:
    """Yield lines for the user about the run in `checked`: the steps that are left, the time, price, disk space and
    machines.

    Raises ConfigError if the workers do not fit the machines, or a checkpoint does not fit the disk.
    """
    config, phases = checked.config, checked.phases
    done = steps_done(config, checkpoints=checked.checkpoints)
    tokens = tokens_left(phases, done=done)
    steps = max(0, config.max_steps - done)
    yield f"steps: {steps:,} of {config.max_steps:,} to do, {describe_tokens(tokens)}"
    yield describe_rate(config)
    work = planned.count_work(config.model, phases=phases, done=done)
    yield from describe_time(config, options, steps=steps, tokens=tokens, work=work)
    elsewhere = needs_other_machine(config, options)
    yield describe_disk_space(config, vocabulary_size=phases[0].manifest.vocabulary_size, elsewhere=elsewhere)
    machines = describe_machines(config, elsewhere=elsewhere)
    yield machines
    if " on cpu" in machines:
        yield from warn_of_cpu(config.model)


def describe_rate(config: TrainerConfig) -> str:
    """Return a line with the learning rate at the ends and corners of the schedule."""
    unit = "{:,.4g} h" if config.max_hours is not None else "step {:,.0f}"
    places = [f"{rate:.4g} at {unit.format(place)}" for place, rate in corners(config)]
    name = "by phase" if config.phases and config.schedule.span == "phase" else config.schedule.name
    return f"learning rate ({name}): {', '.join(places)}"


def tokens_left(phases: Sequence[OpenPhase], *, done: int) -> float:
    """Return the expected number of tokens in the steps still to do.

    `phases` are all parts of the run, and `done` is the number of steps done.
    """
    return sum(each.full_steps(done) * each.shape.tokens_mean for each in phases)


def describe_tokens(tokens: float) -> str:
    """Return a number of tokens as text, in millions from 50,000 on."""
    return f"{tokens / 1e6:,.1f} M tokens" if tokens >= 50_000 else f"{tokens:,.0f} tokens"


def describe_time(config: TrainerConfig, options: Options, *, steps: int, tokens: float, work: float) -> Iterator[str]:
    """Yield lines with the run's hours and price at the rate that `options` state or that the run itself has measured.

    If there is no such rate, the lines say so, and list the rates of several GPUs unless device=cpu. `tokens` is the
    number of tokens in the `steps` steps still to do, and `work` is the number of model FLOPs in these steps.
    """
    rate, origin = 0.0, ""
    if options.tokens_per_second is not None:
        rate, origin = options.tokens_per_second * config.workers, "stated"
    elif options.gpu is not None and work:
        tflops, _ = planned.tflops_of(options.gpu, config=config)
        rate = tokens / work * tflops * 1e12 * config.workers
        origin = planned.describe_origin(options.gpu, config=config)
    else:
        recent = read_last_lines(locate(config.output, METRICS_NAME))[-RECENT_STEPS:]
        rates = [step["tokens_per_second"] for step in recent if step.get("tokens_per_second") is not None]
        if rates:
            rate, origin = median(rates), "measured in this run"
    if not rate:
        yield f"time: unknown; give {RATE}=N of one worker, or start the run, which measures its steps"
        if config.device != "cpu" and work:
            yield f"time: or give {GPU}=NAME for one of these rates:"
            yield from planned.list_rates(config, work=work, tokens=tokens)
        return
    needed = hours = tokens / rate / 3600
    ended = ""
    if config.max_hours is not None and needed > config.max_hours:
        hours, ended = config.max_hours, ", ended by max_hours"
    workers = count_of(config.workers, "worker")
    yield f"time: {describe_seconds(3600 * hours)} at {rate:,.0f} tokens/s of {workers} ({origin}{ended})"
    if ended:
        share = hours / needed
        yield f"max_hours: enough for about {share * steps:,.0f} steps, {describe_tokens(share * tokens)}"
    if options.price is not None:
        total = hours * config.workers
        yield f"price: {total * options.price:,.2f} for {total:,.1f} worker hours at {options.price:g}"


def describe_disk_space(config: TrainerConfig, *, vocabulary_size: int, elsewhere: bool = False) -> str:
    """Return a line with the size of the checkpoints and the free disk space.

    The free space is left out if the output is on an object store. It is also left out if `elsewhere`, because the run
    will then use another machine's disk. Raises ConfigError if the disk has too little free space for even one
    checkpoint.
    """
    weights = count_parameters(config.model, vocabulary_size=vocabulary_size)
    num_bytes = 4 * (weights + count_moments(config, vocabulary_size=vocabulary_size))  # in fp32
    best = config.checkpoint.keep_best * max(1, len(config.phases))
    kept = config.checkpoint.keep_last + best + 1  # plus the checkpoint being written
    if config.checkpoint.keep_every_steps is not None:
        kept += config.max_steps // config.checkpoint.keep_every_steps
    text = f"checkpoints: {describe_bytes(num_bytes)} each, up to {kept}: {describe_bytes(num_bytes * kept)}"
    if elsewhere or storage.is_url(config.output):
        return text
    folder = Path(config.output)
    free = free_bytes(folder)
    if free < num_bytes:
        raise ConfigError(
            f"output={folder}: a checkpoint needs {num_bytes:,} bytes, {free:,} are free; free space, or give another "
            f"output"
        )
    short = "; WARNING: not enough, lower checkpoint.keep_last or free space" if free < num_bytes * kept else ""
    return f"{text}; {describe_bytes(free)} are free{short}"


def needs_other_machine(config: TrainerConfig, options: Options) -> bool:
    """Whether the run needs GPUs, while this machine has none and RAY_ADDRESS names no cluster."""
    asks = config.device == "cuda" or (options.gpu is not None and config.device != "cpu")
    return asks and not torch.cuda.device_count() and not os.environ.get("RAY_ADDRESS")


def describe_machines(config: TrainerConfig, *, elsewhere: bool = False) -> str:
    """Return a line that says on which machines and devices the workers would run.

    Asks the Ray cluster at RAY_ADDRESS, if that is set, but does not start Ray. Raises ConfigError if the workers do
    not fit. If `elsewhere`, the run will use another machine, so nothing is checked.
    """
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
        return _describe_remote_cluster(config, address)
    if address:
        with ray_train.ray_session(config) as resolved:
            return f"machines: {workers} on {resolved.device} fit the cluster {address}"
    needed = math.ceil(ray_train.cpus_needed(config, workers=config.workers))
    resources = {"CPU": float(max(cores, needed)), "GPU": float(gpus)}
    device = ray_train.check_resources(config, resources, cluster=False).device
    return f"machines: {workers} on {device}, this machine has {here}"


def _describe_remote_cluster(config: TrainerConfig, address: str) -> str:
    """Return a line that says whether the workers fit the cluster whose dashboard is at `address`.

    This process is outside the cluster and cannot join it, so it asks the dashboard. Raises ConfigError if the workers
    do not fit.
    """
    from trainer.launch import ray_dashboard, ray_train
    from trainer.launch.elastic import largest_resources

    try:
        present = ray_dashboard.list_resources(address)
    except ConnectionError as error:
        return (
            f"machines: not checked: the dashboard at RAY_ADDRESS={address} does not list its nodes ({error}); "
            f"`ray job submit -- python trainer/run.py {FLAG} ...` checks from inside the cluster"
        )
    device = ray_train.check_resources(config, largest_resources(present, config=None), cluster=True).device
    return f"machines: {count_of(config.workers, 'worker')} on {device} fit the cluster {address}"
