"""Makes the content of report.json, which has every number of the report, from the build's counts. No file is read.

Everything except the section `run` depends only on the input (including file names in examples), config and seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import decoders

from pipeline.config import PipelineConfig
from pipeline.dataset import Manifest
from pipeline.instances import NEXT, NOT_NEXT
from pipeline.output.data_card import shown_settings
from pipeline.output.shortcuts import summarize_shortcuts
from pipeline.tally import WORD_PIECES, BuildResult, Counts, Example, ReadTally, RowTally, choose_examples, merge_reads
from pipeline.tokenizer import END_OF_WORD, PIECE_PREFIX, WordTokenizer

SUMMARY_VERSION = 1
_BINS = 32
_TOP_TOKENS = 20

Bounds = tuple[tuple[float, float], tuple[float, float]]


def summarize_build(
    manifest: Manifest,
    *,
    config: PipelineConfig,
    read: ReadTally,
    result: BuildResult,
    tokenizer: WordTokenizer,
    warnings: Sequence[str],
    not_next_bounds: Bounds,
    run: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of report.json, as nested dicts and lists.

    `read` has the counts of what was read, and `result` the counts of the rows. `not_next_bounds` has the allowed
    ranges of the share of wrong next sentences (see publish.label_bounds). `run` says with how many workers, in what
    time and from which paths this build ran. A share is a fraction, or None if nothing was counted. Only training rows
    are counted, unless a key says otherwise.
    """
    train = result.tallies["train"]
    reads = merge_reads([read, result.left_out])
    reader = TokenReader(tokenizer)
    return {
        "version": SUMMARY_VERSION,
        "data_set": manifest.hash,
        "max_seq_length": manifest.max_seq_length,
        "mask_sets": manifest.mask_sets,
        "shards": len(manifest.shards),
        "warnings": list(warnings),
        "splits": {
            split: {
                **{name: value for name, value in facts.items() if name != "lengths"},
                "row_lengths": _bin(result.tallies[split].lengths),
                "document_lengths": _double(result.tallies[split].document_lengths),
            }
            for split, facts in manifest.statistics["splits"].items()
        },
        "sources": _by_name(manifest, reads, config=config),
        "drops": _list_reasons(reads.count_reasons(), reads=reads),
        "notes": _list_reasons(reads.notes, reads=reads),
        "next_sentence": {
            **_summarize_labels(result, bounds=not_next_bounds),
            "shortcuts": summarize_shortcuts(result, config=config),
        },
        "masking": summarize_masks(train, mask_sets=manifest.mask_sets),
        "vocabulary": {**summarize_vocabulary(result, tokenizer=tokenizer), **summarize_losses(reads)},
        "pairs": [describe_pair(example, reader=reader) for example in choose_examples(train.examples)],
        "config": shown_settings(manifest),
        "versions": dict(sorted(manifest.versions.items())),
        "run": {**run, "sources": _by_source(reads, config=config)} if run else {},
    }


def summarize_masks(tally: RowTally, *, mask_sets: int) -> dict[str, Any]:
    """Return how many targets (tokens to predict) all mask sets of some rows have, and their rates. `tally` has the
    counts of these rows.

    The keys are `text_tokens`, `targets`, `rate`, `shown_as` (targets by what replaces them), `by_pieces` (by how many
    tokens their word has) and `by_position` (by ranges of positions in the row). A rate is targets / (tokens of text x
    mask sets). [UNK] counts as text; [CLS] and the closing [SEP]s do not.
    """

    def measure(text: int, targets: int) -> dict[str, Any]:
        return {"tokens": text, "targets": targets, "rate": _share(targets, mask_sets * text)}

    pieces = zip(tally.text_by_pieces.tolist(), tally.masked_by_pieces.tolist(), strict=True)
    tokens = int(tally.text_by_pieces.sum())
    return {
        "text_tokens": tokens,
        "targets": tally.masked,
        "rate": _share(tally.masked, mask_sets * tokens),
        "shown_as": {kind: tally.masked_as[kind] for kind in ("mask", "kept", "random")},
        "by_pieces": [
            {"pieces": number, "or_more": number == WORD_PIECES, **measure(*counts)}
            for number, counts in enumerate(pieces)
            if number
        ],
        "by_position": [
            {"from": text["from"], "to": text["to"], **measure(text["count"], targets["count"])}
            for text, targets in zip(_bin(tally.text_at), _bin(tally.masked_at), strict=True)
        ],
    }


