"""report.html: what a build read, left out and wrote, on one page without any other file (inline SVG and CSS).

It shows counts that the manifest holds too, and a few rows as text, so that a person sees what the model will see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import yaml

from pipeline.manifest import Manifest, SplitName
from pipeline.tally import Counts, Example, ReadTally, RowTally

_BINS = 32
_TOP_TOKENS = 20
_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --bar: #2f6fb3; --paper: #ffffff; --mark: #ffe3a3; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 62rem; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note, td.note, figcaption { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1rem; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .6rem 1rem; min-width: 7rem; }
.tile b { display: block; font-size: 1.3rem; } .tile span { color: var(--soft); font-size: .85rem; }
.pair { border-left: 3px solid var(--line); padding-left: .9rem; margin: 1rem 0; overflow-wrap: anywhere; }
.pair mark { background: var(--mark); padding: 0 .15rem; border-radius: 3px; } .pair small { color: var(--soft); }
.sep { color: var(--soft); } pre { background: #f5f7f9; padding: .8rem; overflow-x: auto; font-size: .85rem; }
figure { margin: .5rem 0; }
"""


def render_report(
    manifest: Manifest, *, read: ReadTally, rows: Mapping[SplitName, RowTally], tokens: Sequence[str]
) -> str:
    """The whole page. `tokens` is the vocabulary in the order of ids."""
    train = rows["train"]
    parts = [
        _head(manifest),
        "<h2>What it holds</h2>",
        _facts(manifest.statistics["splits"]),
        "<h2>What was read</h2>",
        _sources(manifest.statistics["sources"]),
        "<h2>What was left out</h2>",
        _drops(manifest.drops, read.examples),
        *_notes(manifest.statistics["notes"], read.examples),
        "<h2>Length of rows</h2>",
        _histogram(train.lengths, caption="Training rows by number of tokens, special tokens included."),
        "<h2>Masking</h2>",
        _masking(manifest.statistics["splits"]["train"], mask_sets=manifest.mask_sets),
        "<h2>Five pairs</h2>",
        '<p class="note">With the first mask set. Marked: the tokens to predict; [MASK] stands in their place unless '
        "an arrow says what does.</p>",
        *[render_pair(example, tokens=tokens, mask_id=manifest.special.mask) for example in train.examples],
        "<h2>Vocabulary</h2>",
        _vocabulary(train, tokens=tokens),
        "<h2>Settings</h2>",
        f"<pre>{escape(yaml.safe_dump(manifest.config, sort_keys=False, allow_unicode=True))}</pre>",
        f'<p class="note">Versions: {escape(", ".join(f"{k} {v}" for k, v in sorted(manifest.versions.items())))}</p>',
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Data report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _head(manifest: Manifest) -> str:
    documents = sum(split["documents"] for split in manifest.statistics["splits"].values())
    tiles = {
        "documents": f"{documents:,}",
        "training rows": f"{manifest.num_rows('train'):,}",
        "training tokens": f"{manifest.num_tokens('train'):,}",
        "validation rows": f"{manifest.num_rows('validation'):,}",
        "shards": f"{len(manifest.shards):,}",
        "vocabulary": f"{manifest.vocabulary_size:,}",
        "mask sets": f"{manifest.mask_sets:,}",
    }
    shown = "".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in tiles.items())
    return (
        f"<h1>Sentence pairs for BERT pretraining</h1>\n"
        f'<p class="note">Data set {manifest.hash[:16]}, at most {manifest.max_seq_length} tokens a row</p>\n'
        f'<div class="tiles">{shown}</div>'
    )


def _facts(splits: Mapping[str, Mapping[str, Any]]) -> str:
    facts = (
        ("documents", "documents"),
        ("sentences", "sentences"),
        ("words", "words"),
        ("tokens of text", "document_tokens"),
        ("rows", "rows"),
        ("tokens in rows, specials included", "tokens"),
        ("mean tokens a row", "mean_length"),
        ("fill (share of the longest row)", "fill"),
        ("rows whose second segment does not follow", "not_next_rate"),
        ("share of tokens to predict", "mask_rate"),
        ("unknown tokens ([UNK])", "unknown_rate"),
    )
    header = "".join(f'<th class="number">{escape(name)}</th>' for name in splits)
    lines = [
        f"<tr><td>{escape(label)}</td>"
        + "".join(f'<td class="number">{_number(key, split[key])}</td>' for split in splits.values())
        + "</tr>"
        for label, key in facts
    ]
    return f"<table><tr><th></th>{header}</tr>{''.join(lines)}</table>"


def _number(key: str, value: int | float | None) -> str:
    if value is None:
        return "none"
    if key == "mean_length":
        return f"{value:.1f}"
    if isinstance(value, float):
        return f"{100 * value:.3f}%" if key == "unknown_rate" else f"{100 * value:.1f}%"
    return f"{value:,}"


