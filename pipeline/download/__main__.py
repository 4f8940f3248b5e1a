"""`python -m pipeline.download`: fetches the sample corpus, a Wikipedia dump, or all dumps of a config."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.console import command, exit_with
from pipeline.download import dump
from pipeline.download.sample import USAGE, fetch_sample


@command(goes_on_from="what is fetched")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 0 on success, 2 for a user error, 130 or 143 if interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--help"], ["-h"]):
        print(USAGE)
        return 0
    if words[:1] == ["wikipedia"]:
        dump.main(words[1:])
    elif words[:1] == ["config"]:
        dump.main_config(words[1:])
    elif len(words) in (2, 3) and words[0] == "sample":
        folder = Path(words[1])
        state = (
            "is ready"
            if fetch_sample(folder, language=words[2] if words[2:] else "en")
            else "is complete, nothing to do"
        )
        print(f"{folder}: the sample corpus {state}; sources and licences: {folder / 'ATTRIBUTION.md'}")
    else:
        found = " ".join(words) or "nothing"
        raise ValueError(f"expected 'sample DIR [LANGUAGE]', 'wikipedia ... DIR' or 'config ...', got {found}\n{USAGE}")
    return 0


if __name__ == "__main__":
    exit_with(main())
