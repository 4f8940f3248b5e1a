"""A build of great books in three pieces each that is killed: python killed_shared_build.py COUNT ARGUMENTS...

The COUNT-th batch of pieces' text never reaches the disk.
"""

from __future__ import annotations

import sys

from test_shared_books import GREAT, in_pieces

from killed_build import kill_at
from pipeline import run
from pipeline.build import read_split, recipe

if __name__ == "__main__":
    read_split.GREAT_CHARACTERS = GREAT
    recipe.share_books = in_pieces(3)
    kill_at("pipeline.shuffle.spill", "SpillWriter._flush", count=int(sys.argv[1]))
    sys.exit(run.main(sys.argv[2:]))
