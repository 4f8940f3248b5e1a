"""Values for Ray's launcher (`ray up`): AWS, Google Cloud and existing hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from pydantic import Field, model_validator

from cluster.render import texts
from cluster.render.machines import find_arm, find_excess, find_too_many_cards
from cluster.render.texts import AWS_REGION, GCP_REGION, Image, is_unfilled
from cluster.render.values import Count, Group, Images, Price, ScalingValues
from pipeline.settings import Settings

GROUPS = ("head", "cpu", "gpu")
BARE_PROJECTS = "(cos|ubuntu-os|debian|rocky-linux|rhel|centos|suse|opensuse|fedora-coreos|windows)-cloud"
"""Matches the projects of Google's images of plain operating systems ("Operating system details" in the documentation
of Compute Engine)."""

LEAST_PER_GPU, LEAST_PER_CPU = 0.05, 0.0005
"""Dollars per hour and GPU, or CPU if a machine has no GPUs. A lower price is a slip, with which max_price_per_hour
would not hold. The cheapest machines of EC2 cost eight and four times as much on demand (g5g.xlarge $0.42, t4g.nano
$0.0042: karpenter-provider-aws 1.14.1, pkg/providers/pricing/zz_generated.pricing_aws.go), so spot prices pass."""


class CloudValues(ScalingValues):
    """Values of clusters whose machines cost money by the hour."""

    _machine: ClassVar[tuple[str, str]]
    """A regular expression that matches the provider's machine types, and an example."""

    max_price_per_hour: Price
    """Greatest price of the whole cluster in dollars per hour. Values whose nodes could cost more are refused, so no
    file for `ray up` is made from them."""
    images: Images
    """Container images."""
    head: Group
    """The head, which runs no work."""
    cpu: Group
    """Nodes that preprocess."""
    gpu: Group
    """Nodes that train."""

    @model_validator(mode="after")
    def _check(self) -> CloudValues:
        faults = [*self._find_group_faults(), *self._find_faults()]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _find_faults(self) -> Iterator[str]:
        """Yield a message for each contradiction between values of this kind of cluster."""
        return iter(())

    def _find_group_faults(self) -> Iterator[str]:
        for name in GROUPS:
            group: Group = getattr(self, name)
            yield from find_arm(group, key=name)
            yield from find_excess(group, key=name)
            if not re.fullmatch(self._machine[0], group.machine):
                yield f"{name}.machine={group.machine!r}: give a machine type, such as {self._machine[1]}"
            if group.price_per_hour is None:
                yield f"{name}.price_per_hour is missing: give it, so that max_price_per_hour can hold"
            least = LEAST_PER_GPU * group.gpus or LEAST_PER_CPU * group.cpus
            for key in ("price_per_hour", "spot_price_per_hour"):
                price = getattr(group, key)
                if price is not None and price < least:
                    yield f"{name}.{key}={price:g}: no such machine costs less than ${least:g}; give dollars per hour"
        spot, full = self.gpu.spot_price_per_hour, self.gpu.price_per_hour
        if spot is not None and full is not None and spot > full:
            yield f"gpu.spot_price_per_hour={spot:g} exceeds gpu.price_per_hour={full:g}; give both in dollars per hour"
        prices = greatest_prices(self, spot=False)
        if sum(price.nodes * price.price for price in prices) > self.max_price_per_hour:
            yield (
                f"max_price_per_hour={self.max_price_per_hour:g}: all nodes together cost up to "
                f"{describe_prices(prices)}; lower max_nodes, or raise it"
            )

    def _find_foreign_images(self, *, registry: str, pattern: str) -> Iterator[str]:
        """Yield a message for each image on a private registry (a host that matches `pattern`) that is not `registry`,
        because nodes log in to `registry` alone."""
        for name in ("preprocessing", "training"):
            host = getattr(self.images, name).partition("/")[0]
            if re.fullmatch(pattern, host) and host != registry and not is_unfilled(host + registry):
                yield f"images.{name}: nodes log in to registry={registry}, not to {host}; make them equal"


class NodePrice(NamedTuple):
    """Nodes of one kind and what they cost."""

    nodes: int
    name: str
    price: float
    """Price of one node in dollars per hour."""


def greatest_prices(values: CloudValues, *, spot: bool) -> list[NodePrice]:
    """Return all nodes that the cluster may have at a time. If `spot`, nodes with GPUs are spot machines."""
    price = (values.gpu.spot_price_per_hour if spot else None) or values.gpu.price_per_hour or 0.0
    return [
        NodePrice(1, "head", values.head.price_per_hour or 0.0),
        NodePrice(values.gpu.max_nodes, "gpu", price),
        NodePrice(values.cpu.max_nodes, "cpu", values.cpu.price_per_hour or 0.0),
    ]


