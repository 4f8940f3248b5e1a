"""Clusters: values that a user fills in, files made from these values, and commands for clusters and their jobs.

`python -m cluster.render` writes the files from the values. `python -m cluster.check` checks values and files.
`python -m cluster.submit` runs jobs. `python -m cluster.local` starts a cluster on this machine.
`python -m cluster.notice` tells Ray that a node will end, and `python -m cluster.head` ends the jobs of a head.
`python -m cluster.job` runs the command of a RayJob. `python -m cluster.build_images` builds images, and `python -m
cluster.lock` pins what they install. Nothing in pipeline/ and trainer/ imports this package.
"""

from pathlib import Path

import pipeline as pipeline  # first, because it reports which package is missing

CLUSTER = Path(__file__).resolve().parent
REPOSITORY = CLUSTER.parent

IMAGE_FOLDER = "/opt/cloze"
"""Folder of the repository in the images (cluster/images)."""
USER_ID = 1000
"""User id and group id of the user in the images."""

PREPROCESSING = "preprocessing"
"""The name of a Ray resource that nodes without GPUs have, one unit for each CPU. A job that asks for this resource
never starts a GPU node."""
