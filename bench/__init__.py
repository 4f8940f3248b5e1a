"""Benchmarks that anyone can run: `make bench`, or `python -m bench.pipeline [FILE ...]`."""

import pipeline as _pipeline  # first of all: it says which package is missing; bench.pipeline is another
