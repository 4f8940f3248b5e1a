"""From documents to masked sentence pairs: segments, pairs, rows, masks, and the number of passes per document."""

from pipeline.instances.bucket import Instances
from pipeline.instances.masking import Masks
from pipeline.instances.mixture import list_passes, passes_of
from pipeline.instances.pairs import NEXT, NOT_NEXT, fewest_documents
from pipeline.instances.repeated_lines import find_repeated_lines
from pipeline.instances.rows import Rows
