"""Every benchmark of this machine, one after another; the pipeline's tables go to bench/, others to bench/out/."""

from __future__ import annotations

import sys

from bench import estimate, pipeline


def main() -> int:
    """Run the benchmarks; returns the exit status."""
    return pipeline.main(sys.argv[1:]) or estimate.main([])


if __name__ == "__main__":
    sys.exit(main())
