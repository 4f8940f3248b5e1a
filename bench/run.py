"""Runs the pipeline's benchmarks on this machine: bench.pipeline, which writes its tables to bench/, then
bench.estimate."""

from __future__ import annotations

import sys

from bench import estimate, pipeline


def main() -> int:
    """Run the benchmarks and return the exit status."""
    return pipeline.main(sys.argv[1:]) or estimate.main([])


if __name__ == "__main__":
    sys.exit(main())