def summarize_vocabulary(result: BuildResult, *, tokenizer: WordTokenizer) -> dict[str, Any]:
    """Return a dict that says how much of the vocabulary appears in the training rows, and how much of the text is
    [UNK].

    The keys are `size`, `entries`, `used`, `used_share`, `seldom` (entries that occur one to nine times),
    `tokens_per_word`, `text_tokens`, `unknown`, `unknown_rate` and `most_frequent`. The values of `entries`, `used`,
    `used_share`, `seldom` and `most_frequent` leave out special and unused entries. The values of `tokens_per_word`,
    `text_tokens`, `unknown` and `unknown_rate` are counted in the text of all documents, held-out documents included.
    """
    counts = result.tallies["train"].token_counts
    text = counts[tokenizer.replaceable_ids]
    top = tokenizer.replaceable_ids[np.argsort(-text, kind="stable")[:_TOP_TOKENS]].tolist()
    tallies = result.tallies.values()
    tokens = sum(tally.document_tokens for tally in tallies)
    unknown = sum(tally.unknown for tally in tallies)
    return {
        "size": tokenizer.vocab_size,
        "entries": int(text.size),
        "used": int(np.count_nonzero(text)),
        "used_share": _share(int(np.count_nonzero(text)), int(text.size)),
        "seldom": int(np.count_nonzero((text > 0) & (text < 10))),
        "tokens_per_word": _share(tokens, sum(tally.words for tally in tallies)),
        "text_tokens": tokens,
        "unknown": unknown,
        "unknown_rate": _share(unknown, tokens),
        "most_frequent": [
            {"token": tokenizer.tokens[index], "count": int(counts[index])} for index in top if counts[index]
        ],
    }


def summarize_losses(read: ReadTally) -> dict[str, Any]:
    """Return a dict that says what the tokenizer lost of the input text: characters in [UNK], too long words, and
    removed vowel signs or tone marks. The counts include exact duplicates."""
    characters, unknown = read.characters.total(), read.unknown_characters.total()
    marks, lost = (sum(each.values(), Counter[str]()) for each in (read.marks, read.lost_marks))
    return {
        "characters": characters,
        "unknown_characters": unknown,
        "unknown_character_rate": _share(unknown, characters),
        "long_words": read.long_words.total(),
        "clause_character_rate": _share(read.clause_characters.total(), characters),
        "lost_marks": [
            {"script": script.title(), "found": marks[script], "lost": number} for script, number in lost.most_common()
        ],
    }


def describe_pair(example: Example, *, reader: TokenReader) -> dict[str, Any]:
    """Return the row `example` and its first mask set for display, as a dict with the keys `follows` and `tokens`.

    `follows` says whether the second segment follows the first; it is None if there is one segment. `tokens` has a dict
    for each token: its `text`, whether it `joins` the previous token without a space, and, if it is to be predicted,
    `target` (mask, kept or random) and `shown` (the text that the model gets). For [CLS] and closing [SEP], `special`
    is true.
    """
    shown = dict(zip(example.masked_positions, example.masked_inputs, strict=True))
    ends = {0, example.first_length - 1, len(example.input_ids) - 1}
    tokens: list[dict[str, Any]] = []
    texts = reader.read(example.input_ids)
    for position, (index, (text, joins)) in enumerate(zip(example.input_ids, texts, strict=True)):
        token: dict[str, Any] = {"text": text, "joins": joins}
        if position in shown:
            stands = shown[position]
            token["target"] = "mask" if stands == reader.mask else "kept" if stands == index else "random"
            token["shown"] = reader.read([stands])[0][0]
        elif position in ends:
            token["special"] = True
        tokens.append(token)
    return {"follows": None if example.label is None else example.label == NEXT, "tokens": tokens}


