"""Clusters: what a user fills in (values/), what is made from it, and the commands that check it and work with it.

Nothing in pipeline/ or trainer/ imports this. `python -m cluster.render` writes every file that names its values file
in the first line; `python -m cluster.check` judges all of them offline.
"""

from pathlib import Path

CLUSTER = Path(__file__).resolve().parent
REPOSITORY = CLUSTER.parent

PREPROCESSING = "preprocessing"
"""Ray resource that only nodes without GPUs have, one a CPU: what asks for it can never wake a GPU node."""