def _sources(sources: Sequence[Mapping[str, Any]]) -> str:
    columns = ("documents", "sentences", "characters", "dropped_by_weight", "rows", "tokens")
    lines = [
        f"<tr><td>{escape(source['name'])} ({escape(source['kind'])}, {escape(source['language'])})</td>"
        f'<td class="number">{source["weight"]:g}</td>'
        + "".join(f'<td class="number">{source[key]:,}</td>' for key in columns)
        + "</tr>"
        for source in sources
    ]
    names = ("weight", "documents", "sentences", "characters", "dropped by weight", "training rows", "tokens in them")
    header = "".join(f'<th class="number">{name}</th>' for name in names)
    return f"<table><tr><th>source</th>{header}</tr>{''.join(lines)}</table>"


def _notes(notes: Mapping[str, int], examples: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    return ["<h2>What was noted</h2>", _drops(notes, examples)] if notes else []


def _drops(drops: Mapping[str, int], examples: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    if not drops:
        return "<p>Nothing was left out.</p>"
    lines = []
    for reason, count in sorted(drops.items(), key=lambda item: (-item[1], item[0])):
        shown = "; ".join(f"{name}: {detail}" if detail else name for name, detail in examples.get(reason, ()))
        lines.append(
            f'<tr><td>{escape(reason.replace("_", " "))}</td><td class="number">{count:,}</td>'
            f'<td class="note">{escape(shown)}</td></tr>'
        )
    header = '<tr><th>reason</th><th class="number">count</th><th>for example</th></tr>'
    return f"<table>{header}{''.join(lines)}</table>"


def _histogram(lengths: Counts, *, caption: str) -> str:
    edges = np.linspace(0, lengths.size, min(_BINS, lengths.size) + 1).astype(int)
    heights = np.add.reduceat(lengths, edges[:-1])
    width, height, left, bottom = 860, 220, 60, 24
    tallest = max(1, int(heights.max()))
    step = (width - left) / heights.size
    bars = "".join(
        f'<rect x="{left + index * step + 1:.1f}" y="{(height - bottom) * (1 - value / tallest):.1f}" '
        f'width="{step - 2:.1f}" height="{(height - bottom) * value / tallest:.1f}" fill="#2f6fb3">'
        f"<title>{edges[index]} to {edges[index + 1] - 1} tokens: {value:,} rows</title></rect>"
        for index, value in enumerate(heights.tolist())
    )
    ticks = "".join(
        f'<text x="{left + index * step:.1f}" y="{height - 6}" font-size="12" fill="#5b6675">{edges[index]}</text>'
        for index in range(0, heights.size, max(1, heights.size // 8))
    )
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(caption)}" width="100%">'
        f'<text x="0" y="12" font-size="12" fill="#5b6675">{tallest:,}</text>'
        f'<line x1="{left}" x2="{width}" y1="{height - bottom}" y2="{height - bottom}" stroke="#dfe4ea"/>{bars}{ticks}'
        f"</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _masking(train: Mapping[str, Any], *, mask_sets: int) -> str:
    shares = train["masked_as"]
    total = max(1, sum(shares.values()))
    names = {"mask": "shown as [MASK]", "kept": "kept as they are", "random": "shown as another token"}
    lines = "".join(
        f'<tr><td>{names[kind]}</td><td class="number">{count:,}</td>'
        f'<td class="number">{100 * count / total:.1f}%</td></tr>'
        for kind, count in shares.items()
    )
    return (
        f'<table>{lines}</table><p class="note">Positions to predict in the training rows, over {mask_sets} mask '
        "set(s). A random token that happens to be the right one counts as kept.</p>"
    )


def render_pair(example: Example, *, tokens: Sequence[str], mask_id: int) -> str:
    """A row as text: words joined from their "##" pieces, targets marked, with what stands in their place."""
    masked = dict(zip(example.masked_positions, example.masked_inputs, strict=True))
    parts = []
    for position, index in enumerate(example.input_ids):
        is_piece = tokens[index].startswith("##")
        text = escape(tokens[index].removeprefix("##"))
        if position in masked:
            stands = masked[position]
            change = (
                ""
                if stands == mask_id
                else f"<small> &rarr; {'kept' if stands == index else escape(tokens[stands])}</small>"
            )
            text = f"<mark>{text}{change}</mark>"
        elif position in (0, example.first_length - 1, len(example.input_ids) - 1):
            text = f'<span class="sep">{text}</span>'
        parts.append(text if is_piece else f" {text}")
    verdict = {0: "the second segment follows the first", 1: "the second segment does not follow", None: "one segment"}
    return f'<div class="pair">{"".join(parts)}<br><small>{verdict[example.label]}</small></div>'


def _vocabulary(train: RowTally, *, tokens: Sequence[str]) -> str:
    used = int(np.count_nonzero(train.token_counts))
    top = np.argsort(-train.token_counts, kind="stable")[:_TOP_TOKENS]
    shown = ", ".join(f"{escape(tokens[index])} ({train.token_counts[index]:,})" for index in top.tolist())
    return (
        f"<p>{used:,} of {len(tokens):,} entries stand in the training rows ({100 * used / len(tokens):.1f}%). "
        f'The most frequent: <span class="note">{shown}</span></p>'
    )
