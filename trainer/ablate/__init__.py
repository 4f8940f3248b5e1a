"""Ablations: pretrains a ladder of models on one budget, fine-tunes each on tasks, and writes one table.

Pretraining, export and fine-tuning are those of trainer.launch, trainer.export and trainer.finetune, each with its own
resume, so a ladder continues where it was stopped. Losses stand beside losses of the same objective and data set only.
"""

from trainer.ablate.command import main
