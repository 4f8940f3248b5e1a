"""Turns one bucket (a group of documents), or a few small ones, into one Parquet file: pair, mask, permute, write,
verify, and only then rename to its final name.

The bytes are deterministic: the documents decide the order of the rows, and the writer stores neither time nor host.
Memory: the documents (3 bytes a token), their pairs (60 bytes each) and one row group.
"""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import draws, storage
from pipeline.cleaning import RejectWriter
from pipeline.config import PipelineConfig
from pipeline.dataset import Shard, SplitName, file_sha256, footer_sha256, schema
from pipeline.dedup import Match, count_duplicates
from pipeline.documents import ID_BYTES
from pipeline.errors import PassingError
from pipeline.instances import Instances, Masks, Rows, find_repeated_lines, list_passes
from pipeline.runtime import WorkReport
from pipeline.shuffle import Extent, read_documents
from pipeline.tally import LENGTH_BITS, NUM_EXAMPLES, WORD_PIECES, BuildResult, Example, RowTally, lowest_examples
from pipeline.tokenizer import TokenizedDocument, WordTokenizer

ROW_GROUP_TOKENS = 1 << 20
"""The approximate number of tokens in a row group, which has 2 to 5 MB on disk."""
_ENCODINGS = {
    "input_ids.list.element": "BYTE_STREAM_SPLIT",
    "masked_positions.list.element.list.element": "DELTA_BINARY_PACKED",
    "masked_inputs.list.element.list.element": "PLAIN",
    schema.NUM_TOKENS: "BYTE_STREAM_SPLIT",
    schema.FIRST_LENGTH: "BYTE_STREAM_SPLIT",
}
"""The smallest encodings for novels with rows of 128 tokens and K = 4 mask sets. All numbers here are bytes per row.
The ids take 180 (with a dictionary 186, plain 190). Each mask set takes 12 for the positions (with a dictionary 17,
plain 20) and 13 for the inputs (with a dictionary 15, plain 13). ZSTD level 1 is within 3% of the size of level 9 in a
third of the time."""
_DICTIONARIES = [
    schema.NEXT_SENTENCE_LABEL,
    schema.DOCUMENT_ID,
    schema.SECOND_DOCUMENT_ID,
    schema.PASS_NUMBER,
    schema.SOURCE,
]


class ShardError(PassingError):
    """A shard was just written, but its file reads back with other content than was written."""


def build_shard(
    extents: Sequence[Extent],
    *,
    config: PipelineConfig,
    tokenizer: WordTokenizer,
    split: SplitName,
    name: str,
    folder: str | Path,
    scratch: str | Path,
    near: Mapping[bytes, Match] = MappingProxyType({}),
    report: WorkReport | None = None,
) -> BuildResult:
    """Build one shard from the documents in `extents` (ranges of spill files). Return the shard's manifest entry, and
    the counts of the shard's content.

    `name` is the path of the file in the manifest, and its last part is the name of the file in `folder`. The file is
    written and verified in `scratch`, on the same file system, and then renamed into `folder`. If `folder` is on an
    object store, the file is written in a local temporary folder and uploaded. `near` has the near duplicates to leave
    out: it maps the id of each to its match (the document that it resembles). `report` shows the progress, row group by
    row group. Raises SpillError or ShardError if a file reads back with other content than was written. After any error
    the written file is removed.
    """
    ids = schema.id_type(tokenizer.vocab_size)
    documents, _ = read_documents(extents, id_type=ids)
    documents = [document for document in documents if document.id not in near]
    with RejectWriter(scratch if config.cleaning.keep_rejects else None) as rejects:
        left_out = count_duplicates(extents, near=near, rejects=rejects)
    left_out.rejects = rejects.runs
    passes = list_passes(documents, config=config, split=split)
    instances = Instances(documents, config=config, tokenizer=tokenizer, passes=passes)
    for (reason, source), count in sorted(instances.count_unlabelled().items()):
        left_out.count_note(reason, name=config.source_names[source], detail="", count=count)
    tally = _count_documents(documents, config=config, tokenizer=tokenizer)
    order = _permute(documents, instances, seed=config.seed)
    report = report or WorkReport(None, stage="shard")
    report.add(of_rows=len(instances), of_tokens=tally.document_tokens, documents=len(documents))
    report.add(drops=sum(left_out.count_reasons().values()))
    with _partial_file(storage.join(folder, Path(name).name), scratch=scratch) as partial:
        shard = _write_rows(
            partial, instances, order=order, tokenizer=tokenizer, name=name, split=split, tally=tally, report=report
        )
        verify_written(partial, shard=shard, rows_by_length=tally.lengths)
    return BuildResult([shard], {split: tally}, left_out)


