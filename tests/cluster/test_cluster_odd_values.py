"""Odd values: those that no provider takes are refused in plain words, and those that are merely unusual pass."""

from __future__ import annotations

import os
import re
from pathlib import Path

import botocore
import pytest

from cluster import check
from cluster.render import __main__
from cluster.render.texts import AWS_DOMAIN
from filled_values import AWS_ID, filled_text, find_faults, write_set
from pipeline.settings import ConfigError, load_tree, parse_yaml

TRAIN = "python trainer/run.py --config /shared/c.yaml workers=32"
BUILD = "python pipeline/run.py --config /shared/c.yaml --engine ray ray.resource=preprocessing workers=9"
SKY = "python trainer/run.py --config c.yaml data=s3://sets/a output=s3://runs/a workers=32"

PLANTED: list[tuple[str, str, str]] = [
    # (kind, override of the filled-in values, what the message says)
    ("aws", "cpu.machine=t3.nano", "cpu.cpus=64: a t3.nano has at most 2; lower it"),
    ("aws", "cpu.machine=x9iedn.2xlarge", "cpu.cpus=64: a x9iedn.2xlarge has at most 8; lower it"),
    ("aws", "cpu.machine=t3.xlarge", "cpu.cpus=64: a t3.xlarge has at most 4; lower it"),
    ("aws", "availability_zone=us-east-1-atl-2", "give an availability zone"),
    ("aws", "availability_zone=use1-az4", "give an availability zone"),
    ("aws", "gpu.machine=p6-b200.48xlarge", "efa_interfaces=32: a p6-b200.48xlarge has 8 such network cards"),
    ("aws", f"fsx.dns_name=fs-{AWS_ID}.fsx.us-east-1.amazonaws.org", "give the DNS name that FSx shows"),
    ("gcp", "gpu.machine=n1-standard-96", "gpu.machine=n1-standard-96 has no NVIDIA GPU; take another"),
    ("gcp", "filestore=10.0.0.2:/", "give the share of Filestore as HOST:/SHARE"),
    ("gcp", "filestore=10.0.0.2:/../etc", "give the share of Filestore as HOST:/SHARE"),
    *(
        ("hosts", f"head_host={host}", "give the name or address by which all hosts reach this host")
        for host in ("LOCALHOST", "localhost.localdomain", "gpu.localhost", "ip6-localhost", "localhost6")
    ),
    ("hosts", "ssh_private_key=~/.ssh/id_rsa.PUB", "give the file of the private key (not of the public key)"),
    ("hosts", "shared_folder=/mnt/a:b", "give an absolute path without .. and without characters of a shell or :"),
    ("hosts", "shared_folder=/mnt/./a", "give an absolute path without .."),
    ("hosts", "shared_folder=/etc", "outside of /tmp and system folders"),
    ("slurm", f"commands.train={TRAIN} output=/shared/a/../../tmp/x", "each node has a folder of its own there"),
    ("slurm", f"commands.train={TRAIN} output=/shared/./../proc/x", "each node has a folder of its own there"),
    ("slurm", f"commands.train={TRAIN} data=/a output=/a/", "output=/a/ is what the job reads; give another folder"),
    ("slurm", f"commands.train={TRAIN} data=/a//b output=/a/c/../b", "is what the job reads; give another folder"),
    ("slurm", f"commands.train={TRAIN} data=s3://sets/a output=s3://sets/a/", "is what the job reads; give another"),
    ("slurm", f"commands.train={TRAIN} phases.1.data=/a output=file:///a", "is what the job reads; give another"),
    ("slurm", f"commands.preprocess={BUILD} sources.1.path=/a output=/a/", "is what the job reads; give another"),
    ("slurm", f"commands.train={TRAIN} output=${{X", "a shell would act on `$`; give one command without it"),
    ("slurm", f"commands.train={TRAIN} output=${{X%a}}", "a shell would act on `$`; give one command without it"),
    ("slurm", f"commands.train={TRAIN} data=/shared/{{a,b}}", "a shell would act on `{a,b}`; give one command"),
    ("slurm", f"commands.train={TRAIN} seed={{1..3}}", "a shell would act on `{1..3}`; give one command without it"),
    ("slurm", f"commands.train={TRAIN} --help", "remove --help; with it the job does no work"),
    ("slurm", f"commands.train={TRAIN} batch.pairs.x=5", "batch.pairs={'x': 5}: Input should be a valid integer"),
    ("slurm", f"commands.train={TRAIN} .seed=5", "override '.seed=5': write key.sub=value"),
    ("slurm", f"commands.train={TRAIN} batch.=5", "override 'batch.=5': write key.sub=value"),
    ("slurm", f"commands.train={TRAIN} =5", "override '=5': write key.sub=value"),
    ("slurm", f"commands.preprocess={BUILD} sources.a.path=/x", "sources={'a': {'path': '/x'}}: Input should be a"),
    ("kubernetes", "image_pull_secrets=[Cloze]", "image_pull_secrets='Cloze': Kubernetes refuses this name; give"),
    ("kubernetes", "priority_class=a..b", "priority_class='a..b': Kubernetes refuses this name; give"),
    ("kubernetes", "log_folder=s3://a/b", "log_folder='s3://a/b': give a folder in /shared, of letters, digits and"),
    *(
        ("kubernetes", f"gpu_devices={{{name}: 8}}", "give DOMAIN/NAME as the device plugin names it, such as rdma/hca")
        for name in ("hca", "rdma..x/hca", "kubernetes.io/x", "a.kubernetes.io/x", "requests.a/b", "Rdma/hca", "a/b/c")
    ),
    ("skypilot", "infra=aws/us-east-1/us-east-1-", "the zone us-east-1- is not in the region us-east-1"),
    ("skypilot", "infra=aws/us-east-1/us-east-11a", "the zone us-east-11a is not in the region us-east-1"),
    (
        "skypilot",
        f"command={SKY.replace('c.yaml', '../c.yaml')}",
        "nodes get this checkout alone; give a path relative",
    ),
    ("skypilot", f"command={SKY.replace('c.yaml', '~/c.yaml')}", "nodes get this checkout alone; give a path relative"),
    ("skypilot", f"command={SKY.replace('c.yaml', 'a/../../c.yaml')}", "nodes get this checkout alone; give a path"),
    ("skypilot", f"command={SKY} 'phases.0.data=/x'", "phases.0.data=/x: nodes share no disk; give an address"),
    ("skypilot", f"command={SKY} resume_from=/x", "resume_from=/x: nodes share no disk; give an address of an object"),
]


