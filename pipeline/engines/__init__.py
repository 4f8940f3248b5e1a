"""Runs a build: on processes of this machine, a Dask cluster, or Ray. `local` loads Beam (2 s), so import it late."""

from pipeline.engines.base import check_engine, choose_workers, open_cluster, watched
from pipeline.engines.cluster import DaskCluster