def _write_rows(
    path: Path,
    instances: Instances,
    *,
    order: npt.NDArray[np.int64],
    tokenizer: WordTokenizer,
    name: str,
    split: SplitName,
    tally: RowTally,
    report: WorkReport,
) -> Shard:
    """Write the rows of `instances` to `path` in the order of the row numbers in `order`, count them in `tally`, and
    return the shard's manifest entry."""
    columns = schema.sentence_pair_schema(tokenizer.vocab_size, vocabulary_hash=tokenizer.vocabulary_hash)
    group_rows: list[int] = []
    group_tokens: list[int] = []
    max_masked = written = 0
    with pq.ParquetWriter(
        path,
        columns,
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARIES,
        column_encoding=_ENCODINGS,
        write_page_checksum=True,
    ) as writer:
        for part in _cut_groups(instances.pairs.num_tokens, order=order):
            rows, masks = instances.batch(part)
            writer.write_table(rows_to_table(rows, masks).cast(columns), row_group_size=part.size)
            group_rows.append(len(rows))
            group_tokens.append(rows.ids.size)
            max_masked = max(max_masked, *(int(np.diff(mask.offsets).max()) for mask in masks))
            _count_rows(tally, rows, masks, mask_id=tokenizer.special.mask)
            tally.add_shortcuts(instances.count_shortcuts(part, made=rows))
            size = path.stat().st_size
            report.add(rows=len(rows), bytes=size - written)
            written = size
    report.add(bytes=path.stat().st_size - written)
    return Shard(
        path=name,
        split=split,
        rows=sum(group_rows),
        tokens=sum(group_tokens),
        bytes=path.stat().st_size,
        sha256=file_sha256(path),
        footer_sha256=footer_sha256(path),
        row_group_rows=tuple(group_rows),
        row_group_tokens=tuple(group_tokens),
        max_masked=max_masked,
        masked=tally.masked,
    )


