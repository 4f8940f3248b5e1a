"""Finds duplicate and nearly duplicate documents (by hash and by MinHash), and chooses which to drop. Also finds
documents that share a passage with evaluation texts."""

from pipeline.dedup.duplicates import Match, count_duplicates
from pipeline.dedup.held_texts import HeldFile, open_runs, short_names, write_runs
from pipeline.dedup.matches import MatchFile, count_parts, join_matches, read_dropped, write_dropped, write_matches
from pipeline.dedup.signatures import BandExtent, BandFile, SignatureWriter, find_bands, find_matches
