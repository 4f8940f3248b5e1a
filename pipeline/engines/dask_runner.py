"""Adapts Beam's DaskRunner to a build: each side input is computed once, and each step is sent to a worker once.

A side input is an argument that a step gets from earlier steps. Beam's own runner computes it again for every task that
reads it; in a build, each of these tasks would read all text again. It also sends the code of a step again with every
task of the step. Because the graph of a build groups nothing by key, it needs no shuffle, and has about as many tasks
as there are pieces of work. The scheduler and its workers import this module.
"""

# ruff: noqa: E402

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.engines import beam_worker
from pipeline.errors import PassingError
from pipeline.versions import describe_code

beam_worker.silence_beam()

import apache_beam as beam
import dask
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import PTransformOverride
from apache_beam.runners.common import DoFnContext, DoFnInvoker, DoFnSignature, Receiver, _OutputHandler
from apache_beam.runners.dask import dask_runner as beam_dask
from apache_beam.runners.dask import transform_evaluator
from apache_beam.runners.dask.overrides import _Create, dask_overrides
from apache_beam.transforms.sideinputs import SideInputMap
from dask.bag import Bag
from dask.delayed import delayed
from distributed import Client, futures_of


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every task must know about one run of a graph."""

    run: str
    """The unique name of this run."""
    code: dict[str, str]
    """The versions that describe_code() returned in the build's main process."""
    folder: str
    """A folder of this run that every worker must see."""
    held: str
    """A folder on which each worker holds a shared lock while it runs a task; "" for no folder."""


@dataclass(frozen=True, slots=True)
class Step:
    """A ParDo of the graph (a step with a DoFn), in the form that is sent to the workers."""

    context: RunContext
    label: str
    fn: beam.DoFn
    window_fn: Any
    args: list[Any]
    kwargs: dict[str, Any]
    views: tuple[tuple[Any, Any], ...]
    """The kind and options of each side input."""


class _Kept(threading.local):
    """The steps of one run of the graph that this thread has already set up."""

    run = ""

    def __init__(self) -> None:
        self.steps: dict[bytes, Step] = {}


_FAN_IN = 16
"""The most partial results that one task of a combination reads."""
_kept = _Kept()
_working: Counter[str] = Counter()
"""The number of steps that run in this process now, by RunContext.folder."""
_counting = threading.Lock()


class _Collector(Receiver):
    def __init__(self) -> None:
        self.values: list[Any] = []

    def receive(self, windowed_value: Any) -> None:
        self.values.append(windowed_value.value)


class RunStep(transform_evaluator.DaskBagOp):
    """Translates a Beam ParDo to Dask: one task per partition of the input."""

    def __init__(self, applied: Any, bag_kwargs: Any, *, context: RunContext, submit: Callable[[Bag], Bag]) -> None:
        super().__init__(applied, bag_kwargs)
        self._context, self._submit = context, submit

    def apply(self, input_bag: Bag, side_inputs: Sequence[SideInputMap] | None = None) -> Bag:
        """Return the outputs of the step for `input_bag`. A bag is Dask's partitioned collection."""
        transform, sides = self.transform, side_inputs or ()
        main_input = next(iter(self.applied.main_inputs.values()))
        step = Step(
            context=self._context,
            label=self.applied.full_label,
            fn=transform.fn,
            window_fn=main_input.windowing.windowfn,
            args=list(transform.args),
            kwargs=dict(transform.kwargs),
            views=tuple((side._view_class, side._view_options) for side in sides),
        )
        packed = delayed(pickler.dumps(step), name=f"step-{uuid.uuid4().hex}")
        values = [self._submit(side._iterable.bag).to_delayed(optimize_graph=False)[0] for side in sides]
        return input_bag.map_partitions(run_step, packed, *values)


