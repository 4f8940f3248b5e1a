"""Turns one split (a part of the input) into a spill file (an intermediate file) of tokenized documents: read, clean,
tokenize, count.

Every document is counted. A split is finished once its record is written (pipeline/runtime/ledger.py). A later start of
the build then uses the record instead of reading the split again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.cleaning import DocumentFilter, RejectWriter, beginning, excerpt
from pipeline.dataset import id_type
from pipeline.dedup import BandFile, SignatureWriter, count_parts, open_runs
from pipeline.documents import Document, Drop, Note, Split
from pipeline.instances import passes_of
from pipeline.runtime import BuildContext, WorkReport
from pipeline.shuffle import BucketRange, Origin, SpillFile, SpillWriter, Table, divide_buckets
from pipeline.sources import read_documents
from pipeline.tally import ReadTally, merge_reads, reads_from_tree, reads_to_tree
from pipeline.tokenizer import TokenizedDocument, WordTokenizer


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of reading one split, or several: counts, and the names of the files with the tokens and signatures.

    Engines pass this object from step to step. Its size does not grow with the number of documents or of buckets
    (groups of documents).
    """

    tally: ReadTally
    spills: tuple[SpillFile, ...]
    bands: tuple[BandFile, ...] = ()
    """The files of signatures and band keys. Band keys are hashes that near duplicates are likely to share. Empty
    unless near duplicates are searched for."""


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
            read_documents(split, source),
            split=split,
            context=context,
            tokenizer=tokenizer,
            report=report,
            key=zlib.crc32(context.ledger.record_name("split", split_key(split, context=context)).encode()),
        )
        context.ledger.record(
            "split",
            key=split_key(split, context=context),
            files=list_written(result, folder=context.spills),
            content=_result_to_tree(result),
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
    key: int = 0,
) -> SplitResult:
    """Filter and tokenize the documents in `items`, and write them to a spill file (an intermediate file). `key` is a
    hash of what the file is made from, by which spill files are sorted.

    Return the counts, and the names of the files written. A Drop in `items` (something that was left out) is counted by
    its reason. A Note, which is a kind of Drop, is counted by its reason too, but as an event for which nothing was
    left out. On an error no file remains.
    """
    name = Path(split.path).name[:40]
    keeps_rejects = context.config.cleaning.keep_rejects is not None
    buckets, _ = divide_buckets(context.buckets)
    with (
        RejectWriter(context.spills if keeps_rejects else None) as rejects,
        SpillWriter(
            context.spills,
            name=name,
            bucket_of=context.buckets.bucket_of,
            id_type=id_type(context.vocabulary_size),
            buckets=buckets,
            key=key,
        ) as writer,
        SignatureWriter(
            context.spills,
            name=name,
            config=context.config.cleaning.near_duplicates,
            partitions=count_parts(context.buckets),
        ) as signatures,
    ):
        filters = _Filters(split, context=context, tokenizer=tokenizer, rejects=rejects, report=report)
        for item in items:
            document = filters.take(item)
            if document is None:
                continue
            assert isinstance(item, Document)
            text = filters.text_of(item)
            writer.add(document, origin=Origin(split.source, item.name, text), group=item.group)
            if context.config.has_groups and context.buckets.holds_out(item.group or document.id):
                writer.mark_held_out(document, bucket=context.buckets.train_bucket_of(document.id))
            signatures.add(item)
    filters.tally.rejects = rejects.runs
    return SplitResult(filters.tally, (writer.file,), tuple(signatures.files))