@pytest.mark.parametrize(("kind", "override", "told"), PLANTED)
def test_an_odd_value_is_refused_in_plain_words(tmp_path: Path, kind: str, override: str, told: str) -> None:
    (fault,) = find_faults(tmp_path, kind, override)
    assert fault.startswith(f"{tmp_path}/east.yaml: ")
    assert told in fault
    assert "pattern" not in fault


def in_partition(region: str, domain: str, partition: str) -> tuple[str, ...]:
    """Overrides of the values of AWS for a cluster in another partition of AWS."""
    registry = f"123456789012.dkr.ecr.{region}.{domain}"
    profiles = [
        f"{s}_instance_profile=arn:{partition}:iam::123456789012:instance-profile/a" for s in ("head", "worker")
    ]
    images = [f"images.{name}={registry}/cloze:1" for name in ("training", "preprocessing")]
    fsx = f"fsx.dns_name=fs-{AWS_ID}.fsx.{region}.{domain}"
    return (f"region={region}", f"availability_zone={region}a", f"registry={registry}", fsx, *images, *profiles)


RIGHT: list[tuple[str, ...]] = [
    ("aws", *in_partition("eusc-de-east-1", "amazonaws.eu", "aws-eusc")),
    ("aws", *in_partition("us-iso-east-1", "c2s.ic.gov", "aws-iso")),
    ("aws", *in_partition("cn-north-1", "amazonaws.com.cn", "aws-cn")),
    ("aws", "availability_zone=us-east-1-atl-2a"),
    ("aws", "availability_zone=us-east-1-wl1-bos-wlz-1"),
    ("aws", "cpu.machine=d2.8xlarge", "cpu.cpus=36", "head.machine=t3.large", "head.cpus=2"),
    ("aws", "cpu.machine=u7i-12tb.224xlarge", "cpu.cpus=896", "cpu.memory_gib=12288"),
    ("aws", "gpu.machine=p6-b200.48xlarge", "efa_interfaces=8", "on_demand_fallback=off", "capacity_block=no"),
    ("gcp", "gpu.machine=a4-highgpu-8g", "gpu.cpus=224", "gpu.memory_gib=3968"),
    ("gcp", "gpu.machine=a3-ultragpu-8g", "gpu.cpus=224", "gpu.memory_gib=2952", "filestore=nfs.internal:/vol1/a..b"),
    ("hosts", "ssh_user=First.Last", "network_interface=^=lo,docker0", "head_host=localhost-1.example.org"),
    ("hosts", "shared_folder=/etcetera/a..b/.c", "head_host=xn--mnchen-3ya.de"),
    ("slurm", f"commands.train={TRAIN} output=${{RUNS:-/shared/runs}}/a seed=${{SLURM_ARRAY_TASK_ID}}"),
    ("slurm", f"commands.train={TRAIN} 'output=/shared/{{a,b}}' data=/shared/a"),
    ("slurm", f"commands.train={TRAIN} output=/runs/a/../b data=/runs/a resume_from=/runs/c"),
    ("slurm", f"commands.preprocess={BUILD} sources.0.path=/texts/*.txt output=/texts"),
    ("kubernetes", "gpu_devices={rdma/hca_shared_devices_a: 1, openshift.io/mlxnics: 8, notkubernetes.io/a: 1}"),
    ("kubernetes", "image_pull_secrets=[docker-registry-token-for-the-language-team.v2]", "priority_class=a.b"),
    ("skypilot", "infra=scp/x", f"command={SKY} working_folder=/tmp/x model.initialize_from=gs://a-b/c"),
    ("skypilot", "infra=do/nyc2", f"command={SKY.replace('c.yaml', './my..configs/c.yaml')}"),
    ("skypilot", "infra=aws/us-east-1/us-east-1-atl-2a"),
    ("skypilot", "infra=gcp/us-central1/us-central1-ai1a"),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: f"{case[0]}-{case[1][:40]}")
