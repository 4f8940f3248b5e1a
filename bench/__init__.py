"""Benchmarks that anyone can run: `make bench`, or `python -m bench.pipeline [FILE ...]`."""
