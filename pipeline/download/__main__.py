"""`python -m pipeline.download sample DIR`, `wikipedia ...`, `config ...`: fetches the input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import command, exit_with
from pipeline.download import dump
from pipeline.download.sample import USAGE, fetch_sample


@command(goes_on_from="what is fetched")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0 done or nothing to do, 2 refused, 130 or 143 if interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if words[:1] in (["wikipedia"], ["config"]):
        (dump.main if words[0] == "wikipedia" else dump.main_config)(words[1:])
        return 0
    if len(words) != 2 or words[0] != "sample":
        raise ValueError(
            f"expected 'sample DIR', 'wikipedia ... DIR' or 'config ...', got {' '.join(words) or 'nothing'}\n{USAGE}"
        )
    folder = Path(words[1])
    fetched = fetch_sample(folder)
    print(
        f"{folder}: the sample corpus {'is ready' if fetched else 'is complete, nothing to do'}; "
        f"sources and licences: {folder / 'ATTRIBUTION.md'}"
    )
    return 0


if __name__ == "__main__":
    exit_with(main())
