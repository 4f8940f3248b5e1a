"""Reads slices of row groups, in threads of this process or with Ray Data. Both give the same tables in the same order.

A thread runs the reader, which stays a limited number of slices ahead of the training loop.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from pipeline.storage import StorageError
from trainer.data.row_groups import ROW_GROUP, SHARD, RowGroupError, RowGroupSlice, read_slice

_LOCAL_THREADS = 2
_DATASET_BLOCKS = 256
_SMALL_DATASET_BLOCKS = 16
_ERROR, _OUTAGE = "error", "outage"


Tables: TypeAlias = Generator[tuple[RowGroupSlice, pa.Table | RowGroupError], None, None]
"""A generator that yields (slice, table) for each slice in order. If a slice cannot be read, the error stands in place
of the table."""


def read_in_threads(slices: Iterable[RowGroupSlice], *, root: str | Path) -> Tables:
    """Yield (slice, table or error) for each of `slices`, in order. `root` is the data set's folder.

    Two threads read at most two slices ahead. Threads help because decoding releases Python's global lock.
    """

    def read(row_slice: RowGroupSlice) -> pa.Table | RowGroupError:
        try:
            return read_slice(row_slice, root=root)
        except RowGroupError as error:
            return error

    pending: deque[tuple[RowGroupSlice, Future[pa.Table | RowGroupError]]] = deque()
    with ThreadPoolExecutor(max_workers=_LOCAL_THREADS, thread_name_prefix="read-slice") as pool:
        for row_slice in slices:
            pending.append((row_slice, pool.submit(read, row_slice)))
            if len(pending) > _LOCAL_THREADS:
                first, table = pending.popleft()
                yield first, table.result()
        while pending:
            first, table = pending.popleft()
            yield first, table.result()


def read_with_ray(slices: Iterable[RowGroupSlice], *, root: str | Path, object_store_bytes: int) -> Tables:
    """Yield (slice, table or error) for each of `slices`, in order. `root` is the data set's folder.

    Ray tasks on this node read ahead, up to `object_store_bytes` of memory. They request no CPU, because train workers
    may hold all CPUs. They stay on this node, because on other nodes they would keep the autoscaler from releasing
    nodes that preprocess. Raises StorageError if the store of the data set does not answer.
    """
    import ray  # imported here, because it may not be installed
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    def read_item(item: pa.Table) -> pa.Table:
        try:
            return read_slice(RowGroupSlice(**item.to_pylist()[0]), root=root)
        except (RowGroupError, StorageError) as error:
            # An error is returned as data, because Ray would raise it without its type and out of order.
            return pa.table({_ERROR if isinstance(error, RowGroupError) else _OUTAGE: [str(error)]})

    for chunk in _chunks(slices):
        dataset = ray.data.from_items(
            [asdict(row_slice) for row_slice in chunk], override_num_blocks=len(chunk)
        ).map_batches(
            read_item,
            batch_format="pyarrow",
            batch_size=None,
            num_cpus=0,
            scheduling_strategy=on_this_node,
            compute=ray.data.TaskPoolStrategy(size=1),
        )
        dataset.context.enable_progress_bars = False
        options = dataset.context.execution_options
        options.preserve_order = True
        options.resource_limits = ray.data.ExecutionResources(object_store_memory=object_store_bytes)
        tables = dataset.iterator().iter_batches(batch_format="pyarrow", batch_size=None)
        for row_slice, table in zip(chunk, tables, strict=True):
            if table.column_names == [_OUTAGE]:
                raise StorageError(table.column(_OUTAGE)[0].as_py())
            if table.column_names == [_ERROR]:
                yield row_slice, RowGroupError(table.column(_ERROR)[0].as_py())
                continue
            assert (table.column(SHARD)[0].as_py(), table.column(ROW_GROUP)[0].as_py()) == (
                row_slice.shard,
                row_slice.row_group,
            )
            assert table.num_rows == row_slice.stop - row_slice.start
            yield row_slice, table


def _chunks(slices: Iterable[RowGroupSlice]) -> Iterator[list[RowGroupSlice]]:
    """Yield `slices` in lists, one list for each ray.data.Dataset.

    The lists are long, because a Dataset is slow to start. Their length is limited, because each slice is a Ray task.
    """
    chunk: list[RowGroupSlice] = []
    for row_slice in slices:
        ends = len(chunk) >= _SMALL_DATASET_BLOCKS and row_slice.epoch != chunk[-1].epoch
        if ends or len(chunk) == _DATASET_BLOCKS:
            yield chunk
            chunk = []
        chunk.append(row_slice)
    if chunk:
        yield chunk


class ReadAhead:
    """A thread that runs the generator `items` at most `depth` items ahead of the caller of next().

    If `items` raises an error, next() first returns the items before the error. Then the next call raises the error,
    and so does every later call.
    """

    def __init__(self, items: Tables, *, depth: int) -> None:
        self._queue: queue.Queue[tuple[RowGroupSlice, pa.Table | RowGroupError] | BaseException] = queue.Queue(
            maxsize=depth
        )
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(items,), name="read-ahead", daemon=True)
        self._thread.start()

    def __next__(self) -> tuple[RowGroupSlice, pa.Table | RowGroupError]:
        """Return the next item. Wait for it if necessary."""
        if self._error is not None:
            raise self._error
        item = self._queue.get()
        if isinstance(item, BaseException):
            self._error = item
            raise item
        return item

    def close(self) -> None:
        """Stop the thread and wait for its end. Idempotent."""
        self._stop.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()  # the thread may be waiting for room in the queue
            self._thread.join(timeout=0.01)

    def _run(self, items: Tables) -> None:
        try:
            for item in items:
                if not self._put(item):
                    return
            self._put(StopIteration())
        except BaseException as error:
            self._put(error)
        finally:
            items.close()

    def _put(self, item: tuple[RowGroupSlice, pa.Table | RowGroupError] | BaseException) -> bool:
        if not self._stop.is_set():
            self._queue.put(item)
        return not self._stop.is_set()
