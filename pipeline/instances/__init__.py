"""Turns tokenized documents into masked sentence pairs, and decides in how many passes each document is used."""

from pipeline.instances.bucket import Instances
from pipeline.instances.masking import Masks
from pipeline.instances.mixture import list_passes, passes_of
from pipeline.instances.pairs import fewest_documents
from pipeline.instances.partners import ALONE, UNPAIRED
from pipeline.instances.repeated_lines import find_repeated_lines
from pipeline.instances.rows import Rows
from pipeline.instances.segments import NEXT, NOT_NEXT
from pipeline.instances.shortcuts import (
    FAIL_ABOVE,
    OF_THE_TEXT,
    RULES,
    WARN_ABOVE,
    Shortcut,
    count_shortcuts,
    describe_shortcuts,
    find_telling,
    judge_shortcuts,
)
