"""Types of texts in values files. Each refuses what the provider would refuse, and says what to give instead.

A text with `fill-in` passes, because the shipped files have it where the user must give a value;
`python -m cluster.check --ready` refuses it.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any

from pydantic import AfterValidator

FILL_IN = "fill-in"
"""The text that marks values that the user must still give."""
_UNFILLED = re.compile(r"fill[-_ ]in", re.IGNORECASE)
_DIRECTION = "(north|south|east|west|central|northeast|northwest|southeast|southwest)"
AWS_REGION = rf"[a-z]{{2,4}}(-[a-z]{{2,4}})?-{_DIRECTION}-\d"
AWS_DOMAIN = r"(amazonaws\.com(\.cn)?|amazonaws\.eu|c2s\.ic\.gov|sc2s\.sgov\.gov|cloud\.adc-e\.uk|csp\.hci\.ic\.gov)"
"""Matches the domain of each partition of AWS (botocore 1.42, data/partitions.json, dnsSuffix)."""
GCP_REGION = rf"(africa|asia|australia|europe|me|northamerica|southamerica|us)-{_DIRECTION}\d{{1,2}}"
PROJECT = r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"
PLAIN = r"[^\s\"'`$\\;&|<>()*?\[\]{}~#!]"
"""Matches a character that means nothing special in a shell script."""


def is_unfilled(text: str) -> bool:
    """Whether `text` still holds the mark `fill-in`, in any spelling."""
    return _UNFILLED.search(text) is not None


def matches(pattern: str, remedy: str, *, example: str = "") -> Any:
    """Return a pydantic validator that refuses a text that `pattern` does not match as a whole. The error says
    `remedy`, which begins with a verb, and gives `example`."""
    advice = f"{remedy}, such as {example}" if example else remedy

    def check(text: str) -> str:
        if is_unfilled(text) and text.isprintable() and not re.search(r"[\s\"'`$\\;&|<>]", text):
            return text
        if not re.fullmatch(pattern, text):
            raise ValueError(advice)
        return text

    return AfterValidator(check)


def _check_image(image: str) -> str:
    """By the grammar of the distribution project (reference/reference.go, release 3.0): lowercase path, then a tag or a
    digest."""
    if is_unfilled(image) and " " not in image:
        return _require_version(image)
    part = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
    host = r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?"
    if not re.fullmatch(rf"{host}{part}(?:/{part})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", image):
        raise ValueError("give HOST/PATH:VERSION, the path in lowercase letters, digits, '.', '_' and '-'")
    _require_version(image)
    if "/" not in image:  # docker would take it for an official image of Docker Hub
        raise ValueError("give HOST/PATH:VERSION, where the nodes fetch it")
    return image


def _require_version(image: str) -> str:
    tag = image.rpartition("/")[2].partition(":")[2]
    if "@sha256:" not in image and tag in ("", "latest"):
        raise ValueError("name a version other than latest, so that all nodes run the same image")
    return image


Image = Annotated[str, AfterValidator(_check_image)]
"""A container image with a version."""
Name = Annotated[
    str,
    matches(
        r"[a-z]([-a-z0-9]{0,28}[a-z0-9])?",
        "give at most 30 lowercase letters, digits and hyphens that begin with a letter and do not end with a hyphen",
    ),
]
"""The name of a cluster. The names of its jobs begin with this name, and KubeRay allows them 47 characters."""
Word = Annotated[str, matches(rf"(?!-){PLAIN}+", "give one word without spaces, quotes or other characters of a shell")]
"""A text that is written without quotes into a shell script."""
Folder = Annotated[
    str,
    matches(
        rf"(?!.*/\.\.?(/|$))(?!/+(tmp|var/tmp|dev|proc|sys|run|etc|boot|s?bin|lib\d*)(/|$))(?=/+[^/])(?!.*:)"
        rf"/({PLAIN}|[ ])*{PLAIN}",
        "give an absolute path without .. and without characters of a shell or :, outside of /tmp and system folders",
        example="/shared/cloze",
    ),
]
"""A folder on the nodes, written in double quotes into a shell script."""

AwsRegion = Annotated[str, matches(AWS_REGION, "give an AWS region", example="us-east-1")]
AwsZone = Annotated[
    str,
    matches(
        rf"{AWS_REGION}((-[a-z]{{3}}-\d)?[a-z]|-wl\d-[a-z]{{3}}-wlz-\d)",
        "give an availability zone",
        example="us-east-1a",
    ),
]
Subnet = Annotated[
    str, matches(r"subnet-([0-9a-f]{17}|[0-9a-f]{8})", "give the ID of a subnet", example="subnet-0123456789abcdef0")
]
SecurityGroup = Annotated[
    str, matches(r"sg-([0-9a-f]{17}|[0-9a-f]{8})", "give the ID of a security group", example="sg-0123456789abcdef0")
]
InstanceProfile = Annotated[
    str,
    matches(
        r"arn:aws(-[a-z]+)*:iam::\d{12}:instance-profile/[\w+=,.@/-]+",
        "give the ARN of an instance profile (not of a role)",
        example="arn:aws:iam::123456789012:instance-profile/cloze-head",
    ),
]
MachineImage = Annotated[
    str,
    matches(
        r"ami-([0-9a-f]{17}|[0-9a-f]{8})|resolve:ssm:[\w./-]+(:\d+)?",
        "give an AMI or resolve:ssm:NAME",
        example="ami-0123456789abcdef0",
    ),
]
EcrHost = Annotated[
    str,
    matches(
        rf"\d{{12}}\.dkr\.ecr\.{AWS_REGION}\.{AWS_DOMAIN}",
        "give the host of an ECR registry, without https:// and without a path",
        example="123456789012.dkr.ecr.us-east-1.amazonaws.com",
    ),
]
FsxHost = Annotated[
    str,
    matches(
        rf"fs-[0-9a-f]{{8,}}\.fsx\.{AWS_REGION}\.{AWS_DOMAIN}",
        "give the DNS name that FSx shows",
        example="fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
    ),
]
FsxMount = Annotated[
    str, matches(r"[A-Za-z0-9_-]{1,8}", "give the mount name that FSx shows, at most 8 letters and digits")
]
Reservation = Annotated[
    str, matches(r"cr-[0-9a-f]{17}", "give the ID of a capacity reservation", example="cr-0123456789abcdef0")
]
PlacementGroup = Annotated[
    str, matches(rf"{PLAIN}{{1,255}}", "give the name of a placement group that exists", example="cloze")
]
GcpProject = Annotated[str, matches(PROJECT, "give the ID of a project (not its name or number)", example="my-project")]
GcpRegion = Annotated[str, matches(GCP_REGION, "give a region of Google Cloud", example="us-central1")]
GcpZone = Annotated[str, matches(rf"{GCP_REGION}-(ai\d)?[a-z]", "give a zone of Google Cloud", example="us-central1-a")]
Subnetwork = Annotated[
    str,
    matches(
        rf"projects/{PROJECT}/regions/{GCP_REGION}/subnetworks/[a-z]([-a-z0-9]{{0,61}}[a-z0-9])?",
        "give a subnetwork as projects/P/regions/R/subnetworks/S",
    ),
]
ServiceAccount = Annotated[
    str,
    matches(
        r"[a-z0-9-]+@([a-z0-9.-]+\.iam|developer|appspot)\.gserviceaccount\.com",
        "give the e-mail address of a service account",
        example="cloze@my-project.iam.gserviceaccount.com",
    ),
]
GcpImage = Annotated[
    str,
    matches(
        rf"projects/{PROJECT}/global/images/(?!family/)[a-z]([-a-z0-9]{{0,61}}[a-z0-9])?",
        "name one image and no family, whose newest image changes, as projects/P/global/images/NAME",
    ),
]
GcpRegistry = Annotated[
    str,
    matches(
        r"([a-z0-9-]+-docker\.pkg\.dev|([a-z]+\.)?gcr\.io)",
        "give the host of an Artifact Registry, without https:// and without a path",
        example="us-central1-docker.pkg.dev",
    ),
]
User = Annotated[
    str, matches(r"(?!root$)[A-Za-z_][A-Za-z0-9_.-]{0,31}", "give the name of a user other than root", example="ubuntu")
]
KeyFile = Annotated[
    str,
    matches(
        rf"(~/|/)({PLAIN}|[ ])*(?<!\.(?i:pub))(?<!/)",
        "give the file of the private key (not of the public key) as ~/FILE or as an absolute path",
        example="~/.ssh/id_ed25519",
    ),
]
Interface = Annotated[
    str,
    matches(
        r"\^?=?[A-Za-z0-9_.:-]{1,15}(,[A-Za-z0-9_.:-]{1,15})*",
        "give names of network cards with commas between them, and ^ in front to leave them out",
        example="^lo,docker0",
    ),
]
"""A value of NCCL_SOCKET_IFNAME: names or their beginnings, after = whole names, after ^ those to leave out (NCCL 2.30,
src/os/linux.cc). The kernel's names of network cards have at most 15 characters."""


LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
"""Matches a part of a host's name (RFC 1123, section 2.1)."""

LOCALHOST = re.compile(r"(?i)(.*\.)?localhost(\.localdomain|6?)?|ip6-(localhost|loopback)")
"""Matches names of this machine itself (RFC 6761, section 6.3, and the names in the /etc/hosts of distributions)."""


def _check_host(host: str) -> str:
    advice = (
        "give the name or address by which all hosts reach this host, without user and port, such as gpu1.example.org"
    )
    if is_unfilled(host) and re.fullmatch(r"[\w.-]+", host):
        return host
    if re.fullmatch(r"[0-9.]+|.*:.*", host):
        try:
            address = ip_address(host)
        except ValueError:
            raise ValueError(advice) from None
        if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
            raise ValueError(advice)
        if str(address) == "255.255.255.255":
            raise ValueError(advice)
    elif LOCALHOST.fullmatch(host) or not re.fullmatch(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*", host):
        raise ValueError(advice)
    return host


Host = Annotated[str, AfterValidator(_check_host)]
"""Name or address of a host."""


def _check_export(export: str) -> str:
    host, _, share = export.partition(":/")
    try:
        _check_host(host)
    except ValueError:
        share = " "
    if ":/" not in export or not re.fullmatch(rf"(?!/)(?!(.*/)?\.\.?(/|$)){PLAIN}+", share):
        raise ValueError("give the share of Filestore as HOST:/SHARE, such as 10.0.0.2:/shared")
    return export


NfsExport = Annotated[str, AfterValidator(_check_export)]
"""A share of an NFS server."""
Infra = Annotated[
    str,
    matches(
        r"(\*|[a-z][a-z0-9-]*)(/[^\s/]+){0,2}|(k8s|kubernetes)/\S+",
        "give CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE",
        example="aws/us-east-1",
    ),
]
Accelerators = Annotated[
    str,
    matches(r"(?!.*\dO)[A-Za-z0-9._-]+:\d+", "give the GPUs of a node as NAME:COUNT (0, not O)", example="H100:8"),
]