class Spread(transform_evaluator.DaskBagOp):
    """Translates a Beam Create to Dask: deals the Create's list to the partitions in turn.

    The splits of a build are sorted by size, so dealing in turn makes partitions of similar size.
    """

    def apply(self, input_bag: Any, side_inputs: Any = None) -> Bag:
        """Return the list of the Create as a bag, which is Dask's partitioned collection."""
        items = list(self.transform.values)
        size = self.bag_kwargs.get("partition_size")
        number = -(-len(items) // size) if size else self.bag_kwargs["npartitions"]
        number = max(1, min(number, len(items)))
        name = f"create-{uuid.uuid4().hex}"
        return Bag({(name, index): items[index::number] for index in range(number)}, name, number)


@dataclass
class _Combine(beam.PTransform):
    """The single step that CombineOverride puts in the place of a CombineGlobally."""

    fn: beam.CombineFn

    def expand(self, values: beam.PCollection) -> beam.PCollection:
        return beam.pvalue.PCollection.from_(values)


class CombineOverride(PTransformOverride):
    """Replaces each CombineGlobally of a graph by a single step. Without this, Beam would translate the inner steps of
    a CombineGlobally one by one."""

    def matches(self, applied_ptransform: Any) -> bool:
        """Return whether this step of the graph is a CombineGlobally."""
        return type(applied_ptransform.transform) is beam.CombineGlobally

    def get_replacement_transform_for_applied_ptransform(self, applied_ptransform: Any) -> beam.PTransform:
        """Return the single step that replaces the CombineGlobally."""
        return _Combine(beam.CombineFn.maybe_from_callable(applied_ptransform.transform.fn))


class Combine(transform_evaluator.DaskBagOp):
    """Translates a Beam CombineGlobally to Dask as a tree of tasks. Each task reads the results of at most _FAN_IN
    other tasks.

    Beam's own translation groups by key. It makes as many tasks as there are pairs of partitions, and one of its tasks
    gets all values.
    """

    def __init__(self, applied: Any, bag_kwargs: Any, *, submit: Callable[[Bag], Bag]) -> None:
        super().__init__(applied, bag_kwargs)
        self._submit = submit

    def apply(self, input_bag: Bag, side_inputs: Any = None) -> Bag:
        """Return the combined value of all values in `input_bag`, as a bag (Dask's partitioned collection) of one
        partition."""
        fn = self.transform.fn
        bag = input_bag.map_partitions(partial(_accumulate, fn))
        while bag.npartitions > 1:
            bag = bag.repartition(npartitions=-(-bag.npartitions // _FAN_IN)).map_partitions(partial(_merge, fn))
        return self._submit(bag.map_partitions(partial(_extract, fn)))


def _accumulate(fn: beam.CombineFn, values: Iterable[Any]) -> list[Any]:
    inputs = [transform_evaluator.defenestrate(value) for value in values]
    return [fn.compact(fn.add_inputs(fn.create_accumulator(), inputs))]


def _merge(fn: beam.CombineFn, accumulators: Iterable[Any]) -> list[Any]:
    return [fn.compact(fn.merge_accumulators(list(accumulators)))]


def _extract(fn: beam.CombineFn, accumulators: Iterable[Any]) -> list[Any]:
    return [fn.extract_output(accumulator) for accumulator in accumulators]


class BuildRunner(beam_dask.DaskRunner):
    """Runs one graph on the cluster of `client`. `partitions` says into how many pieces the input is divided, unless
    Beam options set another number."""

    def __init__(self, client: Client, *, context: RunContext, partitions: int) -> None:
        super().__init__()
        self._client, self._context, self._partitions = client, context, partitions
        self._submitted: dict[str, Bag] = {}

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> beam_dask.DaskRunnerResult:
        """Submit the graph to the scheduler, and return the pending result."""
        given = options.view_as(beam_dask.DaskOptions).get_all_options(drop_default=True, current_only=True)
        sizes = beam_dask.DaskOptions._extract_bag_kwargs(given) or {"npartitions": self._partitions}
        pipeline.replace_all([CombineOverride(), *dask_overrides()])
        step = partial(RunStep, context=self._context, submit=self._submit)
        with _translating({_Create: Spread, beam.ParDo: step, _Combine: partial(Combine, submit=self._submit)}):
            visitor = self.to_dask_bag_visitor(sizes)
            pipeline.visit(visitor)
        last = list(visitor.bags.values())[-1]
        futures = [*futures_of(list(self._submitted.values())), *self._client.compute(dask.optimize(last))]
        return beam_dask.DaskRunnerResult(self._client, futures)

    def _submit(self, bag: Bag) -> Bag:
        """Submit the tasks of `bag` to the scheduler. Return its values as a bag of one partition, which is still being
        computed.

        A step that reads these values is then submitted as a graph of its own. If it were in the same graph as `bag`,
        each of its tasks would depend on every partition of `bag`. Dask's memory for ordering tasks would then grow
        with the square of the number of partitions: 14 GB for 8,192 partitions.
        """
        if bag.name not in self._submitted:
            self._submitted[bag.name] = self._client.persist(_join(bag))
            self._submitted[self._submitted[bag.name].name] = self._submitted[bag.name]
        return self._submitted[bag.name]


def run_step(elements: Iterable[Any], packed: bytes, *sides: list[Any]) -> list[Any]:
    """Return the outputs of a step for the elements of one partition. `packed` is the pickled Step, and `sides` are the
    values of its side inputs. Runs in a worker.

    Raises PassingError if the worker has other code than the main process, or does not see the folder of the run.
    """
    elements = list(elements)
    if not elements:
        return []
    key = hashlib.sha256(packed).digest()
    step = _kept.steps.get(key) or _unpack(packed)
    collector = _Collector()
    maps = [
        SideInputMap(view, options, [transform_evaluator.get_windowed_value(value, None) for value in values])
        for (view, options), values in zip(step.views, sides, strict=True)
    ]
    invoker = DoFnInvoker.create_invoker(
        DoFnSignature(step.fn),
        _OutputHandler(
            window_fn=step.window_fn,
            main_receivers=collector,
            tagged_receivers={},
            per_element_output_counter=None,
            output_batch_converter=None,
            process_yields_batches=False,
            process_batch_yields_elements=False,
        ),
        context=DoFnContext(step.label, state=None),
        side_inputs=maps,
        input_args=step.args,
        input_kwargs=step.kwargs,
        user_state_context=None,
        bundle_finalizer_param=beam.DoFn.BundleFinalizerParam(),
    )
    with _holding(step.context):
        if key not in _kept.steps:
            invoker.invoke_setup()
            _kept.steps[key] = step
        invoker.invoke_start_bundle()
        for element in elements:
            invoker.invoke_process(transform_evaluator.get_windowed_value(element, step.window_fn))
        invoker.invoke_finish_bundle()
    return collector.values


def _unpack(packed: bytes) -> Step:
    """Return the unpickled step. If it is the first step of a run of the graph in this thread, check that the worker
    has the right code and folder (check_worker), and drop the steps of the previous run."""
    step: Step = pickler.loads(packed)
    if step.context.run != _kept.run:
        _kept.steps.clear()
        check_worker(step.context)
        _kept.run = step.context.run
    return step


def check_worker(context: RunContext) -> None:
    """Check that this worker has the same code as the main process and sees the run's folder. Raises PassingError if
    not."""
    here, found = socket.gethostname(), describe_code()
    differences = [
        f"{name} {found.get(name)}, not {value}" for name, value in context.code.items() if found.get(name) != value
    ]
    if differences:
        raise PassingError(
            f"the worker on {here} has {'; '.join(differences)}: its rows might differ; install the same version there"
        )
    if "://" not in context.folder and not os.path.isdir(context.folder):
        raise PassingError(
            f"{context.folder}: the worker on {here} does not see this folder; give absolute paths (output, "
            "vocabulary.path, sources) on storage that all workers share with this machine"
        )


@contextmanager
def _holding(context: RunContext) -> Iterator[None]:
    """While the block runs, show that this process runs a step: hold a shared lock on the folder context.held (if it
    can be locked), and count the step as running."""
    descriptor = -1
    if context.held:
        with suppress(OSError):
            descriptor = os.open(context.held, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    _count(context.folder, 1)
    try:
        yield
    finally:
        _count(context.folder, -1)
        if descriptor >= 0:
            os.close(descriptor)


def count_working(folder: str) -> int:
    """Return how many steps are running in this process now, of the run of the graph that has the folder `folder`."""
    return _working[folder]


def _count(folder: str, step: int) -> None:
    with _counting:
        _working[folder] += step
        if not _working[folder]:
            del _working[folder]


def _join(bag: Bag) -> Bag:
    """Return a bag (Dask's partitioned collection) that has the values of `bag` in one partition. The partitions are
    joined by a tree of tasks, each of which reads the results of at most _FAN_IN other tasks. So Dask plans the tasks
    in time proportional to the number of partitions."""
    while bag.npartitions > 1:
        bag = bag.repartition(npartitions=-(-bag.npartitions // _FAN_IN))
    return bag.map_partitions(list)


@contextmanager
def _translating(operations: dict[type, Any]) -> Iterator[None]:
    """Put `operations` into Beam's table of Dask translations while the block runs. `operations` maps a Beam transform
    to the class that translates it."""
    table = beam_dask.TRANSLATIONS
    before = dict(table)
    table.update(operations)
    try:
        yield
    finally:
        table.update(before)
