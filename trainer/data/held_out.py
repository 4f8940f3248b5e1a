"""Checks that no phase evaluates on documents that the run, or the run it branched from, was trained on before.

A phase is a part of a run with its own data set. A document is held out if the hash of its text is below
`validation_fraction`, a setting of the build. So if two data sets contain the same text, the data set with the smaller
fraction may train on a document that the other data set holds out. With parts of books, this can happen whatever the
fractions are: the hash of the book's first part decides for all parts, and one of the data sets may have only later
parts. Cost: reads the document ids of held-out rows. The ids of training rows are read only if the settings of the two
data sets allow such a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.dataset import Manifest, Shard, SplitName, schema
from pipeline.settings import ConfigError
from trainer.data.phases import OpenPhase, Phase
from trainer.data.row_groups import read_row_group

_THREADS = 8
_IDS = [schema.DOCUMENT_ID, schema.SECOND_DOCUMENT_ID]


def check_held_out(
    phases: Sequence[OpenPhase], *, before: Sequence[tuple[Phase, Manifest]] = (), step: int = 0
) -> list[str]:
    """Check that no phase (part of a run) holds out documents that an earlier phase trains on. Return warnings.

    `before` and `step` are for a run that started from a checkpoint of another run. `step` is the checkpoint's step.
    `before` lists the phases on which the other run was trained until that step, each with its data set's manifest.
    Phases of this run that end by `step` are not compared with `before`, because they are no longer evaluated.

    Raises ConfigError, with the numbers, if some documents are both trained on and held out. Documents are compared by
    id, a hash of the text. If the same text was cleaned differently for two data sets, its ids differ and the check
    finds nothing. So a warning names data sets that have a source of the same name but no held-out document in common.
    """
    warnings = {}
    for index, later in enumerate(phases):
        trained = [("", each.phase, each.manifest) for each in phases[:index]]
        if later.phase.last_step > step:
            trained = [*((" of resume_from's run", *each) for each in before), *trained]
        for run_name, phase, manifest in trained:
            pair = manifest.hash, later.manifest.hash
            if pair[0] != pair[1] and pair not in warnings and later.manifest.num_rows("validation"):
                warnings[pair] = _compare(phase, later, manifest=manifest, run_name=run_name)
    return [warning for warning in warnings.values() if warning]


def _compare(earlier: Phase, later: OpenPhase, *, manifest: Manifest, run_name: str) -> str:
    """Check that the phase `earlier` (a part of a run) trains on no document that the phase `later` holds out.

    Raises ConfigError if it does. Returns a warning if the check may have missed documents, because the same text seems
    to have different document ids in the two data sets. Otherwise returns "". `manifest` belongs to the data set of
    `earlier`. `run_name` is "" if `earlier` is a phase of this run. Otherwise it names the other run in messages, for
    example " of resume_from's run".
    """
    rows = pa.concat_tables(_read_ids(later.phase, manifest=later.manifest, split="validation"))
    held_out = _documents_of(rows)
    known = pa.concat_tables([rows.slice(0, 0), *_read_ids(earlier, manifest=manifest, split="validation")])
    before, now = (each.config.get("validation_fraction") for each in (manifest, later.manifest))
    name = f"phases.{later.phase.index}.data={later.phase.config.data}"
    other = f"phase {earlier.index}{run_name}, {earlier.config.data}"
    trained = rows.slice(0, 0)
    grouped = any(map(_has_groups, (manifest, later.manifest)))
    if before is None or now is None or before < now or grouped:
        among = _read_ids(earlier, manifest=manifest, split="train", among=held_out)
        trained = pa.concat_tables([trained, *among])
    if trained.num_rows:
        documents = held_out.filter(pc.is_in(held_out, value_set=_documents_of(trained)))
        pairs = _has_document(rows, documents)
        remedy = "build both with the same validation_fraction"
        if before is not None and now is not None and before >= now:
            remedy = (
                "parts of a book are held out together, and the two have other books or cut them otherwise; build both "
                "from the same files with the same source settings"
            )
        raise ConfigError(
            f"{name}: an earlier phase trains on {len(documents):,} of its {len(held_out):,} held-out documents, in "
            f"{pc.sum(pairs).as_py():,} of its {rows.num_rows:,} held-out pairs: {other}, has "
            f"validation_fraction={before}, this one {now}; {remedy}"
        )
    shared = sorted(set(manifest.sources) & set(later.manifest.sources))
    if pc.any(_has_document(known, held_out)).as_py() or not shared:
        return ""
    return (
        f"WARNING: {name}: shares no held-out document with {other}, though both have a source "
        f"{', '.join(shared)}: unless the texts differ, they were split into documents or cleaned differently, and the "
        "earlier phase may train on held-out text; build both from the same files with the same source settings"
    )


def _has_groups(manifest: Manifest) -> bool:
    """Return whether documents of a data set may be parts of books (see PipelineConfig.has_groups)."""
    sources = manifest.config.get("sources")
    return not isinstance(sources, list) or any(
        source.get("unit") == "chapter" or source.get("rows_per_document") is not None for source in sources
    )


def _read_ids(phase: Phase, *, manifest: Manifest, split: SplitName, among: pa.Array | None = None) -> list[pa.Table]:
    """Return the document ids of the train or validation rows (`split`): a table per row group, with two ids for each
    row.

    If `among` (an array of document ids) is given, a row stays only if one of its two documents is in `among`.
    """
    groups = [(shard, i) for shard in manifest.shards_of(split) for i in range(len(shard.row_group_rows))]

    def read(group: tuple[Shard, int]) -> pa.Table:
        shard, index = group
        table = read_row_group(
            phase.config.data, path=shard.path, footer_sha256=shard.footer_sha256, row_group=index, columns=_IDS
        )
        return table if among is None else table.filter(_has_document(table, among))

    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="read-ids") as pool:
        return list(pool.map(read, groups))


def _documents_of(rows: pa.Table) -> pa.Array:
    return pa.chunked_array([chunk for name in _IDS for chunk in rows[name].chunks], pa.binary()).drop_null().unique()


def _has_document(rows: pa.Table, documents: pa.Array) -> pa.ChunkedArray:
    """Return [n] booleans, true for each row with at least one of its two documents in `documents`."""
    first, second = (pc.is_in(rows[name], value_set=documents) for name in _IDS)
    return pc.or_(first, second)
