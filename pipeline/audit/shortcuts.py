"""Measures how often shortcuts guess the next-sentence label right (see pipeline/instances/shortcuts.py).

A shortcut is a simple rule that guesses the label without reading the text, for example from the sources of the two
segments.

A row has the id of the document of its second segment, but not the source of that document. The source is looked up in
rows whose first segment is from that document. All rows of a document are in one shard, so every shard can be measured
separately, with 10 bytes of memory a document.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pipeline.audit.blocks import Block, Facts
from pipeline.audit.findings import Findings, Place
from pipeline.audit.following import UInt64s, document_keys
from pipeline.audit.rows import Counts
from pipeline.dataset import Manifest
from pipeline.instances import (
    FAIL_ABOVE,
    WARN_ABOVE,
    Shortcut,
    count_shortcuts,
    describe_shortcuts,
    find_telling,
    judge_shortcuts,
)

_UNKNOWN = "?"


@dataclass(slots=True)
class Sources:
    """Maps the documents of a shard to their sources. First call `add` for every block (rows of a row group), then
    `count` for every block."""

    keys: list[UInt64s] = field(default_factory=list)
    numbers: list[np.ndarray[tuple[int], np.dtype[np.uint16]]] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Record the source of each document that has a first segment in `block`."""
        keys, first = np.unique(document_keys(block.document), return_index=True)
        self.keys.append(keys)
        self.numbers.append(block.source[first].astype(np.uint16))

    def count(self, block: Block, *, facts: Facts, num_sources: int, counts: Counts) -> None:
        """Count the rows of `block` by label and by the class in which each shortcut puts a row, and add the numbers to
        counts.shortcuts. A shortcut is a rule that guesses the next-sentence label without reading the text. How often
        it is right is computed later from the numbers of all shards."""
        if len(self.keys) > 1:
            keys, first = np.unique(np.concatenate(self.keys), return_index=True)
            self.keys, self.numbers = [keys], [np.concatenate(self.numbers)[first]]
        of_first = np.where((block.source >= 0) & (block.source < num_sources), block.source, num_sources)
        second = document_keys(block.second)
        place = np.minimum(np.searchsorted(self.keys[0], second), self.keys[0].size - 1)
        found = np.where(self.keys[0][place] == second, self.numbers[0][place], num_sources).clip(max=num_sources)
        rules = count_shortcuts(
            ids=block.ids,
            offsets=block.offsets,
            first_length=block.first_length,
            label=block.label,
            sources=(of_first, found),
            num_sources=num_sources + 1,
            max_seq_length=facts.max_seq_length,
        )
        for rule, cells in rules.items():
            counts.shortcuts.setdefault(rule, Counter()).update(cells)


def check_shortcuts(totals: Counts, manifest: Manifest, *, facts: Facts, findings: Findings) -> list[Shortcut]:
    """Return the accuracy of each shortcut (a rule that guesses the next-sentence label without reading the text). Add
    the shortcuts that are right too often to `findings`.

    A shortcut with an accuracy above FAIL_ABOVE is a fault. Because BERT's published algorithm is known to leave such
    shortcuts, they are only notes in a data set that this algorithm built. A shortcut with an accuracy between
    WARN_ABOVE and FAIL_ABOVE is always a note. Shortcuts are judged only if the setting `next_sentence` is
    random_document.
    """
    languages = [str(source.get("language", _UNKNOWN)) for source in manifest.statistics.get("sources", [])]
    languages += [_UNKNOWN] * (len(manifest.sources) - len(languages))
    shortcuts = judge_shortcuts(totals.shortcuts, languages=[*languages, _UNKNOWN])
    if not shortcuts:
        return []
    findings.looked("shortcuts", max(each.rows for each in shortcuts))
    findings.by_check["shortcuts"].remark = describe_shortcuts(shortcuts)
    if facts.next_sentence != "random_document":
        return shortcuts
    whole = Place("(all shards)")
    telling, failing = find_telling(shortcuts)
    for found, limit, note in ((telling, WARN_ABOVE, True), (failing, FAIL_ABOVE, facts.published)):
        if found:
            text = f"told without reading by {describe_shortcuts(found)}, above {100 * limit:.0f}%"
            findings.add("shortcuts", whole, text, count=len(found), note=note)
    return shortcuts
