"""What machine types of AWS and Google Cloud have, and the faults of values that claim more.

Sources: for AWS, karpenter-provider-aws after 1.14.1 (commit 1d927085), website/content/en/preview/reference/
instance-types.md, which is made from EC2's own list; of its 1,363 types none has more than is said here. For Google
Cloud, "GPU machine types" and "Networking and GPU machines" in the documentation of Compute Engine. A type that is not
here is not compared, so that a new type gives no false alarm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.render.values import Group


class Machine(NamedTuple):
    """What a machine type has."""

    cpus: int
    memory_gib: int
    gpus: int = 0
    cards: int | None = None
    """Network cards for traffic between GPUs: EFA cards on AWS, data cards on Google Cloud. None if not known."""


GPU_MACHINES = {
    "g4dn.2xlarge": Machine(8, 32, 1, 0),
    "g4dn.4xlarge": Machine(16, 64, 1, 0),
    "g4dn.8xlarge": Machine(32, 128, 1, 1),
    "g4dn.12xlarge": Machine(48, 192, 4, 1),
    "g4dn.16xlarge": Machine(64, 256, 1, 1),
    "g4dn.metal": Machine(96, 384, 8, 1),
    "g4dn.xlarge": Machine(4, 16, 1, 0),
    "g5.2xlarge": Machine(8, 32, 1, 0),
    "g5.4xlarge": Machine(16, 64, 1, 0),
    "g5.8xlarge": Machine(32, 128, 1, 1),
    "g5.12xlarge": Machine(48, 192, 4, 1),
    "g5.16xlarge": Machine(64, 256, 1, 1),
    "g5.24xlarge": Machine(96, 384, 4, 1),
    "g5.48xlarge": Machine(192, 768, 8, 1),
    "g5.xlarge": Machine(4, 16, 1, 0),
    "g6.2xlarge": Machine(8, 32, 1, 0),
    "g6.4xlarge": Machine(16, 64, 1, 0),
    "g6.8xlarge": Machine(32, 128, 1, 1),
    "g6.12xlarge": Machine(48, 192, 4, 1),
    "g6.16xlarge": Machine(64, 256, 1, 1),
    "g6.24xlarge": Machine(96, 384, 4, 1),
    "g6.48xlarge": Machine(192, 768, 8, 1),
    "g6.xlarge": Machine(4, 16, 1, 0),
    "g6e.2xlarge": Machine(8, 64, 1, 0),
    "g6e.4xlarge": Machine(16, 128, 1, 0),
    "g6e.8xlarge": Machine(32, 256, 1, 1),
    "g6e.12xlarge": Machine(48, 384, 4, 1),
    "g6e.16xlarge": Machine(64, 512, 1, 1),
    "g6e.24xlarge": Machine(96, 768, 4, 2),
    "g6e.48xlarge": Machine(192, 1536, 8, 4),
    "g6e.xlarge": Machine(4, 32, 1, 0),
    "g7.2xlarge": Machine(8, 32, 1, 0),
    "g7.4xlarge": Machine(16, 64, 1, 0),
    "g7.8xlarge": Machine(32, 128, 1, 1),
    "g7.12xlarge": Machine(48, 192, 2, 1),
    "g7.24xlarge": Machine(96, 384, 4, 1),
    "g7.48xlarge": Machine(192, 768, 8, 2),
    "g7e.2xlarge": Machine(8, 64, 1, 0),
    "g7e.4xlarge": Machine(16, 128, 1, 0),
    "g7e.8xlarge": Machine(32, 256, 1, 1),
    "g7e.12xlarge": Machine(48, 512, 2, 1),
    "g7e.24xlarge": Machine(96, 1024, 4, 2),
    "g7e.48xlarge": Machine(192, 2048, 8, 4),
    "gr6.4xlarge": Machine(16, 128, 1, 0),
    "gr6.8xlarge": Machine(32, 256, 1, 1),
    "p3dn.24xlarge": Machine(96, 768, 8, 1),
    "p4d.24xlarge": Machine(96, 1152, 8, 4),
    "p4de.24xlarge": Machine(96, 1152, 8, 4),
    "p5.4xlarge": Machine(16, 256, 1, 1),
    "p5.48xlarge": Machine(192, 2048, 8, 32),
    "p5e.48xlarge": Machine(192, 2048, 8, 32),
    "p5en.48xlarge": Machine(192, 2048, 8, 16),
    "p6-b200.48xlarge": Machine(192, 2048, 8, 8),
    "p6-b300.48xlarge": Machine(192, 4096, 8, 16),
    "a2-highgpu-1g": Machine(12, 85, 1, 0),
    "a2-highgpu-2g": Machine(24, 170, 2, 0),
    "a2-highgpu-4g": Machine(48, 340, 4, 0),
    "a2-highgpu-8g": Machine(96, 680, 8, 0),
    "a2-megagpu-16g": Machine(96, 1360, 16, 0),
    "a2-ultragpu-1g": Machine(12, 170, 1, 0),
    "a2-ultragpu-2g": Machine(24, 340, 2, 0),
    "a2-ultragpu-4g": Machine(48, 680, 4, 0),
    "a2-ultragpu-8g": Machine(96, 1360, 8, 0),
    "a3-highgpu-1g": Machine(26, 234, 1),
    "a3-highgpu-2g": Machine(52, 468, 2),
    "a3-highgpu-4g": Machine(104, 936, 4),
    "a3-highgpu-8g": Machine(208, 1872, 8, 4),
    "a3-edgegpu-8g": Machine(208, 1872, 8, 4),
    "a3-megagpu-8g": Machine(208, 1872, 8, 8),
    "a3-ultragpu-8g": Machine(224, 2952, 8),
    "a4-highgpu-8g": Machine(224, 3968, 8),
    **{f"g2-standard-{cpus}": Machine(cpus, 4 * cpus, 1) for cpus in (4, 8, 12, 16, 32)},
    **{f"g2-standard-{12 * gpus}": Machine(12 * gpus, 48 * gpus, gpus) for gpus in (2, 4, 8)},
}
"""Maps GPU machine types to what they have."""

NO_EFA_ON_FIRST_CARD = ("p6-b300.48xlarge",)
"""Machine types of AWS whose first network card has no EFA, so that they have one card more than `cards`
(aws/aws-parallelcluster#7143)."""

GIB_PER_CPU = {"c": 2, "m": 4, "r": 8, "highcpu": 2, "standard": 4, "highmem": 8}
"""Greatest memory per CPU, in GiB, of a machine type without GPUs, by the letter of its family (AWS) or by its middle
name (Google Cloud)."""

ARM = re.compile(r"[a-z]+\d+[a-z]*g[a-z]*\..*|a1\..*|p\d+e?-gb\d+\..*|(t2a|c4a|n4a|a4x)-.*")
"""Matches the machine types with ARM processors: on AWS exactly those of the list above."""

WITH_GPUS = re.compile(r"(?!g4ad)(p|g|gr)\d.*\..*|[ag]\d[^.]*-.*")
"""Matches the machine types that have NVIDIA GPUs, of AWS and of Google Cloud, also of generations that are not in the
table. On AWS, g4ad has GPUs of AMD, and the families trn, inf and dl have other accelerators."""

SIZE = re.compile(r"(?!c4\.|d2\.)[a-z][a-z0-9-]*\.((\d*)xlarge|nano|micro|small|medium|large)")
"""Matches the machine types of AWS whose CPUs are bounded by their size: 4 for each `xlarge`, at most 2 for smaller
ones, in all generations without GPUs. c4.8xlarge and d2.8xlarge have 36."""


def find_arm(group: Group, *, key: str) -> Iterator[str]:
    """Yield a message if the machine type of `group` has ARM processors, for which the images are not built. `key` is
    the name of the group in the message."""
    if ARM.fullmatch(group.machine):
        yield f"{key}.machine={group.machine} is an ARM machine, but the images are for x86_64; take another"


def find_machine(name: str) -> Machine | None:
    """Return what the machine type `name` has, or None if it is not known."""
    if name in GPU_MACHINES:
        return GPU_MACHINES[name]
    aws = re.fullmatch(r"(?!c5n)([cmr])(?:[5-9]|\d\d)[a-z-]*\.(\d*)xlarge", name)
    if aws:
        cpus = 4 * int(aws[2] or 1)
        return Machine(cpus, cpus * GIB_PER_CPU[aws[1]])
    google = re.fullmatch(r"(?:n1|n2|n2d|n4|c3|c3d|c4|c4d)-(highcpu|standard|highmem)-(\d+)", name)
    if google:
        cpus = int(google[2])
        return Machine(cpus, cpus * GIB_PER_CPU[google[1]])
    return None


def find_excess(group: Group, *, key: str) -> Iterator[str]:
    """Yield a message for each value of `group` that its machine type does not have. `key` is the name of the group
    (such as gpu) in the messages."""
    machine = find_machine(group.machine)
    if group.gpus and not (machine.gpus if machine else WITH_GPUS.fullmatch(group.machine)):
        yield f"{key}.machine={group.machine} has no NVIDIA GPU; take another"
        return
    if machine is None:
        named = re.fullmatch(
            r"[a-z0-9]+-[a-z]+gpu-(\d+)g", group.machine
        )  # a type of Google Cloud newer than the table
        if named and group.gpus != int(named[1]):
            yield f"{key}.gpus={group.gpus}: a {group.machine} has {named[1]}, and all cost money; give that number"
        size = SIZE.fullmatch(group.machine)
        most = 4 * int(size[2] or 1) if size and size[1].endswith("xlarge") else 2
        if size and not group.gpus and group.cpus > most:
            yield f"{key}.cpus={group.cpus}: a {group.machine} has at most {most}; lower it"
        return
    for name, most in (("cpus", machine.cpus), ("memory_gib", machine.memory_gib)):
        given = getattr(group, name)
        if given > most:
            yield f"{key}.{name}={given}: a {group.machine} has {most}; lower it"
    if group.gpus != machine.gpus:
        yield f"{key}.gpus={group.gpus}: a {group.machine} has {machine.gpus}, and all cost money; give that number"


def find_too_many_cards(count: int, *, key: str, machine: str) -> Iterator[str]:
    """Yield a message, which begins with `key` and `count`, if a machine of type `machine` has fewer network cards than
    `count`."""
    known = find_machine(machine)
    if known is not None and known.cards is not None and count > known.cards:
        yield f"{key}{count}: a {machine} has {known.cards} such network cards; lower it"