class _Filters:
    """Decides which documents of a split are kept, and tokenizes them. `tally` counts what was kept, and what was left
    out by reason."""

    def __init__(
        self,
        split: Split,
        *,
        context: BuildContext,
        tokenizer: WordTokenizer,
        rejects: RejectWriter,
        report: WorkReport,
    ) -> None:
        self.tally = ReadTally()
        self._split, self._config, self._rejects, self._report = split, context.config, rejects, report
        self._source = context.config.sources[split.source]
        self._number = context.config.source_names.index(self._source.display_name)
        self._tokenizer = tokenizer
        self._dictionary = context.config.has_dictionary(self._source.language)
        self._filter = DocumentFilter(context.config.cleaning, source=self._source)
        self._held = open_runs(context.hold_out) if context.hold_out else None

    def text_of(self, document: Document) -> str:
        """Return the text that files of rejects show: all text if these files are kept, else its beginning."""
        return beginning(document) if self._config.cleaning.keep_rejects is None else "\n".join(document.sentences)

    def take(self, item: Document | Drop) -> TokenizedDocument | None:
        """Count an item. Return it as token ids, or None if it is no document or is left out."""
        if isinstance(item, Note):
            self.tally.count_note(item.reason, name=item.name, detail=item.detail)
        elif isinstance(item, Drop):
            self._drop(item, item.reason, item.detail)
        elif not self._is_rejected(item):
            return self._tokenize(item)
        return None

    def _is_rejected(self, item: Document) -> bool:
        """Return whether a filter or a text of hold_out says that the document is left out. If so, count it."""
        fault = self._filter.reject(item)
        match = None if fault is not None or self._held is None else self._held.find(item.sentences)
        if fault is None and match is None:
            return False
        text = self.text_of(item)
        if fault is not None:
            reason, detail, shown = fault.reason, fault.detail, f"{fault.detail}: {excerpt(text)}"
        else:
            assert match is not None
            reason, detail = f"in_hold_out: {match.file}", f"both have: {match.words}"
            shown = detail
        self._drop(item, reason, shown)
        self._rejects.add(source=self._split.source, name=item.name, reason=reason, detail=detail, text=text)
        return True

    def _tokenize(self, item: Document) -> TokenizedDocument | None:
        source, config, number = self._source, self._config, self._split.source
        document, loss = self._tokenizer.tokenize_and_count(item, language=source.language, dictionary=self._dictionary)
        document = replace(document, source=self._number)
        if not document.ids.size:
            self._drop(item, "no_tokens", "nothing is left after normalisation")
            return None
        if not passes_of(document.id, weight=source.weight, passes=config.passes, seed=config.seed):
            self._drop(item, "weight", f"weight {source.weight:g}")
            return None
        characters = sum(map(len, item.sentences))
        self.tally.documents[number] += 1
        self.tally.sentences[number] += len(item.sentences)
        self.tally.characters[number] += characters
        self.tally.count_loss(loss, source=number)
        self._report.add(documents=1, characters=characters)
        return document

    def _drop(self, item: Document | Drop, reason: str, detail: str) -> None:
        self.tally.count_drop(reason, source=self._split.source, name=item.name, detail=detail)
        self._report.add(drops=1)


def merge_splits(results: Iterable[SplitResult]) -> SplitResult:
    """Return the results of several splits as one: the sum of their counts, and all their files."""
    listed = list(results)
    return SplitResult(
        merge_reads(result.tally for result in listed),
        tuple(spill for result in listed for spill in result.spills),
        tuple(band for result in listed for band in result.bands),
    )


def list_written(result: SplitResult, *, folder: str) -> set[str]:
    """Return the paths of all files that `result` names. `folder` is the folder of spill files."""
    names = {spill.name for spill in result.spills}
    names |= {name for band in result.bands for name in (band.keys, band.signatures)}
    return {storage.join(folder, name) for name in names} | set(result.tally.rejects)


def split_key(split: Split, *, context: BuildContext) -> dict[str, Any]:
    """Return the key of a split's record. It is a dict with the fields of `split` and one or two more keys. "input" is
    a text that identifies the content of the split's file. "hold_out" identifies the evaluation texts that must not be
    in the data set, and is absent if there are none.

    The settings are not in the key, because a record also has the hash of its build, which covers all settings.
    """
    held = {"hold_out": storage.base_name(context.hold_out)} if context.hold_out else {}
    return {**asdict(split), "input": context.inputs[split.path], **held}


def _result_to_tree(result: SplitResult) -> dict[str, Any]:
    """Return the result as JSON data. The keys are "tally" (counts), "spills" (the files of tokens) and "bands" (the
    files of MinHash signatures and of band keys, which are hashes for finding near duplicates). Files are named without
    folders, because the output may be moved before the build continues."""
    spills = [[spill.name, spill.key, spill.table, astuple(spill.buckets)] for spill in result.spills]
    bands = [[band.keys, band.signatures, band.table] for band in result.bands]
    return {"tally": reads_to_tree(result.tally), "spills": spills, "bands": bands}


def _result_from_tree(tree: dict[str, Any], *, folder: str) -> SplitResult:
    spills = [
        SpillFile(name, key, Table(*table), BucketRange(*buckets)) for name, key, table, buckets in tree["spills"]
    ]
    bands = [BandFile(keys, signatures, Table(*table)) for keys, signatures, table in tree["bands"]]
    return SplitResult(reads_from_tree(tree["tally"], folder=folder), tuple(spills), tuple(bands))
