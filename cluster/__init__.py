"""Clusters: values that a user fills in, the files made from them, and commands that start clusters and submit jobs.

`python -m cluster.render` writes every file that names its values file in the first line, `python -m cluster.check`
checks values and files, `python -m cluster.submit` runs jobs, `python -m cluster.local` starts a cluster on this
machine, `python -m cluster.notice` tells Ray that a node will end. pipeline/ and trainer/ import nothing from here.
"""

from pathlib import Path

import pipeline as pipeline  # first of all: it says which package is missing

CLUSTER = Path(__file__).resolve().parent
REPOSITORY = CLUSTER.parent

PREPROCESSING = "preprocessing"
"""Ray resource of nodes without GPUs, one for each CPU. A job that asks for it never starts a GPU node."""