def test_an_unusual_value_passes(tmp_path: Path, case: tuple[str, ...]) -> None:
    assert find_faults(tmp_path, *case) == []


def test_the_domains_of_all_partitions_of_aws_are_known() -> None:
    partitions = load_tree(Path(botocore.__file__).parent / "data" / "partitions.json")["partitions"]
    domains = {partition["outputs"]["dnsSuffix"] for partition in partitions}
    assert [domain for domain in domains if not re.fullmatch(AWS_DOMAIN, domain)] == []


@pytest.mark.parametrize("text", ["[" * 1000 + "]" * 1000, "{a: " * 1000 + "}" * 1000, "- " * 1000 + "a"])
def test_yaml_nested_too_deeply_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^here: not valid YAML: .* nested too deeply; nest less$"):
        parse_yaml(text, origin="here")


def test_what_is_no_file_in_the_folder_of_a_set_is_passed_over(tmp_path: Path) -> None:
    """Reading a named pipe would wait without end."""
    chosen = write_set(tmp_path, filled_text("slurm"))
    __main__.write(chosen)
    os.mkfifo(chosen.folder / "pipe.yaml")
    (chosen.folder / "folder.yaml").mkdir()
    assert list(check.find_faults([chosen])) == []
    (chosen.folder / "train.sbatch").unlink()
    os.mkfifo(chosen.folder / "train.sbatch")
    faults = list(check.find_faults([chosen]))
    assert any(f"{chosen.folder}/train.sbatch: is no file; remove it" in fault for fault in faults)
    assert len(faults) == 2


def test_a_link_in_the_place_of_a_made_file_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    chosen = write_set(tmp_path, filled_text("slurm"))
    chosen.folder.mkdir()
    (tmp_path / "precious").write_text("mine")
    (chosen.folder / "train.sbatch").symlink_to(tmp_path / "precious")
    __main__.write(chosen)
    assert (tmp_path / "precious").read_text() == "mine"
    assert (chosen.folder / "train.sbatch").stat().st_mode & 0o777 == 0o755
    assert not (chosen.folder / "train.sbatch").is_symlink()
    assert list(check.find_faults([chosen])) == []
