"""Writes the text of a data set's README.md: what a user must know, and YAML that `datasets.load_dataset` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from pipeline.dataset import Manifest, SplitName
from pipeline.front_matter import card_languages, render_front_matter
from pipeline.markdown_text import code_block, escape_markdown
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
    """Return the text of the data card (README.md), which depends only on `manifest`."""
    splits: tuple[SplitName, ...] = ("train", "validation")
    present = [split for split in splits if manifest.shards_of(split)]
    front: dict[str, Any] = {
        "language": card_languages(source["language"] for source in manifest.config["sources"]),
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
    names = [f"{number} {escape_markdown(name)}" for number, name in enumerate(manifest.sources)]
    lines = [
        render_front_matter(front).rstrip(),
        "",
        "# Sentence pairs for BERT pretraining",
        "",
        "Built with Cloze. Each row is one unmasked sentence pair with "
        f"{count_of(manifest.mask_sets, 'precomputed mask set')}. `report.html` shows counts and sample rows; "
        "`manifest.json` lists every file with its hash.",
        "",
        "| split | documents | rows | tokens | shards |",
        "|---|---:|---:|---:|---:|",
        *[_split_line(manifest, split) for split in present],
        "",
        "| source | kind | language | weight | documents | training rows | training tokens |",
        "|---|---|---|---:|---:|---:|---:|",
        *map(_source_line, manifest.statistics["sources"]),
        "",
        "| column | content |",
        "|---|---|",
        "| `input_ids` | `[CLS] A [SEP] B [SEP]`, unmasked |",
        "| `num_tokens` | length of `input_ids` |",
        "| `first_length` | tokens of the first segment, including `[CLS]` and `[SEP]` |",
        "| `next_sentence_label` | 0: B follows A; 1: it does not; null: the row has one segment |",
        "| `masked_positions`, `masked_inputs` | for each mask set, the positions to predict and the ids shown there |",
        "| `document_id`, `second_document_id` | hashes of the documents of A and B |",
        "| `pass_number` | pass over the corpus that made the pair |",
        f"| `source` | source of A: {', '.join(names)} |",
        "",
        *_notes(manifest),
        "",
        "The texts keep the licences of their sources. Their content was not reviewed by hand.",
        "",
        "## Settings",
        "",
        *code_block(
            yaml.safe_dump(shown_settings(manifest), sort_keys=False, allow_unicode=True).rstrip(), language="yaml"
        ),
        "",
        f"Vocabulary {manifest.vocabulary_hash[:16]} ({manifest.vocabulary_size:,} entries, in `tokenizer/`), "
        f"data set {manifest.hash[:16]}.",
        "",
    ]
    return "\n".join(lines)


def shown_settings(manifest: Manifest) -> dict[str, Any]:
    """Return the data set's settings as nested dicts, in which vocabulary.size is the real size of the vocabulary, not
    the size that the config asks for."""
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
    name, kind, language = (escape_markdown(source[key]) for key in ("name", "kind", "language"))
    return f"| {name} | {kind} | {language} | {source['weight']:g} | {counts} |"


def _notes(manifest: Manifest) -> list[str]:
    notes = []
    if manifest.shards_of("validation"):
        sources = manifest.config["sources"]
        grouped = any(source["unit"] == "chapter" or source["rows_per_document"] is not None for source in sources)
        together = " (parts of a book together, by the hash of its first part)" if grouped else ""
        notes.append(
            f"Held-out documents were chosen by the hash of their text{together}; none appears in the training rows."
        )
    if manifest.config["mode"] == "reference":
        notes.append("Built with the published algorithm unchanged, one stream of documents a shard.")
    if manifest.next_sentence == "random_document":
        notes.append("A second segment with label 1 comes from another document of the same shard.")
    weights = {source["name"]: source["weight"] for source in manifest.statistics["sources"]}
    if words := manifest.config.get("dictionary_words"):
        notes.append(
            f"Words of {', '.join(words)}, which mask sets cover as a whole, were found by the dictionaries of ICU "
            f"(icu4py {manifest.versions['icu4py']}). The ids do not depend on them."
        )
    if any(weight != 1 for weight in weights.values()):
        notes.append(
            "A source's weight times the number of passes is the mean number of passes over its training documents; "
            "the hash of a document decides whether the fraction adds a pass (below 1: whether it is kept). Held-out "
            "documents are not repeated for a weight above 1. A text found in two sources counts for the one with the "
            "greater weight."
        )
    if manifest.statistics["notes"]:
        notes.append(f"Noted: {_list_reasons(manifest.statistics['notes'])}.")
    notes.append(_describe_text(manifest.statistics["text"]))
    if manifest.drops:
        notes.append(f"Left out: {_list_reasons(dict(sorted(manifest.drops.items())))}.")
    return notes


def _list_reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items())


def _describe_text(text: Mapping[str, str]) -> str:
    """Return a sentence that says how the tokenizer treats case, accents, Hangul and zero-width joiners. `text` (from
    tokenizer.describe_text) maps "case", "accents", "hangul" and "joiners" to one word each."""
    case = {
        "kept": "Cased: capital letters are kept",
        "lowered": "Uncased: letters are lower-cased",
        "lowered_dotted_i": "Uncased: letters are lower-cased as in Turkish (I becomes a dotless i)",
    }[text["case"]]
    hangul = {"syllables": "Hangul syllables are whole", "jamo": "Hangul is split into jamo"}[text["hangul"]]
    return f"{case}, accents are {text['accents']}, {hangul}. Zero-width joiners are {text['joiners']}."


def _size(rows: int) -> str:
    return next((name for limit, name in _SIZES if rows < limit), "n>1B")
