"""Values for Slurm and SkyPilot, which give a job nodes of its own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, model_validator

from cluster.render import texts
from cluster.render.commands import check_command, names_path
from cluster.render.texts import AWS_REGION, GCP_REGION, is_unfilled
from cluster.render.values import ClusterValues, Commands, Group, Price
from pipeline.storage import is_url

SKY_CLOUDS = (
    *("aws", "azure", "cudo", "fluidstack", "gcp", "hyperbolic", "kubernetes", "lambda", "nebius", "paperspace"),
    *("runpod", "vast", "vsphere"),
)
"""Names of clouds in SkyPilot (sky/skylet/constants.py, ALL_CLOUDS) that have four letters or more. A name like one of
these, but not the same, is a misspelling; other names pass, because SkyPilot learns new clouds."""
SHORT_CLOUDS = ("do", "ibm", "k8s", "oci", "scp", "ssh")
"""The other names of clouds in SkyPilot, which are too short to show a misspelling."""


class SlurmValues(ClusterValues):
    """Values for Slurm, which runs the jobs without containers."""

    account: texts.Word
    """Slurm account of the jobs."""
    partition: texts.Word
    """Partition of the GPU nodes."""
    cpu_partition: texts.Word
    """Partition of the nodes that preprocess."""
    hours: Annotated[int, Field(ge=1, le=8_760)]
    """Time limit of a job in hours. Before the end, the job writes a checkpoint and goes back into the queue."""
    repository: texts.Folder
    """Checkout of this repository on storage that all nodes mount, with `make setup` done there."""
    network_interface: texts.Interface
    """Network card that NCCL uses between the nodes. ^lo,docker0 lets NCCL choose."""
    commands: Commands
    """Commands of the jobs, run from the repository; one line each. Names of environment variables such as
    $SLURM_ARRAY_TASK_ID may stand in them."""
    cpu: Group
    """Nodes that preprocess; the job asks for all max_nodes."""
    gpu: Group
    """Nodes that train; the job asks for all max_nodes."""

    @model_validator(mode="after")
    def _check_commands(self) -> SlurmValues:
        check_command(self.commands.train, key="commands.train", work="train", group=self.gpu, whole=True)
        check_command(self.commands.preprocess, key="commands.preprocess", work="preprocess", group=self.cpu)
        return self


class SkyValues(ClusterValues):
    """Values for SkyPilot."""

    infra: texts.Infra
    """Cloud to use, as CLOUD or CLOUD/REGION."""
    accelerators: texts.Accelerators
    """GPUs of a node, as NAME:COUNT."""
    use_spot: bool
    """Whether to take spot nodes."""
    fast_network: bool = True
    """Whether to ask for the fast network between nodes (EFA, GPUDirect-TCPX, InfiniBand). SkyPilot then takes no cloud
    on which it cannot set up one; for those, give false."""
    max_price_per_hour: Price
    """Greatest price of all nodes together in dollars per hour. SkyPilot takes no machines that cost more."""
    command: str
    """Command of the job, run from the repository. Its data and output must be addresses of an object store."""
    gpu: Group
    """Nodes that train; the job asks for all max_nodes."""

    @model_validator(mode="after")
    def _check(self) -> SkyValues:
        faults = list(self._find_faults())
        if faults:
            raise ValueError("; ".join(faults))
        check_command(self.command, key="command", work="train", group=self.gpu, whole=True)
        return self

    def _find_faults(self) -> Iterator[str]:
        cloud = self.infra.partition("/")[0].lower()
        near = difflib.get_close_matches(cloud, SKY_CLOUDS, n=1)
        if near and cloud not in (near[0], *SHORT_CLOUDS) and not is_unfilled(cloud):
            yield f"infra={self.infra}: SkyPilot knows no cloud {cloud}; did you mean {near[0]}?"
        region = self.infra.partition("/")[2].partition("/")[0]
        known = {"aws": AWS_REGION, "gcp": GCP_REGION}.get(cloud)
        if region not in ("", "*") and known is not None and not re.fullmatch(known, region):
            example = "us-east-1" if cloud == "aws" else "us-east1"
            yield f"infra={self.infra}: {cloud} has no region {region}; give one such as {cloud}/{example}"
        zone = self.infra.partition("/")[2].partition("/")[2]
        inside = rf"{re.escape(region)}(-[a-z0-9-]*[a-z0-9]|[a-z])" if region != "*" else ".*"
        if known is not None and zone not in ("", "*") and not re.fullmatch(inside, zone):
            yield f"infra={self.infra}: the zone {zone} is not in the region {region}; make them match"
        count = self.accelerators.partition(":")[2]
        if count.isdecimal() and int(count) != self.gpu.gpus:
            yield f"accelerators={self.accelerators}, but gpu.gpus={self.gpu.gpus}; make them equal"
        config = re.search(r"--config[ =]+['\"]?((?:/|~|(?:\S*/)?\.\.(?:/|$))\S*)", self.command)
        if config and not is_unfilled(config[1]):
            yield f"command: --config {config[1]}: nodes get this checkout alone; give a path relative to it"
        for word in self.command.split():
            name, _, value = word.strip("'\"").partition("=")
            if names_path(name, work="train") and not is_url(value.strip("'\"")) and "$" not in value:
                yield f"command: {name}={value}: nodes share no disk; give an address of an object store (s3://...)"
