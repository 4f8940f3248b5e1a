"""Renders report.html: what a build read, left out and wrote, on one self-contained page (inline SVG and CSS).

All that the page shows is taken from report.json (pipeline/output/summary.py), so the two files agree. The page
supports small screens and dark mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import yaml

from pipeline.documents import CLAUSE_CHARACTERS
from pipeline.units import count_of

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe4ea; --bar: #2f6fb3; --paper: #ffffff;
  --mark: #ffe3a3; --box: #f5f7f9; --alarm: #9c3a12; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a0abba; --line: #38414d; --bar: #6aa5e0;
  --paper: #14181e; --mark: #6b5313; --box: #1f252d; --alarm: #ff9d73; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1.5rem auto;
  max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note, td.note, figcaption { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; vertical-align: top; }
td.name { overflow-wrap: anywhere; min-width: 8rem; } td.note { min-width: 14rem; }
tr { border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin-top: 1rem; }
.tile { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .9rem; min-width: 6rem; }
.tile b { display: block; font-size: 1.25rem; } .tile span { color: var(--soft); font-size: .85rem; }
.warning { border-left: 4px solid var(--alarm); padding-left: .8rem; }
.pair { border-left: 3px solid var(--line); padding-left: .9rem; margin: 1rem 0; overflow-wrap: anywhere; }
.pair mark { background: var(--mark); color: inherit; padding: 0 .15rem; border-radius: 3px; }
.pair small, .sep { color: var(--soft); }
pre { background: var(--box); padding: .8rem; overflow-x: auto; font-size: .85rem; }
figure { margin: .5rem 0; max-width: 40rem; } svg { display: block; width: 100%; }
svg rect { fill: var(--bar); } svg text { fill: var(--soft); font-size: 11px; } svg line { stroke: var(--line); }
svg line.cut { stroke: var(--paper); stroke-width: 3; }
@media (max-width: 34rem) { body { margin: .8rem auto; padding: 0 .6rem; } svg text { font-size: 16px; }
  th, td { padding-right: .6rem; } .tile { padding: .4rem .6rem; min-width: 4.5rem; } .tile b { font-size: 1.05rem; } }
"""
_FACTS = (
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
_TALL = 5
"""A chart cuts off its tallest bar if that bar is more than this number of times as tall as the second, so that the
other bars stay visible."""
_SHOWN_AS = {"mask": "shown as [MASK]", "kept": "kept as they are", "random": "shown as another token"}


def render_report(summary: Mapping[str, Any]) -> str:
    """Return the HTML of report.html. `summary` is the content of report.json, as summarize_build returns it."""
    splits = summary["splits"]
    train = splits["train"]
    parts = [
        _head(summary),
        *[f'<p class="warning">{escape(warning)}</p>' for warning in summary["warnings"]],
        "<h2>Contents</h2>",
        _facts(splits),
        "<h2>What was read</h2>",
        _sources(summary["sources"]),
        "<h2>What was left out</h2>",
        _drops(summary["drops"]),
        *_notes(summary["notes"]),
        "<h2>Lengths</h2>",
        _histogram(train["row_lengths"], caption="Training rows by number of tokens, special tokens included"),
        _histogram(train["document_lengths"], caption="Training documents by number of tokens"),
        "<h2>Next sentences</h2>",
        _next_sentence(summary["next_sentence"]),
        "<h2>Masking</h2>",
        _masking(summary["masking"], mask_sets=summary["mask_sets"]),
        "<h2>Five pairs</h2>",
        '<p class="note">Chosen at random (at least two of each label, the same in every build), with the first mask '
        "set. Marked: the tokens to predict; they are replaced by [MASK] unless an arrow shows something else.</p>",
        *[render_pair(pair) for pair in summary["pairs"]],
        "<h2>Vocabulary</h2>",
        _vocabulary(summary["vocabulary"]),
        "<h2>Settings</h2>",
        f"<pre>{_yaml(summary['config'])}</pre>",
        f'<p class="note">Versions: {escape(", ".join(f"{k} {v}" for k, v in summary["versions"].items()))}</p>',
        "<h2>This run</h2>",
        '<p class="note">Everything above depends only on input, settings and seed; this section does not.</p>',
        f"<pre>{_yaml(summary['run'])}</pre>",
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Data report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def render_pair(pair: Mapping[str, Any]) -> str:
    """Return the HTML that shows a row as text, with its tokens joined into words. `pair` comes from
    summary.describe_pair.

    Each token to predict is marked. In most cases the model gets [MASK] in the token's place. If the model gets the
    token itself, the word "kept" follows. If the model gets a random token, that token follows.
    """
    parts = []
    for token in pair["tokens"]:
        text = escape(token["text"])
        if "target" in token:
            shown = {"mask": "", "kept": "kept", "random": escape(token["shown"])}[token["target"]]
            text = f"<mark>{text}{f'<small> &rarr; {shown}</small>' if token['target'] != 'mask' else ''}</mark>"
        elif "special" in token:
            text = f'<span class="sep">{text}</span>'
        parts.append(text if token["joins"] else f" {text}")
    verdict = {True: "the second segment follows the first", False: "the second segment does not follow"}
    return f'<div class="pair">{"".join(parts)}<br><small>{verdict.get(pair["follows"], "one segment")}</small></div>'


def _head(summary: Mapping[str, Any]) -> str:
    splits = summary["splits"]
    tiles = {
        "documents": sum(split["documents"] for split in splits.values()),
        "training rows": splits["train"]["rows"],
        "training tokens": splits["train"]["tokens"],
        "validation rows": splits["validation"]["rows"] if "validation" in splits else 0,
        "shards": summary["shards"],
        "vocabulary": summary["vocabulary"]["size"],
        "mask sets": summary["mask_sets"],
    }
    shown = "".join(f'<div class="tile"><b>{value:,}</b><span>{name}</span></div>' for name, value in tiles.items())
    return (
        f"<h1>Sentence pairs for BERT pretraining</h1>\n"
        f'<p class="note">Data set {summary["data_set"][:16]}, at most {summary["max_seq_length"]} tokens a row</p>\n'
        f'<div class="tiles">{shown}</div>'
    )


def _facts(splits: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[label, *(_number(key, split[key]) for split in splits.values())] for label, key in _FACTS]
    return _table(["", *splits], rows)


def _number(key: str, value: int | float | None) -> str:
    if value is None:
        return "none"
    if key == "mean_length":
        return f"{value:.1f}"
    if isinstance(value, float):
        return _percent(value, digits=3 if key == "unknown_rate" else 1)
    return f"{value:,}"


def _percent(share: float | None, *, digits: int = 1) -> str:
    return "none" if share is None else f"{100 * share:.{digits}f}%"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, notes: Sequence[int] = ()) -> str:
    """Return an HTML table. The first column, and columns whose indices are in `notes`, are left-aligned text; all
    other columns are right-aligned numbers."""

    def cell(tag: str, column: int, text: str) -> str:
        kind = "note" if column in notes else "number" if column else "name"
        return f'<{tag} class="{kind}">{escape(text)}</{tag}>'

    lines = ["".join(cell("th", column, text) for column, text in enumerate(header))]
    lines += ["".join(cell("td", column, text) for column, text in enumerate(row)) for row in rows]
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def _sources(sources: Sequence[Mapping[str, Any]]) -> str:
    columns = ("documents", "sentences", "characters", "rows", "tokens")
    rows = [
        [
            f"{source['name']} ({source['kind']}, {source['language']})",
            f"{source['weight']:g}",
            *(f"{source[key]:,}" for key in columns),
            "; ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in source["drops"].items()),
        ]
        for source in sources
    ]
    names = ("weight", "documents", "sentences", "characters", "training rows", "training tokens")
    return _table(["source", *names, "left out"], rows, notes=(7,))


def _notes(notes: Sequence[Mapping[str, Any]]) -> list[str]:
    return ["<h2>What was noted</h2>", _drops(notes)] if notes else []


def _drops(drops: Sequence[Mapping[str, Any]]) -> str:
    if not drops:
        return "<p>Nothing was left out.</p>"
    rows = []
    for drop in drops:
        shown = "; ".join(
            f"{example['name']}: {example['detail']}" if example["detail"] else example["name"]
            for example in drop["examples"]
        )
        rows.append([drop["reason"].replace("_", " "), f"{drop['count']:,}", shown])
    return _table(["reason", "count", "for example"], rows, notes=(2,))


def _histogram(bins: Sequence[Mapping[str, int]], *, caption: str) -> str:
    heights = [float(part["count"]) for part in bins]
    titles = [f"{part['from']:,} to {part['to']:,} tokens: {part['count']:,}" for part in bins]
    top = f"{int(max(heights, default=0)):,}"
    return _bars(heights, titles=titles, starts=[part["from"] for part in bins], top=top, caption=caption)


def _bars(heights: Sequence[float], *, titles: Sequence[str], starts: Sequence[int], top: str, caption: str) -> str:
    width, height, left, bottom = 420, 150, 8, 16
    first, second = sorted([0.0, 0.0, *heights])[:-3:-1]
    is_cut = second > 0 and first > _TALL * second
    tallest = (1.5 * second if is_cut else first) or 1
    step = (width - left) / max(1, len(heights))
    floor = height - bottom
    shapes = "".join(
        f'<rect x="{left + index * step + 0.5:.1f}" y="{16 + (floor - 16) * (1 - min(value / tallest, 1)):.1f}" '
        f'width="{step - 1:.1f}" height="{(floor - 16) * min(value / tallest, 1):.1f}"><title>{escape(title)}</title>'
        "</rect>"
        for index, (value, title) in enumerate(zip(heights, titles, strict=True))
    )
    ticks = "".join(
        _tick(f"{starts[index]:,}", x=left + (index + 0.5) * step, width=width, y=height - 3)
        for index in range(0, len(starts), max(1, -(-len(starts) // 6)))
    )
    if is_cut:
        x = left + heights.index(first) * step
        shapes += f'<line class="cut" x1="{x:.1f}" x2="{x + step:.1f}" y1="38" y2="32"/>'
        caption += f". The tallest bar is cut: it stands for {top}"
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(caption)}">'
        f'<text x="{left}" y="12">{escape(top)}</text>'
        f'<line x1="{left}" x2="{width}" y1="{floor}" y2="{floor}"/>{shapes}{ticks}'
        f"</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _tick(text: str, *, x: float, width: int, y: int) -> str:
    """Return an SVG label, centred at `x` but moved if it would leave the picture, which is `width` units wide. The
    width of the label is estimated as 10 units for each character."""
    half = 5 * len(text)
    return f'<text x="{min(max(x, half), width - half):.1f}" y="{y}" text-anchor="middle">{text}</text>'


def _next_sentence(facts: Mapping[str, Any]) -> str:
    if facts["not_next_share"] is None:
        return "<p>Rows have one segment and no label.</p>"
    rows = [["follows", f"{facts['next']:,}"], ["does not follow", f"{facts['not_next']:,}"]]
    (low, high), (least, most) = ([_percent(share) for share in facts[key]] for key in ("usual", "allowed"))
    return (
        _table(["second segment", "rows"], rows)
        + f'<p class="note">{_percent(facts["not_next_share"], digits=2)} do not follow, over training and validation; '
        f"{low} to {high} is usual; a build outside {least} to {most} fails.</p>" + _shortcuts(facts["shortcuts"])
    )


def _shortcuts(facts: Mapping[str, Any]) -> str:
    rows = [
        [rule["of"], _percent(rule["accuracy"]), f"{rule['rows']:,}", "yes" if rule["judged"] else "no"]
        for rule in facts["rules"]
    ]
    warn, fail = _percent(facts["warned_above"], digits=0), _percent(facts["failed_above"], digits=0)
    return (
        "<h3>Told without reading</h3>"
        + _table(["best rule by", "right", "of rows", "judged"], rows)
        + '<p class="note">How often the best rule of a kind tells whether the second segment follows, fitted on one '
        "half of the rows and measured on the other; 50% is chance. A build warns above "
        f"{warn} and fails above {fail} for the rules that are judged. Rare words that both segments hold are what a "
        "model should learn from.</p>"
    )


def _masking(facts: Mapping[str, Any], *, mask_sets: int) -> str:
    shares = facts["shown_as"]
    total = max(1, sum(shares.values()))
    shown = [[_SHOWN_AS[kind], f"{count:,}", _percent(count / total)] for kind, count in shares.items()]
    pieces = [
        [
            f"{part['pieces']}{' or more' if part['or_more'] else ''}",
            f"{part['tokens']:,}",
            f"{part['targets']:,}",
            _percent(part["rate"]),
        ]
        for part in facts["by_pieces"]
        if part["tokens"]
    ]
    places = facts["by_position"]
    rates = [part["rate"] or 0.0 for part in places]
    titles = [
        f"positions {part['from']} to {part['to']}: {_percent(part['rate'])} of {part['tokens']:,} tokens"
        for part in places
    ]
    return (
        _table(["targets", "number", "share"], shown)
        + f'<p class="note">Positions to predict in the training rows, over {count_of(mask_sets, "mask set")}. A '
        "random token that equals the original counts as kept.</p>"
        + _table(["pieces of the word", "tokens of text", "targets", "rate"], pieces)
        + '<p class="note">A rate is targets over tokens of text and mask sets. [UNK] is text, but never a target.</p>'
        + _bars(
            rates,
            titles=titles,
            starts=[part["from"] for part in places],
            top=_percent(max(rates, default=0)),
            caption="Rate of targets by position in the row",
        )
    )


def _vocabulary(facts: Mapping[str, Any]) -> str:
    top = ", ".join(f"{entry['token']} ({entry['count']:,})" for entry in facts["most_frequent"])
    per_word = facts["tokens_per_word"]
    lost = ", ".join(f"{each['lost']:,} of {each['found']:,} of {each['script']}" for each in facts["lost_marks"])
    marks = f" Normalisation removes marks that are letters: {escape(lost)}." if lost else ""
    return (
        f"<p>{facts['used']:,} of {facts['entries']:,} entries (without special and unused ones) appear in the "
        f"training rows ({_percent(facts['used_share'])}), {facts['seldom']:,} of them fewer than 10 times. "
        f"{'no' if per_word is None else f'{per_word:.3f}'} tokens a word; {facts['unknown']:,} of "
        f"{facts['text_tokens']:,} tokens of text are [UNK] ({_percent(facts['unknown_rate'], digits=3)}). "
        f"{facts['unknown_characters']:,} of the {facts['characters']:,} characters read are in [UNK] "
        f"({_percent(facts['unknown_character_rate'], digits=3)}), with {count_of(facts['long_words'], 'word')} too "
        f"long for the tokenizer. {_percent(facts['clause_character_rate'])} are in words of more than "
        f"{CLAUSE_CHARACTERS} characters.{marks}</p>"
        f'<p class="note">The most frequent: {escape(top)}</p>'
    )


def _yaml(tree: Mapping[str, Any]) -> str:
    return escape(yaml.safe_dump(dict(tree), sort_keys=False, allow_unicode=True))
