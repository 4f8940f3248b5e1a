"""README.md of a data set: the front matter that `datasets.load_dataset(OUT)` reads, and what a user must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from pipeline.dataset import Manifest, SplitName
from pipeline.units import count_of

_SIZES = (
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"),
    (10**9, "100M<n<1B"),
)


def render_card(manifest: Manifest) -> str:
    """The card's text; the same for the same manifest."""
    splits: tuple[SplitName, ...] = ("train", "validation")
    present = [split for split in splits if manifest.shards_of(split)]
    front: dict[str, Any] = {
        "language": sorted({source["language"] for source in manifest.config["sources"]}),
        "task_categories": ["fill-mask"],
        "size_categories": [_size(sum(shard.rows for shard in manifest.shards))],
        "tags": ["bert", "pretraining", "masked-language-modeling", "next-sentence-prediction"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"data/{split}-*.parquet"} for split in present],
            }
        ],
    }
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        "# Sentence pairs for BERT pretraining",
        "",
        "Built with Cloze. A row is one sentence pair, stored once and unmasked, with "
        f"{count_of(manifest.mask_sets, 'precomputed mask set')} beside it. `report.html` shows the counts and some "
        "rows; `manifest.json` lists every file with its hash.",
        "",
        "| split | documents | rows | tokens | shards |",
        "|---|---:|---:|---:|---:|",
        *[_split_line(manifest, split) for split in present],
        "",
        "| source | kind | language | weight | documents | training rows | tokens in them |",
        "|---|---|---|---:|---:|---:|---:|",
        *map(_source_line, manifest.statistics["sources"]),
        "",
        "| column | what |",
        "|---|---|",
        "| `input_ids` | `[CLS] A [SEP] B [SEP]`, unmasked |",
        "| `num_tokens` | length of `input_ids` |",
        "| `first_length` | tokens of the first segment, its `[CLS]` and `[SEP]` included |",
        "| `next_sentence_label` | 0: B follows A; 1: it does not; null: there is no pair |",
        "| `masked_positions`, `masked_inputs` | for each mask set the positions to predict and the ids shown there |",
        "| `document_id`, `second_document_id` | hash of the text that A and B come from |",
        "| `pass_number` | which pass over the corpus made the pair |",
        f"| `source` | where A comes from: {', '.join(f'{n} {name}' for n, name in enumerate(manifest.sources))} |",
        "",
        *_notes(manifest),
        "",
        "The texts keep the licences of their sources. Nothing here was reviewed by hand: it holds whatever they held.",
        "",
        "## Settings",
        "",
        "```yaml",
        yaml.safe_dump(shown_settings(manifest), sort_keys=False, allow_unicode=True).rstrip(),
        "```",
        "",
        f"Vocabulary {manifest.vocabulary_hash[:16]} ({manifest.vocabulary_size:,} entries, in `tokenizer/`), "
        f"data set {manifest.hash[:16]}.",
        "",
    ]
    return "\n".join(lines)


def shown_settings(manifest: Manifest) -> dict[str, Any]:
    """The set's settings, with the number of entries that its vocabulary has: a size was for a training."""
    vocabulary = {**manifest.config.get("vocabulary", {}), "size": manifest.vocabulary_size}
    return {**manifest.config, "vocabulary": vocabulary}


def _split_line(manifest: Manifest, split: SplitName) -> str:
    shards = manifest.shards_of(split)
    documents = manifest.statistics["splits"][split]["documents"]
    return (
        f"| {split} | {documents:,} | {manifest.num_rows(split):,} | {manifest.num_tokens(split):,} | {len(shards):,} |"
    )


def _source_line(source: Mapping[str, Any]) -> str:
    counts = " | ".join(f"{source[key]:,}" for key in ("documents", "rows", "tokens"))
    return f"| {source['name']} | {source['kind']} | {source['language']} | {source['weight']:g} | {counts} |"


def _notes(manifest: Manifest) -> list[str]:
    notes = []
    if manifest.shards_of("validation"):
        notes.append(
            "Held-out documents were chosen by the hash of their text; none of them stands in the training rows."
        )
    if manifest.config["mode"] == "reference":
        notes.append("Made by the published algorithm as it is, one stream of documents a shard.")
    if manifest.next_sentence == "random_document":
        notes.append("A second segment that does not follow comes from another document of the same shard.")
    weights = {source["name"]: source["weight"] for source in manifest.statistics["sources"]}
    if any(weight != 1 for weight in weights.values()):
        notes.append(
            "A source's weight times the number of passes is the mean number of passes over its training documents; "
            "what is not whole is made up by hash: below 1 that share of the documents is kept. Held-out documents "
            "are not repeated for a weight above 1. A text that stands in two sources counts for the one of the "
            "greater weight."
        )
    if manifest.statistics["notes"]:
        noted = ", ".join(
            f"{count:,} {reason.replace('_', ' ')}" for reason, count in manifest.statistics["notes"].items()
        )
        notes.append(f"Noted: {noted}.")
    notes.append(_describe_text(manifest.statistics["text"]))
    if manifest.drops:
        dropped = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in sorted(manifest.drops.items()))
        notes.append(f"Left out: {dropped}.")
    return notes


def _describe_text(text: Mapping[str, str]) -> str:
    """Case, accents and Hangul as the tokenizer leaves them."""
    case = {"kept": "Cased: capital letters are kept", "lowered": "Uncased: letters are lower-cased"}[text["case"]]
    hangul = {"syllables": "Hangul syllables are whole", "jamo": "Hangul is taken apart into jamo"}[text["hangul"]]
    return f"{case}, accents are {text['accents']}, {hangul}."


def _size(rows: int) -> str:
    return next((name for limit, name in _SIZES if rows < limit), "n>1B")
