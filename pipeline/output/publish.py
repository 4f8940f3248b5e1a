"""Writes the files of a data set besides its shards: tokenizer, token counts, manifest, data card and report."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import DICTIONARY_LANGUAGES, PipelineConfig, SourceConfig
from pipeline.dataset import (
    SCHEMA_VERSION,
    TOKEN_COUNTS_NAME,
    TOKENIZER_FOLDER,
    Manifest,
    Special,
    SplitName,
    canonical_json,
    file_sha256,
    token_counts_schema,
)
from pipeline.documents import CLAUSE_CHARACTERS
from pipeline.instances import NEXT, NOT_NEXT, OF_THE_TEXT
from pipeline.output.data_card import render_card
from pipeline.output.folder import CARD_NAME, REPORT_NAME, SUMMARY_NAME
from pipeline.output.report import render_report
from pipeline.output.shortcuts import list_shortcut_warnings, measure_shortcuts
from pipeline.output.summary import summarize_build
from pipeline.settings import to_tree
from pipeline.shuffle import Buckets
from pipeline.tally import BuildResult, ReadTally, RowTally, merge_reads, summarize_rows
from pipeline.tokenizer import WordTokenizer, describe_text, longest_word
from pipeline.units import count_of
from pipeline.versions import hash_code, library_versions

_LABEL_BOUNDS = {"strict": (0.4, 0.6), "reference": (0.4, 0.75)}
"""The allowed share of NOT_NEXT labels (lowest, highest) in each mode. The published algorithm, which reference mode
follows, gives this label to every chunk of one sentence."""
_ENOUGH_ROWS = 400
"""If a data set has fewer labels, the share of NOT_NEXT among them is not checked. Among so few labels, the share can
leave the allowed range by chance. (With this many, it would have to deviate by four standard deviations.)"""
_ENOUGH_TO_WARN = 1600
"""If a data set has fewer labels, a build does not warn of the share of NOT_NEXT labels. The range outside which it
warns is narrower than the range outside which it fails, so more labels are needed."""
_MOST_CLAUSES = 0.1
"""A build warns if a larger share of a source's characters is in words so long that they are clauses."""
MOST_UNKNOWN = 0.01
"""A build warns if [UNK] makes up a larger share of the text's tokens, or of a source's characters, than this. A
vocabulary trained on the text gives less than 0.001."""
_REPEATED_SENTENCES, _REPEATED_DOCUMENTS = 0.01, 0.1
"""A build warns of a line that makes up a larger share of all sentences, or stands in a larger share of the documents,
than this."""
_MOST_LINES, _SHOWN_LINE = 3, 60
"""A build names at most _MOST_LINES repeated lines, and shows at most _SHOWN_LINE characters of each."""


