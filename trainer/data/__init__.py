"""Which rows a rank trains on, in which order: plan, packing, reading. Loads neither torch nor Ray."""

from trainer.data.batch_shape import GREATEST_DERIVED_SLOT, BatchShape, derive_shape
from trainer.data.held_out import check_held_out
from trainer.data.micro_batch import NO_LABEL, Slot, SlotShape
from trainer.data.phases import OpenPhase, Phase, find_start, open_phases, resolve_phases, rows_trained
from trainer.data.plan import PlanError, PlanState, lanes_of
from trainer.data.row_groups import BlockError, read_row_group
from trainer.data.stream import SlotStream, Step, validation_plan

__all__ = [
    "GREATEST_DERIVED_SLOT",
    "NO_LABEL",
    "BatchShape",
    "BlockError",
    "OpenPhase",
    "Phase",
    "PlanError",
    "PlanState",
    "Slot",
    "SlotShape",
    "SlotStream",
    "Step",
    "check_held_out",
    "derive_shape",
    "find_start",
    "lanes_of",
    "open_phases",
    "read_row_group",
    "resolve_phases",
    "rows_trained",
    "validation_plan",
]
