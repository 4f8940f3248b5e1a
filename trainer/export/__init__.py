"""Exports a run as a transformers model: weights, tokenizer and model card."""

from trainer.export.folder import MARKER, export
