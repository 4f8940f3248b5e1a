"""Finds duplicate and nearly duplicate documents (by hash and by MinHash), and chooses which to drop."""

from pipeline.dedup.duplicates import count_duplicates
from pipeline.dedup.held_texts import HeldFile, open_runs, write_runs
from pipeline.dedup.signatures import BandExtent, SignatureWriter, find_matches, read_dropped, write_dropped
