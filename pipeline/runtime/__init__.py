"""What the workers of a build share: context, ledger of finished work, failures, progress and scratch folders."""

from pipeline.runtime.command import read_config, read_price
from pipeline.runtime.context import (
    PROGRESS,
    RESULTS,
    SHARDS,
    SPILLS,
    BuildContext,
    local_notes,
    names_runner,
    temporary_below,
)
from pipeline.runtime.failures import (
    FAILURE_NAME,
    choose_kept,
    describe_error,
    leave_failure,
    raise_if_abandoned,
    read_failure,
    report_failure,
)
from pipeline.runtime.ledger import Kind, list_records
from pipeline.runtime.progress import PLAN_NAME, ProgressPrinter, Stage, WorkReport
from pipeline.runtime.scratch import scratch_folder