class TokenReader:
    """Converts token ids of a WordPiece, BPE or byte-level BPE tokenizer to readable text, without marks such as ##."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.mask = tokenizer.special.mask
        self._tokens = tokenizer.tokens
        self._special = set(tokenizer.special_ids.tolist())
        self._byte_level = decoders.ByteLevel()
        self._kind = (json.loads(tokenizer.backend.to_str())["decoder"] or {}).get("type")

    def read(self, ids: Sequence[int]) -> list[tuple[str, bool]]:
        """Return a pair for each token id in `ids`: the token's text, and whether it joins the previous token without a
        space."""
        texts: list[tuple[str, bool]] = []
        inside = False
        for index in ids:
            token = self._tokens[index]
            if index in self._special:
                texts.append((token, False))
                inside = False
            elif self._kind == "ByteLevel":
                text = self._byte_level.decode([token])
                texts.append((text.removeprefix(" "), not text.startswith(" ")))
            elif self._kind == "BPEDecoder":
                texts.append((token.removesuffix(END_OF_WORD), inside))
                inside = not token.endswith(END_OF_WORD)
            else:
                texts.append((token.removeprefix(PIECE_PREFIX), token.startswith(PIECE_PREFIX)))
        return texts


def _summarize_labels(result: BuildResult, *, bounds: Bounds) -> dict[str, Any]:
    labels = result.count_labels()
    total = labels[NEXT] + labels[NOT_NEXT]
    return {
        "next": labels[NEXT],
        "not_next": labels[NOT_NEXT],
        "not_next_share": _share(labels[NOT_NEXT], total),
        "usual": list(bounds[0]),
        "allowed": list(bounds[1]),
    }


def _by_name(manifest: Manifest, reads: ReadTally, *, config: PipelineConfig) -> list[dict[str, Any]]:
    """Return a dict for each source name: the counts that the manifest has for the source and, under `drops`, how many
    of the source's pages, documents and sentences were left out for each reason."""
    sources = []
    for facts in manifest.statistics["sources"]:
        own = [index for index, source in enumerate(config.sources) if source.display_name == facts["name"]]
        sources.append({**facts, "drops": _count_drops(reads, own)})
    return sources


def _list_reasons(counts: Mapping[str, int], *, reads: ReadTally) -> list[dict[str, Any]]:
    """Return a dict with the keys `reason`, `count` and `examples` for each reason in `counts`, the most frequent
    first. A reason says why pages, documents or sentences were left out, or names another event that was counted."""
    return [
        {
            "reason": reason,
            "count": count,
            "examples": [{"name": name, "detail": detail} for name, detail in reads.examples[reason]],
        }
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def _by_source(reads: ReadTally, *, config: PipelineConfig) -> list[dict[str, Any]]:
    return [
        {
            "kind": source.kind,
            "language": source.language,
            "path": list(source.paths),
            "documents": reads.documents[index],
            "sentences": reads.sentences[index],
            "characters": reads.characters[index],
            "drops": _count_drops(reads, [index]),
        }
        for index, source in enumerate(config.sources)
    ]


def _count_drops(reads: ReadTally, indices: Sequence[int]) -> dict[str, int]:
    drops = sum((reads.drops.get(index, Counter()) for index in indices), Counter[str]())
    return dict(sorted(drops.items()))


def _bin(counts: Counts) -> list[dict[str, int]]:
    """Return the histogram `counts` with fewer bars, at most _BINS. Each bar is a dict. It stands for a range of
    neighbouring indices of `counts`, and has the first index (`from`), the last index (`to`) and the sum of the counts
    in the range (`count`). The ranges are about equally wide."""
    edges = np.linspace(0, counts.size, min(_BINS, counts.size) + 1).astype(int)
    sums = np.add.reduceat(counts, edges[:-1]).tolist()
    return [
        {"from": start, "to": stop - 1, "count": count}
        for start, stop, count in zip(edges[:-1].tolist(), edges[1:].tolist(), sums, strict=True)
    ]


def _double(counts: Counts) -> list[dict[str, int]]:
    """Return the bars of a histogram in which each range is twice as wide as the range before: `counts[b]` counts
    documents of 2^(b-1) to 2^b - 1 tokens. Each bar is a dict with `from` and `to` (the first and last number of
    tokens) and `count`. Empty bars at both ends are left out."""
    found = np.flatnonzero(counts)
    if not found.size:
        return []
    return [
        {"from": 2 ** (digits - 1), "to": 2**digits - 1, "count": int(counts[digits])}
        for digits in range(int(found[0]), int(found[-1]) + 1)
    ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
