"""A conversion of pages that goes wrong as their titles tell it to; in a module of its own, for a child to import."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from pipeline.documents import Document, Drop
from pipeline.sources.dumpxml import Page


def convert(page: Page, *, log: str) -> Iterator[Document | Drop]:
    """A document, unless the title says otherwise; `log` names the processes that were asked."""
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {page.title}\n")
    if page.title == "endless":
        time.sleep(600)
    if page.title == "greedy":
        bytearray(8 << 30)
    if page.title == "fatal":
        os._exit(7)
    if page.title == "faulty":
        raise KeyError("ours")
    print("must not reach the parent")
    yield Document(page.title, ("Fine.",))
