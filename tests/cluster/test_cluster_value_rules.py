"""More planted faults: machines that are of another kind, folders that nodes do not share, numbers and names that
Kubernetes refuses. Beside each rule stand values that it must not refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.render.machines import ARM, GPU_MACHINES, WITH_GPUS
from filled_values import find_faults

TRAIN = "python trainer/run.py --config /shared/c.yaml workers=32"
BUILD = "python pipeline/run.py --config /shared/c.yaml --engine ray ray.resource=preprocessing workers=9"
TOP = "projects/{}/global/images/an-image-v20260801"

PLANTED: list[tuple[str, str, str]] = [
    # (kind, override of the filled-in values, what the message says)
    ("aws", "cpu.machine=m7gd.16xlarge", "cpu.machine=m7gd.16xlarge is an ARM machine, but the images are for x86_64"),
    ("aws", "gpu.machine=p6e-gb200.36xlarge", "gpu.machine=p6e-gb200.36xlarge is an ARM machine"),
    ("aws", "machine_image=resolve:ssm:/aws/service/ami/arm64/latest", "is for ARM, but the images are for x86_64"),
    ("gcp", "cpu.machine=c4a-standard-64", "cpu.machine=c4a-standard-64 is an ARM machine"),
    ("gcp", "head.machine=t2a-standard-8", "head.machine=t2a-standard-8 is an ARM machine"),
    *(
        ("aws", f"gpu.machine={name}", f"gpu.machine={name} has no NVIDIA GPU; take another")
        for name in ("t3.2xlarge", "trn1.32xlarge", "inf2.48xlarge", "dl1.24xlarge", "g4ad.16xlarge", "i7ie.48xlarge")
    ),
    ("gcp", "gpu.machine=c2-standard-60", "gpu.machine=c2-standard-60 has no NVIDIA GPU; take another"),
    ("gcp", "gpu.machine=ct5p-hightpu-4t", "gpu.machine=ct5p-hightpu-4t has no NVIDIA GPU; take another"),
    ("gcp", "filestore=nfs://10.0.0.2/shared", "give the share of Filestore as HOST:/SHARE"),
    ("gcp", "gpu.machine=g2-standard-96", "gpu.cpus=208: a g2-standard-96 has 96; lower it"),
    ("aws", "gpu.machine=g5.12xlarge", "gpu.gpus=8: a g5.12xlarge has 4, and all cost money; give that number"),
    ("aws", "gpu.machine=p6-b300.48xlarge", "efa_interfaces=32: a p6-b300.48xlarge has 16 such network cards"),
    (
        "aws",
        "head_instance_profile=arn:aws-cn:iam::123456789012:instance-profile/a",
        "region=us-east-1 is in the partition aws; make them match",
    ),
    ("aws", "gpu.price_per_hour=0.01", "gpu.price_per_hour=0.01: no such machine costs less than $0.4; give dollars"),
    ("aws", "gpu.spot_price_per_hour=0.25", "gpu.spot_price_per_hour=0.25: no such machine costs less than $0.4"),
    ("gcp", "cpu.price_per_hour=0.03", "cpu.price_per_hour=0.03: no such machine costs less than $0.032"),
    ("aws", "images.training=cloze-training:1", "give HOST/PATH:VERSION, where the nodes fetch it"),
    ("hosts", "image=cloze:1", "give HOST/PATH:VERSION, where the nodes fetch it"),
    ("kubernetes", "images.head=head:1", "give HOST/PATH:VERSION, where the nodes fetch it"),
    *(
        ("gcp", f"{key}={TOP.format(project)}", f"the images of {project} have no docker for a user `ubuntu`")
        for key, project in (("machine_image", "cos-cloud"), ("gpu_machine_image", "ubuntu-os-cloud"))
    ),
    ("hosts", "head_host=GPU1.mine", "gpu1.mine: give each host once"),
    ("hosts", "head_host=head..mine", "give the name or address by which all hosts reach this host"),
    ("hosts", "head_host=169.254.1.1", "give the name or address by which all hosts reach this host"),
    ("hosts", "head_host=255.255.255.255", "give the name or address by which all hosts reach this host"),
    ("hosts", "shared_folder=/tmp/shared", "outside of /tmp and system folders"),
    ("slurm", "repository=/dev/shm/cloze", "outside of /tmp and system folders"),
    ("slurm", f"commands.train={TRAIN} output=/tmp/run", "output=/tmp/run: each node has a folder of its own there"),
    ("slurm", f"commands.train={TRAIN} data=file:///var/tmp/a", "data=file:///var/tmp/a: each node has a folder of"),
    ("slurm", f"commands.train={TRAIN} phases.0.data=sets/a", "phases.0.data=sets/a: give an absolute path"),
    ("slurm", f"commands.preprocess={BUILD} sources.0.path=text", "sources.0.path=text: give an absolute path"),
    ("slurm", f"commands.train={TRAIN} data=/sets/a output=/sets/a", "output=/sets/a is what the job reads"),
    ("slurm", "commands.train=python trainer/run.py --config --fresh workers=32", "give the file of the config after"),
    ("slurm", "commands.train=python trainer/run.py --config workers=32", "--config workers=32: give the file of"),
    ("slurm", "gpu.max_nodes=1000000", "gpu.max_nodes=1000000: Input should be less than or equal to 5000"),
    ("kubernetes", f"commands.train={TRAIN} data=/data/a", "data=/data/a: the nodes share /shared alone; give a path"),
    ("kubernetes", f"commands.train={TRAIN} output=/shared/../a", "output=/shared/../a: the nodes share /shared alone"),
    ("kubernetes", f"commands.preprocess={BUILD} output=/sharedx", "output=/sharedx: the nodes share /shared alone"),
    (
        "kubernetes",
        "commands.train=python trainer/run.py --config /configs/c.yaml workers=32",
        "commands.train: --config=/configs/c.yaml: the nodes share /shared alone; give a path in it",
    ),
    (
        "kubernetes",
        "commands.train=python trainer/run.py --config ~/c.yaml workers=32",
        "--config=~/c.yaml: give an absolute path that all nodes see",
    ),
    ("kubernetes", f"commands.train={TRAIN} start_timeout_s=60", "nodes may take boot_timeout_s=1500 until they are"),
    ("kubernetes", "gpu_devices={amd.com/gpu: 8}", "the images are for NVIDIA's GPUs; set gpu.gpus instead"),
    ("kubernetes", "gpu.memory_gib=100000", "gpu.memory_gib=100000: Input should be less than or equal to 65536"),
    ("kubernetes", "log_folder=/var/log", "log_folder=/var/log/: the nodes share /shared alone"),
    ("kubernetes", "log_folder=/shared/../logs", "the nodes share /shared alone; give a path in it"),
    ("kubernetes", "head.max_nodes=3", "head.max_nodes=3: a cluster has one head; give 1"),
    ("kubernetes", "deadline_hours=600000", "deadline_hours=600000: Input should be less than or equal to 8760"),
    ("kubernetes", "grace_s=100000", "grace_s=100000: Input should be less than or equal to 3600"),
    ("kubernetes", "retries=10000", "retries=10000: Input should be less than or equal to 100"),
    ("kubernetes", "efa_interfaces=1000", "efa_interfaces=1000: Input should be less than or equal to 64"),
    ("kubernetes", "gpu_devices={rdma/hca: 100000}", "Input should be less than or equal to 1000"),
    ("kubernetes", "monitor_labels={release: My Prom}", "monitor_labels.release='My Prom': Kubernetes refuses this"),
    ("kubernetes", "monitor_labels={re lease: a}", "monitor_labels='re lease': Kubernetes refuses this name"),
    ("kubernetes", "gpu_tolerations=[{key: a b}]", "gpu_tolerations.0.key='a b': Kubernetes refuses this name"),
    (
        "kubernetes",
        "cpu_tolerations=[{key: a}, {key: b, operator: Equal, value: x y}]",
        "cpu_tolerations.1.value='x y': Kubernetes refuses this name",
    ),
    ("skypilot", "infra=aws/us-east-1/us-west-2a", "the zone us-west-2a is not in the region us-east-1"),
    ("skypilot", "accelerators=H10O:8", "give the GPUs of a node as NAME:COUNT (0, not O)"),
    ("skypilot", f"command={TRAIN}", "--config /shared/c.yaml: nodes get this checkout alone; give a path relative"),
]


@pytest.mark.parametrize(("kind", "override", "told"), PLANTED)
def test_a_planted_fault_is_refused(tmp_path: Path, kind: str, override: str, told: str) -> None:
    (fault,) = find_faults(tmp_path, kind, override)
    assert fault.startswith(f"{tmp_path}/east.yaml: ")
    assert told in fault


RIGHT = [
    ("aws", "gpu.machine=g6e.48xlarge", "gpu.memory_gib=1500", "efa_interfaces=4"),
    ("aws", "gpu.machine=p6-b300.48xlarge", "gpu.memory_gib=4000", "efa_interfaces=16"),
    (
        *("aws", "gpu.machine=g4dn.xlarge", "gpu.cpus=4", "gpu.memory_gib=16", "gpu.gpus=1", "efa_interfaces=0"),
        *("gpu.price_per_hour=0.526", "gpu.spot_price_per_hour=0.16"),
    ),
    (
        *("aws", "region=cn-north-1", "availability_zone=cn-north-1a", "fsx=null"),
        *(f"{side}_instance_profile=arn:aws-cn:iam::123456789012:instance-profile/a" for side in ("head", "worker")),
    ),
    (
        *("gcp", "gpu.machine=g2-standard-96", "gpu.cpus=96", "gpu.memory_gib=384", "data_networks=[]"),
        f"machine_image={TOP.format('ubuntu-os-cloud-of-mine')}",
    ),
    ("hosts", "network_interface=^=eth0,docker0"),
    ("hosts", "head_host=head-1.a.b", "gpu_hosts.0=fe00::1", "shared_folder=/tmpfs/shared", "image=quay.io/me/a:1"),
    ("slurm", f"commands.train={TRAIN} working_folder=/tmp/work output=s3://runs/a data=file:///runs/x"),
    ("slurm", f"commands.train={TRAIN} output=/runs/a 'phases.0.data=/development/a'", "repository=/devel/cloze"),
    ("slurm", f"commands.preprocess={BUILD} sources.0.path=/texts/a output=/texts/b"),
    ("kubernetes", f"commands.train={TRAIN} data=s3://sets/a output=/shared//runs/a working_folder=/tmp/a"),
    ("kubernetes", f"commands.train={TRAIN.replace('/shared/c.yaml', '/opt/cloze/trainer/configs/sample.yaml')}"),
    ("kubernetes", f"commands.train={TRAIN} start_timeout_s=1501", "gpu.gpus=16", "commands.preprocess=" + BUILD),
    ("kubernetes", "log_folder=/shared/team-a/logs", "gpu_devices={rdma/hca: 8}", "monitor_labels={release: prom-1}"),
    ("kubernetes", "gpu_tolerations=[{key: a.b/c, operator: Equal, value: x_y}, {key: null}]", "deadline_hours=8760"),
    ("skypilot", "infra=gcp/us-central1/us-central1-a", "accelerators=RTXPRO6000:8"),
    ("skypilot", "infra=aws/*/us-east-1a"),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: f"{case[0]}-{case[1][:40]}")
def test_values_beside_the_rules_give_no_alarm(tmp_path: Path, case: tuple[str, ...]) -> None:
    assert find_faults(tmp_path, *case) == []


def test_arm_machines_are_known_by_their_names() -> None:
    """By karpenter-provider-aws (see machines.py), where the rule holds for all 1,363 types; these are one of each
    spelling."""
    arm = "a1.large c6gn.large c7g.metal g5g.xlarge hpc7g.4xlarge i8ge.large im4gn.large m7gd.large r8gb.large t4g.nano"
    x86 = "c7i-flex.large g4dn.xlarge g6e.48xlarge gr6.4xlarge i7ie.large m7a.large p5.48xlarge u7in-16tb.224xlarge"
    assert all(ARM.fullmatch(name) for name in [*arm.split(), "x2gd.large", "p6e-gb200.36xlarge", "a4x-highgpu-4g"])
    assert not any(ARM.fullmatch(name) for name in [*x86.split(), "p6-b200.48xlarge", "a3-highgpu-8g", "c4-standard-8"])
    assert not any(ARM.fullmatch(name) for name in GPU_MACHINES)
    assert all(WITH_GPUS.fullmatch(name) for name in GPU_MACHINES)
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in GPU_MACHINES)
