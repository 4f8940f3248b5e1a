"""Exports a run as a transformers model: weights, tokenizer and model card."""

from trainer.export.folder import DTYPES, ExportError, check_tasks, export, find_checkpoint, read_export_mark
from trainer.export.task_scores import TaskReport, read_task_report
