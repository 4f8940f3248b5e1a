"""Turns one split (a part of the input) into a spill file (an intermediate file) of tokenized documents: read, clean,
tokenize, count.

Every document is counted. A split is finished once its record is written (pipeline/runtime/ledger.py). A later start of
the build then uses the record instead of reading the split again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.cleaning import DocumentFilter, RejectWriter, beginning, excerpt
from pipeline.dataset import id_type
from pipeline.dedup import BandExtent, SignatureWriter
from pipeline.documents import Document, Drop, Note, Split
from pipeline.instances import passes_of
from pipeline.runtime import BuildContext, WorkReport
from pipeline.shuffle import Extent, Origin, SpillWriter
from pipeline.sources import read_documents
from pipeline.tally import ReadTally, reads_from_tree, reads_to_tree
from pipeline.tokenizer import WordTokenizer


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of reading one split: counts, and where the tokens of each bucket (a group of documents) lie in a
    file. `extents` has pairs (number of the bucket, place in a file)."""

    tally: ReadTally
    extents: tuple[tuple[int, Extent], ...]
    bands: tuple[tuple[int, BandExtent], ...] = ()
    """Pairs (number of a partition, place of the partition's band keys in a file). Band keys are hashes that near
    duplicates are likely to share. Empty unless near duplicates are searched for."""


def spill_split(split: Split, *, context: BuildContext, tokenizer: WordTokenizer, report: WorkReport) -> SplitResult:
    """Return the result of reading a split (a part of the input). If an earlier start of the build finished the split,
    the result comes from the split's record.

    Otherwise read the split, write its documents to a spill file (an intermediate file), and record the result.
    """
    report.add(of_bytes=split.num_bytes, of_text=split.text_bytes)
    recorded = context.ledger.find("split", key=split_key(split, context=context))
    if recorded is not None:
        result = _result_from_tree(recorded, folder=context.spills)
        tally = result.tally
        drops = sum(tally.count_reasons().values())
        report.add(kept=1, documents=tally.documents.total(), characters=tally.characters.total(), drops=drops)
    else:
        source = context.config.sources[split.source]
        result = spill_documents(
            read_documents(split, source), split=split, context=context, tokenizer=tokenizer, report=report
        )
        files = {extent.path for _, extent in result.extents} | set(result.tally.rejects)
        files |= {path for _, band in result.bands for path in (band.keys, band.signatures)}
        context.ledger.record(
            "split", key=split_key(split, context=context), files=files, content=_result_to_tree(result)
        )
    report.add(bytes=split.num_bytes)
    return result


def spill_documents(
    items: Iterable[Document | Drop],
    *,
    split: Split,
    context: BuildContext,
    tokenizer: WordTokenizer,
    report: WorkReport,
) -> SplitResult:
    """Filter and tokenize the documents in `items`, and write them to a spill file (an intermediate file).

    Return the counts, and the places of the documents in the file. A Drop in `items` (something that was left out) is
    counted by its reason. A Note, which is a kind of Drop, is counted by its reason too, but as an event for which
    nothing was left out. On an error no file remains.
    """
    tally = ReadTally()
    source = context.config.sources[split.source]
    number = context.config.source_names.index(source.called)
    name = Path(split.path).name[:40]
    types = id_type(context.vocabulary_size)
    cleaning = context.config.cleaning
    documents = DocumentFilter(cleaning, source=source)

    def drop(item: Document | Drop, reason: str, detail: str) -> None:
        tally.count_drop(reason, source=split.source, name=item.name, detail=detail)
        report.add(drops=1)

    with (
        RejectWriter(context.spills if cleaning.keep_rejects else None) as rejects,
        SpillWriter(context.spills, name=name, bucket_of=context.buckets.bucket_of, id_type=types) as writer,
        SignatureWriter(
            context.spills, name=name, config=cleaning.near_duplicates, partitions=context.buckets.total
        ) as signatures,
    ):
        for item in items:
            if isinstance(item, Note):
                tally.count_note(item.reason, name=item.name, detail=item.detail)
                continue
            if isinstance(item, Drop):
                drop(item, item.reason, item.detail)
                continue
            text = "\n".join(item.sentences) if cleaning.keep_rejects else beginning(item)
            fault = documents.reject(item)
            if fault is not None:
                drop(item, fault.reason, f"{fault.detail}: {excerpt(text)}")
                rejects.add(source=split.source, name=item.name, reason=fault.reason, detail=fault.detail, text=text)
                continue
            document = replace(tokenizer.tokenize(item), source=number)
            if not document.ids.size:
                drop(item, "no_tokens", "nothing is left after normalisation")
                continue
            if not passes_of(document.id, weight=source.weight, passes=context.config.passes, seed=context.config.seed):
                drop(item, "weight", f"weight {source.weight:g}")
                continue
            characters = sum(map(len, item.sentences))
            writer.add(document, origin=Origin(split.source, item.name, text))
            signatures.add(item)
            tally.documents[split.source] += 1
            tally.sentences[split.source] += len(item.sentences)
            tally.characters[split.source] += characters
            report.add(documents=1, characters=characters)
    tally.rejects = rejects.runs
    return SplitResult(tally, tuple(writer.extents), tuple(signatures.extents))


def split_key(split: Split, *, context: BuildContext) -> dict[str, Any]:
    """Return the key of a split's record: a dict of the fields of `split`, and of "input", a text that identifies the
    content of the split's file.

    The key has no settings for reading. Records are valid only for one build, and the hash of the build covers all
    settings.
    """
    return {**asdict(split), "input": context.inputs[split.path]}


def _result_to_tree(result: SplitResult) -> dict[str, Any]:
    """Return the result as JSON data. The keys are "tally" (counts), "extents" (places of documents in the spill file)
    and "bands" (places of band keys, the hashes for finding near duplicates). Files are named without folders, because
    the output may be moved before the build continues."""
    extents = [[bucket, [Path(extent.path).name, *astuple(extent)[1:]]] for bucket, extent in result.extents]
    bands = [
        [bucket, [Path(band.keys).name, Path(band.signatures).name, *astuple(band)[2:]]]
        for bucket, band in result.bands
    ]
    return {"tally": reads_to_tree(result.tally), "extents": extents, "bands": bands}


def _result_from_tree(tree: dict[str, Any], *, folder: str) -> SplitResult:
    extents = tuple((bucket, Extent(storage.join(folder, name), *rest)) for bucket, (name, *rest) in tree["extents"])
    bands = tuple(
        (bucket, BandExtent(storage.join(folder, keys), storage.join(folder, signatures), *rest))
        for bucket, (keys, signatures, *rest) in tree["bands"]
    )
    return SplitResult(reads_from_tree(tree["tally"], folder=folder), extents, bands)