def label_bounds(config: PipelineConfig) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two ranges (lowest, highest) for the share of rows with the label NOT_NEXT (a wrong next sentence).

    A build warns if the share is outside the first range, and fails if it is outside the second. The bounds of the
    first range are half as far from 0.5 as the bounds of the second.
    """
    low, high = config.not_next_bounds or _LABEL_BOUNDS[config.mode]
    return ((low + 0.5) / 2, (high + 0.5) / 2), (low, high)


def check_labels(result: BuildResult, *, config: PipelineConfig) -> None:
    """Check the share of NOT_NEXT (a wrong next sentence) among the next-sentence labels.

    Raises ValueError if this share is outside the allowed range, because a model would then learn only to predict the
    more frequent label. Also raises ValueError if no row has a label, although the config asks for labels.
    """
    labels = result.count_labels()
    total = labels[NEXT] + labels[NOT_NEXT]
    if config.next_sentence != "none" and not total and labels.total():
        raise ValueError(
            f"none of the {labels.total():,} rows has a next-sentence label: no document has a next sentence, none has "
            "another document of its source in its shard, or all repeat the same text "
            f"({100 * result.unknown_share():.1f}% of it is [UNK]); check what ends a document in the sources (a blank "
            "line after every sentence?) and the vocabulary's language, give more documents or fewer shards, or set "
            "next_sentence=none"
        )
    _, (low, high) = label_bounds(config)
    if total >= _ENOUGH_ROWS and not low <= labels[NOT_NEXT] / total <= high:
        found = f"{_describe_labels(labels)}; {100 * low:.0f} to {100 * high:.0f}% were expected)"
        if labels[NOT_NEXT] / total < low:
            raise ValueError(
                f"{found}: other documents often continue with the same text, because the text repeats itself or "
                f"{100 * result.unknown_share():.1f}% of it is [UNK]; check the vocabulary's language and the "
                "sources, or set next_sentence=none; not_next_bounds=[0,1] builds it anyway"
            )
        raise ValueError(
            f"{found}: the documents are too short to have a next sentence; check what ends a document in the sources "
            "(a blank line after every sentence?), or set next_sentence=none; not_next_bounds=[0,1] builds it anyway"
        )


def _describe_labels(labels: Counter[int]) -> str:
    total = labels[NEXT] + labels[NOT_NEXT]
    return (
        f"{labels[NOT_NEXT]:,} of {total:,} second segments do not follow the first "
        f"({100 * labels[NOT_NEXT] / total:.0f}%"
    )


def list_warnings(result: BuildResult, *, config: PipelineConfig, read: ReadTally | None = None) -> list[str]:
    """Return a warning (one text each) for every result that is valid but probably not intended, such as documents of
    one sentence.

    `read` has the counts of what was read. If it is None, the warnings about these counts are left out.
    """
    tallies = result.tallies.values()
    documents, sentences = sum(tally.documents for tally in tallies), sum(tally.sentences for tally in tallies)
    words, tokens = sum(tally.words for tally in tallies), sum(tally.document_tokens for tally in tallies)
    found = []
    if config.masking != "token" and words == tokens > 0:
        found.append(
            f"masking: {config.masking} masks single tokens here, because each of the {words:,} words is one piece (as "
            "Chinese characters are); use a smaller vocabulary, set dictionary_words for a language without spaces, or "
            "set masking=token"
        )
    unknown = sum(tally.unknown for tally in tallies)
    if unknown > MOST_UNKNOWN * tokens:
        hidden, characters = (0, 0) if read is None else (read.unknown_characters.total(), read.characters.total())
        share = f", which stand for {100 * hidden / characters:.1f}% of its characters" if characters else ""
        found.append(
            f"{unknown:,} of the {tokens:,} tokens of the text are [UNK] ({100 * unknown / tokens:.1f}%{share}): the "
            "vocabulary lacks some of its characters (another language, script or case?); set another vocabulary.path, "
            "or train one on this text"
        )
    found += _list_losses(read, config=config, is_known=unknown > MOST_UNKNOWN * tokens) if read is not None else []
    if config.next_sentence != "none" and sentences < 1.1 * documents:
        found.append(
            f"{documents:,} documents have {sentences:,} sentences in all, so most pairs split one sentence; "
            "check what ends a document in the sources (a blank line after every sentence?), or set next_sentence=none"
        )
    found += _list_repeated_lines(result, sentences=sentences, documents=documents)
    found += _list_unseen_sources(result, config=config)
    labels = result.count_labels()
    total = labels[NEXT] + labels[NOT_NEXT]
    (low, high), _ = label_bounds(config)
    if total >= _ENOUGH_TO_WARN and not low <= labels[NOT_NEXT] / total <= high:
        found.append(
            f"{_describe_labels(labels)}; {100 * low:.0f} to {100 * high:.0f}% is usual): many documents are too short "
            "to have a next sentence; check what ends a document in the sources, or set next_sentence=none"
        )
    return found + list_shortcut_warnings(result, config=config)


def _list_losses(read: ReadTally, *, config: PipelineConfig, is_known: bool) -> list[str]:
    """Return two kinds of warnings about the sources. One names a source if many of its characters are in [UNK]. The
    other names a source if many of its characters are in very long words. Such words are probably whole clauses without
    spaces.

    If `is_known` is true, the caller has already warned of [UNK]. The first kind then appears only if a source also has
    words longer than the tokenizer allows.
    """
    found = []
    for index, source in enumerate(config.sources):
        name, characters = f"sources.{index} ({source.display_name})", read.characters[index]
        unknown, longer = read.unknown_characters[index], read.long_words[index]
        if unknown > MOST_UNKNOWN * characters and (longer or not is_known):
            words = f", with {count_of(longer, 'word')} longer than {longest_word(config):,} characters" * (longer > 0)
            found.append(
                f"{name}: {unknown:,} of its {characters:,} characters are in [UNK] "
                f"({100 * unknown / characters:.1f}%{words}); set another vocabulary.path, train one on this text, or "
                f"{_words_remedy(source, config=config)}"
            )
        if read.clause_characters[index] > _MOST_CLAUSES * characters:
            share = 100 * read.clause_characters[index] / characters
            found.append(
                f"{name}: {share:.0f}% of its characters are in words of more than {CLAUSE_CHARACTERS} characters, so "
                f"words come out as clauses, which are masked as a whole; {_words_remedy(source, config=config)}"
            )
    return found


def _words_remedy(source: SourceConfig, *, config: PipelineConfig) -> str:
    language = source.language.partition("-")[0]
    if language in DICTIONARY_LANGUAGES and not config.has_dictionary(source.language):
        return f"set dictionary_words=[{language}], which finds words without spaces"
    return "put spaces between the words if the language has none, or set masking=token"


def _list_repeated_lines(result: BuildResult, *, sentences: int, documents: int) -> list[str]:
    """Return a warning for each line that makes up too much of the data set, such as a page's footer. Only the most
    frequent lines, at most _MOST_LINES, are named. `sentences` and `documents` say how many sentences and documents the
    data set has in total."""
    lines: Counter[str] = sum((tally.repeated_lines for tally in result.tallies.values()), Counter())
    spread: Counter[str] = sum((tally.repeated_in for tally in result.tallies.values()), Counter())
    return [
        f"the line {text[:_SHOWN_LINE]!r} stands {count:,} times in {spread[text]:,} of {documents:,} documents "
        f"({100 * count / sentences:.0f}% of all sentences), so next sentences cannot be told from others, and rows "
        "repeat; remove it from the source, or set cleaning.max_repeated_lines to leave out documents that repeat lines"
        for text, count in sorted(lines.items(), key=lambda item: (-item[1], item[0]))[:_MOST_LINES]
        if count >= _REPEATED_SENTENCES * sentences or spread[text] >= _REPEATED_DOCUMENTS * documents
    ]


def _list_unseen_sources(result: BuildResult, *, config: PipelineConfig) -> list[str]:
    """Return a warning for each source that has training rows but no validation rows."""
    if "validation" not in result.tallies:
        return []
    train, held_out = (result.tallies[split].source_rows for split in ("train", "validation"))
    names = [name for index, name in enumerate(config.source_names) if train[index] and not held_out[index]]
    return [
        f"no held-out row comes from source {name}, so no evaluation measures its loss; raise validation_fraction"
        for name in names
    ]


def write_set(
    folder: Path,
    *,
    config: PipelineConfig,
    tokenizer: WordTokenizer,
    result: BuildResult,
    read: ReadTally,
    run: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """Write all files of the data set except shards and manifest into `folder` (OUT/_tmp). Return the manifest, which
    the caller writes last.

    `read` has the counts of what was read, and `result` the shards and their counts. `run` has facts of this build
    (workers, seconds, paths) for the report's section "This run".
    """
    train = result.tallies["train"]
    _write_token_counts(folder / TOKEN_COUNTS_NAME, train, tokenizer=tokenizer)
    tokenizer.save(folder / TOKENIZER_FOLDER, longest=config.max_seq_length)
    others = [folder / TOKEN_COUNTS_NAME, *sorted((folder / TOKENIZER_FOLDER).iterdir())]
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        config=config.data_tree(),
        seed=config.seed,
        versions=library_versions(config),
        vocabulary_hash=tokenizer.vocabulary_hash,
        vocabulary_size=tokenizer.vocab_size,
        special=Special(**{name: getattr(tokenizer.special, name) for name in ("pad", "unk", "cls", "sep", "mask")}),
        max_seq_length=config.max_seq_length,
        max_predictions=config.predictions,
        mask_sets=config.masks_per_pair,
        next_sentence=config.next_sentence,
        sources=config.source_names,
        shards=tuple(result.shards),
        files={path.relative_to(folder).as_posix(): file_sha256(path) for path in others},
        drops=merge_reads([read, result.left_out]).count_reasons(),
        statistics={
            "sources": summarize_sources(read, config=config, rows=result.tallies),
            "text": describe_text(tokenizer.backend),
            "shortcuts": {
                each.rule: each.accuracy
                for each in measure_shortcuts(result, config=config)
                if each.rule not in OF_THE_TEXT
            },
            "notes": dict(sorted((read.notes + result.left_out.notes).items())),
            "splits": {
                split: summarize_rows(tally, mask_sets=config.masks_per_pair, max_seq_length=config.max_seq_length)
                for split, tally in sorted(result.tallies.items())
            },
        },
    )
    (folder / CARD_NAME).write_text(render_card(manifest), encoding="utf-8")
    summary = summarize_build(
        manifest,
        config=config,
        read=read,
        result=result,
        tokenizer=tokenizer,
        warnings=list_warnings(result, config=config, read=read),
        not_next_bounds=label_bounds(config),
        run=run,
    )
    text = json.dumps(summary, indent=1, ensure_ascii=False)
    (folder / SUMMARY_NAME).write_text(text + "\n", encoding="utf-8")
    (folder / REPORT_NAME).write_text(render_report(summary), encoding="utf-8")
    return manifest


def hash_build(config: PipelineConfig, *, buckets: Buckets, vocabulary_hash: str) -> str:
    """Return a hash (sha256, in hexadecimal) of everything that decides what a build's workers write, except the input.

    It covers the settings that shape the data, the order of the sources, how many buckets there are, the vocabulary,
    the versions of libraries, the pipeline's code, and whether rejects (documents left out) are kept.
    """
    sources = to_tree(config)["sources"]
    for source in sources:
        del source["path"], source["clean_documents"]
    shaping = {
        "config": config.data_tree(),
        "vocabulary_hash": vocabulary_hash,
        "versions": library_versions(config),
        "code": hash_code(),
        "sources": sources,
        "buckets": asdict(buckets),
        "keeps_rejects": config.cleaning.keep_rejects is not None,
    }
    return hashlib.sha256(canonical_json(shaping)).hexdigest()


def summarize_sources(
    read: ReadTally, *, config: PipelineConfig, rows: Mapping[SplitName, RowTally]
) -> list[dict[str, Any]]:
    """Return a dict of counts for each name in config.source_names (the distinct names of the sources), in this order.
    The counts do not depend on the order and the paths of the sources.

    The keys are `name`, `kind`, `language`, `weight`, `documents`, `sentences`, `characters`, `dropped_by_weight`,
    `rows` and `tokens`. A source whose `weight` is below 1 loses some of its documents (dropped by weight). The values
    of `documents`, `sentences` and `characters` are counted during reading. They include exact duplicates, but not
    documents dropped by weight. The values of `rows` and `tokens` are counted in the training rows, by the source of
    the first segment.
    """
    summary = []
    for number, (name, weight) in enumerate(zip(config.source_names, config.source_weights, strict=True)):
        own = [index for index, source in enumerate(config.sources) if source.display_name == name]
        summary.append(
            {
                "name": name,
                "kind": ", ".join(sorted({config.sources[index].kind for index in own})),
                "language": ", ".join(sorted({config.sources[index].language for index in own})),
                "weight": weight,
                "documents": sum(read.documents[index] for index in own),
                "sentences": sum(read.sentences[index] for index in own),
                "characters": sum(read.characters[index] for index in own),
                "dropped_by_weight": sum(read.drops.get(index, Counter())["weight"] for index in own),
                "rows": rows["train"].source_rows[number],
                "tokens": rows["train"].source_tokens[number],
            }
        )
    return summary


def _write_token_counts(path: Path, tally: RowTally, *, tokenizer: WordTokenizer) -> None:
    """Write a Parquet file that says how often each token id occurs in input_ids of the training rows. Special tokens
    get the count 0. `tally` has the counts of the training rows."""
    counts = tally.token_counts.copy()
    counts[tokenizer.special_ids] = 0
    columns = [np.arange(counts.size, dtype=np.int32), tokenizer.tokens, counts]
    table = pa.table([pa.array(column) for column in columns], schema=token_counts_schema())
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)
