"""Runs a build: on processes of this machine, a Dask cluster, or Ray. Importing `local` also imports Beam, which takes
2 s."""

from pipeline.engines.base import check_engine, choose_workers, open_cluster, watched
from pipeline.engines.cluster import DaskCluster
