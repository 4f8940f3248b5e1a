"""`python -m pipeline.audit DIR [--json]`: checks that a data set matches its manifest and the rules of its config."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from pipeline.audit.findings import to_data, to_table
from pipeline.audit.run import Audit, audit
from pipeline.console import command, exit_with
from pipeline.units import count_of

_EPILOGUE = """exit status: 0 clean, 1 faults, 2 cannot be read.
Notes are odd but explained: quirks of the published algorithm if the set was built with mode: reference, and short
rows that are identical by chance."""


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Audit a finished data set and print a table of checks."""
    parser = argparse.ArgumentParser("python -m pipeline.audit", description=main.__doc__, epilog=_EPILOGUE)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", metavar="DIR", help="folder or URL of the data set")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--strict", action="store_true", help="exit with 1 for notes too")
    parser.add_argument("--workers", type=int, default=None, help="processes (default: all cores)")
    options = parser.parse_args(arguments)
    found = audit(options.folder, workers=options.workers)
    clean = not found.findings.faults and not (options.strict and found.findings.notes)
    print(json.dumps(_data(found, clean=clean), indent=1) if options.json else _text(found, clean=clean))
    return 0 if clean else 1


def _data(found: Audit, *, clean: bool) -> dict[str, object]:
    facts = {name: getattr(found, name) for name in ("root", "published", "shards", "rows", "tokens")}
    totals = {"clean": clean, "faults": found.findings.faults, "notes": found.findings.notes}
    return {**facts, **totals, "checks": to_data(found.findings)}


def _text(found: Audit, *, clean: bool) -> str:
    quirks = "; quirks of the published algorithm are notes" if found.published else ""
    size = f"{count_of(found.shards, 'shard')}, {count_of(found.rows, 'row')}, {found.tokens:,} tokens"
    head = f"{found.root}: {size}{quirks}"
    verdict = "clean" if clean else "not clean"
    last = f"{verdict}: {count_of(found.findings.faults, 'fault')}, {count_of(found.findings.notes, 'note')}"
    return "\n".join([head, "", to_table(found.findings), "", last])


if __name__ == "__main__":
    exit_with(main())