def describe_prices(prices: list[NodePrice]) -> str:
    """Return prices as text, such as `$246.40 an hour (1 head x $0.4 + 4 gpu x $55.04 + 8 cpu x $3.23)`."""
    parts = " + ".join(f"{nodes} {name} x ${price:g}" for nodes, name, price in prices)
    return f"${sum(nodes * price for nodes, _, price in prices):,.2f} an hour ({parts})"


class Fsx(Settings):
    """An FSx for Lustre file system."""

    dns_name: texts.FsxHost
    """DNS name of the file system, fs-....fsx.REGION.amazonaws.com."""
    mount_name: texts.FsxMount
    """Mount name of the file system, as FSx shows it."""


class AwsValues(CloudValues):
    """Values for Ray's launcher (`ray up`) on EC2."""

    _machine = (r"[a-z][a-z0-9-]*\.(nano|micro|small|medium|large|\d*xlarge|metal(-\d+xl)?)", "p5.48xlarge")

    region: texts.AwsRegion
    """AWS region."""
    availability_zone: texts.AwsZone
    """Availability zone of the GPU machines."""
    head_subnet: texts.Subnet
    """Public subnet in availability_zone. Only the head has a public address."""
    worker_subnet: texts.Subnet
    """Private subnet in availability_zone, with a NAT gateway, since nodes with several cards get no public address."""
    security_group: texts.SecurityGroup
    """Security group of all nodes. It allows SSH from your address, and all traffic between its members (EFA needs both
    directions)."""
    head_instance_profile: texts.InstanceProfile
    """ARN of an instance profile that may start instances, pass the workers' role and resolve the AMI's name."""
    worker_instance_profile: texts.InstanceProfile
    """ARN of an instance profile that may read the registry and the bucket."""
    machine_image: texts.MachineImage
    """AMI with NVIDIA and EFA drivers and docker. resolve:ssm:NAME stands for the newest AMI of an SSM parameter."""
    registry: texts.EcrHost
    """Host of the container registry that nodes log in to."""
    fsx: Fsx | None = None
    """File system mounted at /shared; if null, give data and output as s3:// addresses."""
    efa_interfaces: Count = 32
    """EFA network cards of a GPU node."""
    placement_group: texts.PlacementGroup | None = None
    """Cluster placement group of the GPU nodes, which puts them near each other. It must exist. If null, EC2 places
    nodes anywhere in the zone."""
    on_demand_fallback: bool = True
    """Whether spot.yaml takes on-demand GPU nodes while EC2 has no spot nodes. They stay until they are idle."""
    capacity_reservation: texts.Reservation | None = None
    """Capacity reservation for on-demand GPU nodes; if null, nodes come from free capacity."""
    capacity_block: bool = False
    """Whether capacity_reservation is a Capacity Block."""

    def _find_faults(self) -> Iterator[str]:
        zone, region = self.availability_zone, self.region
        if not is_unfilled(zone + region) and not zone.startswith(region):
            yield f"availability_zone={zone} is not in region={region}; make them match"
        if self.fsx is not None:
            found = re.search(rf"\.({AWS_REGION})\.", self.fsx.dns_name)
            if found and found[1] != region:
                yield f"fsx.dns_name={self.fsx.dns_name} is not in region={region}; make them match"
        if self.head_subnet == self.worker_subnet and not is_unfilled(self.head_subnet):
            yield f"worker_subnet={self.worker_subnet} is head_subnet too: one is public, one private; give two subnets"
        if self.capacity_block and self.capacity_reservation is None:
            yield "capacity_block=true: capacity_reservation is missing; give the block's ID (cr-...)"
        yield from find_too_many_cards(self.efa_interfaces, key="efa_interfaces=", machine=self.gpu.machine)
        yield from self._find_foreign_images(registry=self.registry, pattern=r"[\w-]+\.dkr\.ecr\..*")
        if "arm64" in self.machine_image:
            yield f"machine_image={self.machine_image} is for ARM, but the images are for x86_64; take another"
        partition = {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region.rpartition("-")[0].rpartition("-")[0], "aws")
        for name in ("head_instance_profile", "worker_instance_profile"):
            found = getattr(self, name).split(":")[1:2]
            if found != [partition] and found[:1] in (["aws"], ["aws-cn"], ["aws-us-gov"]) and "iso" not in region:
                yield f"{name}={getattr(self, name)}: region={region} is in the partition {partition}; make them match"