def verify_written(path: Path, *, shard: Shard, rows_by_length: npt.NDArray[np.int64]) -> None:
    """Read the whole file; this also checks its page checksums. Raises ShardError if the rows or tokens of a row group
    differ from the manifest entry `shard`, or if the number of rows with n tokens differs from rows_by_length[n] for
    any n."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = file.metadata
            rows = tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
            tokens = []
            lengths = np.zeros_like(rows_by_length)
            for group in range(metadata.num_row_groups):
                table = file.read_row_group(group)
                found = table[schema.INPUT_IDS].combine_chunks().value_lengths().to_numpy()
                stated = table[schema.NUM_TOKENS].to_numpy()
                if not np.array_equal(found, stated):
                    raise ShardError(f"{path}: row group {group}: num_tokens differs from the length of input_ids")
                lengths += np.bincount(found, minlength=lengths.size)
                tokens.append(int(found.sum()))
    except (OSError, pa.ArrowInvalid) as error:
        raise ShardError(f"{path}: just written, but cannot be read ({error}); check the disk and run again") from error
    if rows != shard.row_group_rows or tuple(tokens) != shard.row_group_tokens or (lengths != rows_by_length).any():
        raise ShardError(
            f"{path}: reads back with rows {rows} and tokens {tuple(tokens)} in its row groups, but "
            f"{shard.row_group_rows} and {shard.row_group_tokens} were written; check the disk and run again"
        )


def _permute(documents: Sequence[TokenizedDocument], instances: Instances, *, seed: int) -> npt.NDArray[np.int64]:
    """Return int64[rows]: a random order of the rows, which depends only on `documents` and `seed`."""
    content = draws.key_bytes(seed, *(document.id for document in documents))
    return draws.generator(seed, "permute", content).permutation(len(instances))


def _cut_groups(lengths: npt.NDArray[np.int64], *, order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the row numbers of each row group, in writing order. Each group has about ROW_GROUP_TOKENS tokens.
    `lengths` has each row's number of tokens, and `order` the row numbers in writing order."""
    stops = np.cumsum(lengths[order])
    count = max(1, round(int(stops[-1]) / ROW_GROUP_TOKENS))
    cuts = np.searchsorted(stops, stops[-1] * np.arange(1, count) // count)
    return np.split(order, cuts)


def rows_to_table(rows: Rows, masks: Sequence[Masks]) -> pa.Table:
    """Return rows and their mask sets (choices of tokens to predict) as a table. It has the columns and types of the
    schema, but not the schema's metadata."""
    offsets = pa.array(rows.offsets.astype(np.int32))
    positions, inputs = _nest(masks, num_rows=len(rows))
    no_label = rows.label < 0
    columns = {
        schema.INPUT_IDS: pa.ListArray.from_arrays(offsets, pa.array(rows.ids)),
        schema.NUM_TOKENS: pa.array(np.diff(rows.offsets).astype(np.uint16)),
        schema.FIRST_LENGTH: pa.array(rows.first_length.astype(np.uint16)),
        schema.NEXT_SENTENCE_LABEL: pa.array(np.where(no_label, 0, rows.label).astype(np.uint8), mask=no_label),
        schema.MASKED_POSITIONS: positions,
        schema.MASKED_INPUTS: inputs,
        schema.DOCUMENT_ID: _binary(rows.document_id, mask=None),
        schema.SECOND_DOCUMENT_ID: _binary(rows.second_document_id, mask=~rows.has_second),
        schema.PASS_NUMBER: pa.array(rows.pass_number.astype(np.uint16)),
        schema.SOURCE: pa.array(rows.source),
    }
    return pa.table(columns)


def _nest(masks: Sequence[Masks], *, num_rows: int) -> tuple[pa.ListArray, pa.ListArray]:
    """Return (positions, inputs): the masked positions, and the token ids that the model sees there, as two columns of
    list<list>. `masks` has the K mask sets (choices of tokens to predict). In each column a row has K lists, one for
    each mask set."""
    sets = len(masks)
    counts = np.stack([np.diff(mask.offsets) for mask in masks], axis=1)
    inner = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    positions = np.empty(inner[-1], np.uint16)
    inputs = np.empty(inner[-1], masks[0].inputs.dtype)
    for number, mask in enumerate(masks):
        shift = inner[number:-1:sets] - mask.offsets[:-1]
        target = np.repeat(shift, counts[:, number]) + np.arange(mask.positions.size)
        positions[target], inputs[target] = mask.positions, mask.inputs
    outer = pa.array(np.arange(0, num_rows * sets + 1, sets, dtype=np.int32))
    inner_offsets = pa.array(inner.astype(np.int32))

    def nested(values: npt.NDArray[Any]) -> pa.ListArray:
        return pa.ListArray.from_arrays(outer, pa.ListArray.from_arrays(inner_offsets, pa.array(values)))

    return nested(positions), nested(inputs)


def _binary(ids: npt.NDArray[np.uint8], *, mask: npt.NDArray[np.bool_] | None) -> pa.Array:
    flat = pa.py_buffer(np.ascontiguousarray(ids).tobytes())
    values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_BYTES), len(ids), [None, flat]).cast(pa.binary())
    if mask is None:
        return values
    return pa.compute.if_else(pa.array(mask), pa.scalar(None, pa.binary()), values)


def _count_documents(
    documents: Sequence[TokenizedDocument], *, config: PipelineConfig, tokenizer: WordTokenizer
) -> RowTally:
    digits = np.array([document.ids.size.bit_length() for document in documents])
    lines = {tokenizer.backend.decode(line.ids.tolist()): line for line in find_repeated_lines(documents)}
    return RowTally(
        lengths=np.zeros(config.max_seq_length + 1, np.int64),
        token_counts=np.zeros(tokenizer.vocab_size, np.int64),
        text_at=np.zeros(config.max_seq_length, np.int64),
        masked_at=np.zeros(config.max_seq_length, np.int64),
        document_lengths=np.bincount(digits, minlength=LENGTH_BITS),
        documents=len(documents),
        document_tokens=sum(document.ids.size for document in documents),
        words=sum(int(np.count_nonzero(document.word_starts)) for document in documents),
        sentences=sum(document.sentence_lengths.size for document in documents),
        unknown=sum(int(np.count_nonzero(document.ids == tokenizer.special.unk)) for document in documents),
        repeated_lines=Counter({text: line.occurrences for text, line in lines.items()}),
        repeated_in=Counter({text: line.documents for text, line in lines.items()}),
    )


