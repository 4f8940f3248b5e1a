"""Decides which rank reads which rows, reads them, and packs them into micro-batches.

Importing this package loads neither torch nor Ray. Ray is loaded only to read data with Ray Data.
"""

from trainer.data.batch_shape import LARGEST_DERIVED_MICRO_BATCH, BatchShape, derive_shape
from trainer.data.held_out import check_held_out
from trainer.data.mask_draws import MaskDraws, read_tokens
from trainer.data.micro_batch import NO_LABEL, MicroBatch, MicroBatchShape
from trainer.data.phases import OpenPhase, Phase, find_start, open_phases, resolve_phases, rows_trained
from trainer.data.plan import PlanError, PlanState, lanes_of
from trainer.data.row_groups import RowGroupError, read_row_group
from trainer.data.stream import MicroBatchStream, Step, validation_plan
