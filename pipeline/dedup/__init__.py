"""Finds duplicates and near duplicates: MinHash signatures, band keys, and the documents to drop."""

from pipeline.dedup.duplicates import count_duplicates
from pipeline.dedup.signatures import BandExtent, SignatureWriter, find_matches, read_dropped, write_dropped