class GcpValues(CloudValues):
    """Values for Ray's launcher (`ray up`) on Compute Engine."""

    _machine = (r"[a-z]\d?[a-z0-9]*-[a-z0-9]+(-[a-z0-9]+)*", "a3-highgpu-8g")

    project: texts.GcpProject
    """Google Cloud project."""
    region: texts.GcpRegion
    """Google Cloud region."""
    zone: texts.GcpZone
    """Zone of the GPU machines."""
    network: texts.Subnetwork
    """Subnetwork of head and nodes, as projects/P/regions/R/subnetworks/S."""
    data_networks: tuple[texts.Subnetwork, ...] = ()
    """Further subnetworks, one for each data network card of a GPU node."""
    service_account: texts.ServiceAccount
    """Service account of the nodes. It may read the registry and the bucket, and start instances, as the head does."""
    machine_image: texts.GcpImage
    """Image of nodes without GPUs, with docker. Its user `ubuntu` has user id 1000, like the user in the containers;
    each node checks this."""
    gpu_machine_image: texts.GcpImage
    """Image of GPU nodes, with docker, the NVIDIA driver and NVIDIA's container toolkit, and the same user."""
    registry: texts.GcpRegistry
    """Host of the container registry that nodes log in to."""
    filestore: texts.NfsExport | None = None
    """NFS export HOST:/PATH mounted at /shared; if null, give data and output as gs:// addresses."""

    def _find_faults(self) -> Iterator[str]:
        if not is_unfilled(self.zone + self.region) and not self.zone.startswith(f"{self.region}-"):
            yield f"zone={self.zone} is not in region={self.region}; make them match"
        networks = {"network": self.network, **{f"data_networks.{i}": net for i, net in enumerate(self.data_networks)}}
        for key, network in networks.items():
            found = re.search(rf"/regions/({GCP_REGION})/", network)
            if found and found[1] != self.region:
                yield f"{key}={network} is not in region={self.region}; make them match"
            if list(networks.values()).count(network) > 1:
                yield f"{key}={network} is given twice; each card needs a subnetwork of its own network"
        yield from find_too_many_cards(len(self.data_networks), key="data_networks: entries ", machine=self.gpu.machine)
        for name in ("machine_image", "gpu_machine_image"):
            found = re.match(rf"projects/({BARE_PROJECTS})/", getattr(self, name))
            if found:
                yield f"{name}={getattr(self, name)}: the images of {found[1]} have no docker for a user `ubuntu`; " + (
                    "take one of deeplearning-platform-release, or of your own"
                )
        for name in ("preprocessing", "training"):
            image = getattr(self.images, name)
            if re.match(r"[\w.-]+-docker\.pkg\.dev/", image) and image.count("/") < 3:
                yield f"images.{name}={image}: give HOST/PROJECT/REPOSITORY/IMAGE:VERSION"
        yield from self._find_foreign_images(registry=self.registry, pattern=r".*-docker\.pkg\.dev|(.*\.)?gcr\.io")


class HostsValues(ScalingValues):
    """Values for Ray's launcher (`ray up`) on existing hosts."""

    ssh_user: texts.User
    """User on all hosts. This user may run docker, and has user id 1000, like the user in the images."""
    ssh_private_key: texts.KeyFile
    """File of the private key on your machine."""
    head_host: texts.Host
    """Address of the head."""
    cpu_hosts: tuple[texts.Host, ...] = ()
    """Addresses of hosts that preprocess."""
    gpu_hosts: tuple[texts.Host, ...] = Field(min_length=1)
    """Addresses of hosts that train."""
    shared_folder: texts.Folder
    """Folder that all hosts mount; containers see it as /shared."""
    network_interface: texts.Interface
    """Network card that NCCL uses between the GPU hosts. ^lo,docker0 lets NCCL choose."""
    image: Image
    """Training image. Hosts that preprocess use it too."""
    cpu: Group
    """A host that preprocesses."""
    gpu: Group
    """A host that trains."""

    @model_validator(mode="after")
    def _check_hosts(self) -> HostsValues:
        hosts = [host.lower() for host in (self.head_host, *self.cpu_hosts, *self.gpu_hosts)]
        repeated = sorted({host for host in hosts if hosts.count(host) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)}: give each host once, as head_host, in cpu_hosts or in gpu_hosts")
        for name in ("cpu", "gpu"):
            group, count = getattr(self, name), len(getattr(self, f"{name}_hosts"))
            if group.max_nodes != max(1, count):
                raise ValueError(f"{name}.max_nodes={group.max_nodes}, but {name}_hosts has {count}; make them equal")
        return self