def _count_rows(tally: RowTally, rows: Rows, masks: Sequence[Masks], *, mask_id: int) -> None:
    tally.lengths += np.bincount(np.diff(rows.offsets), minlength=tally.lengths.size)
    tally.token_counts += np.bincount(rows.ids, minlength=tally.token_counts.size)
    by_source = np.bincount(rows.source)
    tokens_by_source = np.bincount(rows.source, weights=np.diff(rows.offsets)).astype(np.int64)
    tally.source_rows += Counter(dict(enumerate(by_source.tolist())))
    tally.source_tokens += Counter(dict(enumerate(tokens_by_source.tolist())))
    labels, counts = np.unique(rows.label, return_counts=True)
    tally.labels += Counter(dict(zip(labels.tolist(), counts.tolist(), strict=True)))
    pieces = _count_text(tally, rows)
    for mask in masks:
        place = np.repeat(rows.offsets[:-1], np.diff(mask.offsets)) + mask.positions
        tally.masked_at += np.bincount(mask.positions, minlength=tally.masked_at.size)
        tally.masked_by_pieces += np.bincount(pieces[place], minlength=WORD_PIECES + 1)
        kept = rows.ids[place] == mask.inputs
        shown = mask.inputs == mask_id
        num_masked, num_kept = int(np.count_nonzero(shown)), int(np.count_nonzero(kept))
        tally.masked += mask.inputs.size
        tally.masked_as += Counter(
            {"mask": num_masked, "kept": num_kept, "random": mask.inputs.size - num_masked - num_kept}
        )
    order = np.argsort(rows.keys)
    lowest = [row for label in labels for row in order[rows.label[order] == label][:NUM_EXAMPLES].tolist()]
    tally.examples = lowest_examples([*tally.examples, *(_example(rows, masks[0], row) for row in lowest)])


def _count_text(tally: RowTally, rows: Rows) -> npt.NDArray[np.uint8]:
    """Count the tokens of the text in `rows`: all tokens but [CLS] and the [SEP] at the end of a segment. Add two
    counts to `tally`: how many of these tokens are at each position in a row, and how many are in words of one token,
    of two tokens, and so on.

    Return uint8[tokens]: for each token, the number of tokens of its word, at most WORD_PIECES. For a token that is not
    text, the number is 0.
    """
    lengths = np.diff(rows.offsets)
    begin = np.flatnonzero(rows.word_starts)
    sizes = np.diff(begin, append=rows.ids.size)
    pieces = np.repeat(np.minimum(sizes, WORD_PIECES).astype(np.uint8), sizes)
    ends = rows.offsets[:-1] + rows.first_length - 1
    for places in (rows.offsets[:-1], ends, (rows.offsets[1:] - 1)[rows.has_second]):
        pieces[places] = 0
    counts = np.bincount(pieces, minlength=WORD_PIECES + 1)
    counts[0] = 0
    tally.text_by_pieces += counts
    size = tally.text_at.size
    rows_at = lengths.size - np.cumsum(np.bincount(lengths, minlength=size + 1))[:-1]
    rows_at[0] -= lengths.size
    rows_at -= np.bincount(rows.first_length - 1, minlength=size)
    rows_at -= np.bincount((lengths - 1)[rows.has_second], minlength=size)
    tally.text_at += rows_at
    return pieces


def _example(rows: Rows, mask: Masks, row: int) -> Example:
    entries = slice(mask.offsets[row], mask.offsets[row + 1])
    label = int(rows.label[row])
    return Example(
        key=int(rows.keys[row]),
        input_ids=tuple(rows.ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()),
        first_length=int(rows.first_length[row]),
        label=label if label >= 0 else None,
        masked_positions=tuple(mask.positions[entries].tolist()),
        masked_inputs=tuple(mask.inputs[entries].tolist()),
    )


@contextmanager
def _partial_file(final: str, *, scratch: str | Path) -> Iterator[Path]:
    """Yield the path of a local file to write. At the end of the block, move the file to `final`; on an error, remove
    it."""
    with ExitStack() as stack:
        if storage.is_url(final):
            stack.enter_context(storage.name_full_disk(tempfile.gettempdir()))
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="cloze-shard-"))
        partial = Path(scratch) / f"{Path(final).name}.{uuid.uuid4().hex[:16]}"
        try:
            yield partial
            _commit(partial, final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _commit(partial: Path, final: str) -> None:
    if storage.is_url(final):
        storage.store_file(partial, final)
    else:
        storage.rename_file(partial, final=Path(final))
