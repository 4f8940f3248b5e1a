"""Planted faults: what a user may get wrong is refused with place, value and remedy; what is right gives no alarm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import Loader
from botocore.session import get_session

from cluster import check
from cluster.leaks import find_secrets
from cluster.render import KINDS, __main__, validate_values
from cluster.render.launcher_values import AwsValues
from cluster.render.machines import GPU_MACHINES
from cluster.render.texts import AWS_REGION
from filled_values import AWS_ID, filled_text, filled_tree, find_faults, write_set
from pipeline.settings import ConfigError

TRAIN = "python trainer/run.py --config /shared/c.yaml"
BUILD = "python pipeline/run.py --config /shared/c.yaml --engine ray ray.resource=preprocessing"
SUBNET = "projects/my-project/regions/us-central1/subnetworks/cloze-data-1"

PLANTED: list[tuple[str, str, str]] = [
    # (kind, override of the filled-in values, remedy that the message gives)
    ("aws", "availability_zone=us-west-2a", "is not in region=us-east-1; make them match"),
    ("aws", "availability_zone=us-east-1", "give an availability zone, such as us-east-1a"),
    ("aws", "region=us-esat-1", "give an AWS region, such as us-east-1"),
    ("aws", "head_subnet=vpc-0123456789abcdef0", "give the ID of a subnet, such as subnet-"),
    ("aws", "worker_subnet=subnet-xyz", "give the ID of a subnet, such as subnet-"),
    ("aws", "security_group=default", "give the ID of a security group, such as sg-"),
    (
        "aws",
        "head_instance_profile=arn:aws:iam::123456789012:role/cloze",
        "give the ARN of an instance profile (not of",
    ),
    ("aws", "worker_instance_profile=cloze-worker", "give the ARN of an instance profile (not of a role)"),
    ("aws", "machine_image=ubuntu-22.04", "give an AMI or resolve:ssm:NAME"),
    ("aws", "registry=https://123456789012.dkr.ecr.us-east-1.amazonaws.com", "without https:// and without a path"),
    ("aws", "registry=docker.io", "give the host of an ECR registry"),
    ("aws", "images.training=999999999999.dkr.ecr.us-east-1.amazonaws.com/cloze:1", "make them equal"),
    ("aws", "images.training=123456789012.dkr.ecr.us-east-1.amazonaws.com/Cloze:1", "the path in lowercase letters"),
    ("aws", "images.training=123456789012.dkr.ecr.us-east-1.amazonaws.com/cloze:1 2", "give HOST/PATH:VERSION"),
    ("aws", f"fsx.dns_name=fs-{AWS_ID}.fsx.eu-west-1.amazonaws.com", "is not in region=us-east-1; make them match"),
    ("aws", f"fsx.dns_name=fs-{AWS_ID}", "give the DNS name that FSx shows"),
    ("aws", "fsx.mount_name=/shared/fsx", "give the mount name that FSx shows"),
    ("aws", "efa_interfaces=33", "a p5.48xlarge has 32 such network cards; lower it"),
    ("aws", "capacity_reservation=cr-1", "give the ID of a capacity reservation"),
    ("aws", "capacity_block=true", "capacity_reservation is missing; give the block's ID"),
    ("aws", "gpu.gpus=4", "a p5.48xlarge has 8, and all cost money; give that number"),
    ("aws", "gpu.cpus=256", "a p5.48xlarge has 192; lower it"),
    ("aws", "gpu.memory_gib=4096", "a p5.48xlarge has 2048; lower it"),
    ("aws", "cpu.cpus=128", "a m7i.16xlarge has 64; lower it"),
    ("aws", "cpu.memory_gib=512", "a m7i.16xlarge has 256; lower it"),
    ("aws", "cpu.machine=m7g.16xlarge", "is an ARM machine, but the images are for x86_64; take another"),
    ("aws", "cpu.machine=''", "give a machine type, such as p5.48xlarge"),
    ("aws", "gpu.machine=p5.48xlrage", "give a machine type, such as"),
    ("aws", "head.max_nodes=2", "a cluster has one head; give 1"),
    ("aws", "gpu.max_nodes=40", "lower max_nodes, or raise it"),
    ("aws", "gpu.price_per_hour=null", "gpu.price_per_hour is missing: give it"),
    ("aws", "gpu.spot_price_per_hour=60.5", "exceeds gpu.price_per_hour=55.04; give both in dollars per hour"),
    ("aws", "placement_group='a b'", "give the name of a placement group that exists"),
    ("aws", "max_price_per_hour=0", "Input should be greater than 0"),
    ("aws", "name=Cloze_East", "give at most 30 lowercase letters, digits and hyphens"),
    ("aws", "idle_minutes=10000", "Input should be less than or equal to 60"),
    ("aws", "boot_timeout_s=2000", "the trainer waits only start_timeout_s=1800 by default; set less"),
    ("aws", "gpu.min_nodes=1", "these nodes never stop, and cost money while idle; set 0"),
    ("aws", f"worker_subnet=subnet-{AWS_ID}", "give two subnets"),
    ("aws", "gpu.disk_gib=1", "Input should be greater than or equal to 50"),
    (
        "gcp",
        "images.training=us-central1-docker.pkg.dev/cloze:1",
        "give HOST/PROJECT/REPOSITORY/IMAGE:VERSION",
    ),
    ("gcp", "gpu.machine=a3-highgpu-4g", "a a3-highgpu-4g has 4, and all cost money; give that number"),
    ("gcp", "gpu.machine=a9-megagpu-4g", "a a9-megagpu-4g has 4, and all cost money; give that number"),
    ("hosts", "head_host=10.0.0.300", "give the name or address by which all hosts reach this host"),
    ("hosts", "head_host=0.0.0.0", "give the name or address by which all hosts reach this host"),
    ("hosts", "ssh_user=root", "give the name of a user other than root"),
    ("gcp", "filestore=10.0.0.300:/shared", "give the share of Filestore as HOST:/SHARE"),
    ("hosts", "shared_folder=/", "give an absolute path"),
    ("hosts", "shared_folder=/shared/../x", "give an absolute path without .."),
    ("hosts", "network_interface=eth0,", "give names of network cards with commas between them"),
    ("slurm", "partition=--help", "give one word without spaces, quotes or other characters of a shell"),
    ("slurm", "hours=100000", "Input should be less than or equal to 8760"),
    ("slurm", f"commands.train={TRAIN} workers=32 data=s3://", "no valid bucket name before the first slash"),
    ("slurm", f"commands.train={TRAIN} workers=32 data=abfs://a/b", "this kind of store is not supported; give s3://"),
    ("slurm", f"commands.train={TRAIN} workers=32 device=cpu", "set device=cuda, or what the job holds stays idle"),
    (
        "slurm",
        f"commands.train={TRAIN} workers=32 --config /shared/c.yaml",
        "--config is given more than once; give it",
    ),
    ("skypilot", "infra=aws/us-esat-1", "give one such as aws/us-east-1"),
    ("gcp", "zone=europe-west4-a", "is not in region=us-central1; make them match"),
    ("gcp", "zone=us-central1", "give a zone of Google Cloud, such as us-central1-a"),
    ("gcp", "region=us-centrall1", "give a region of Google Cloud, such as us-central1"),
    ("gcp", "project=My Project", "give the ID of a project (not its name or number)"),
    ("gcp", "network=default", "give a subnetwork as projects/P/regions/R/subnetworks/S"),
    ("gcp", "network=projects/my-project/regions/us-east1/subnetworks/a", "is not in region=us-central1; make them"),
    ("gcp", f"data_networks.1={SUBNET}", "is given twice; each card needs a subnetwork of its own network"),
    ("gcp", f"data_networks=[{', '.join(f'{SUBNET}{n}' for n in range(5))}]", "has 4 such network cards; lower it"),
    ("gcp", "service_account=cloze", "give the e-mail address of a service account"),
    ("gcp", "machine_image=projects/p-roject/global/images/family/common-cpu", "name one image and no family"),
    ("gcp", "gpu_machine_image=my-image", "as projects/P/global/images/NAME"),
    ("gcp", "registry=us-central1-docker.pkg.dev/my-project", "without https:// and without a path"),
    ("gcp", "images.preprocessing=europe-docker.pkg.dev/p/cloze:1", "make them equal"),
    ("gcp", "filestore=/shared", "give the share of Filestore as HOST:/SHARE"),
    ("gcp", "cpu.machine=n2 standard 64", "give a machine type"),
    ("gcp", "gpu.memory_gib=2000", "a a3-highgpu-8g has 1872; lower it"),
    ("hosts", "ssh_user=Root User", "give the name of a user"),
    ("hosts", "ssh_private_key=~/.ssh/id_ed25519.pub", "give the file of the private key (not of the public key)"),
    ("hosts", "head_host=localhost", "give the name or address by which all hosts reach this host"),
    ("hosts", "gpu_hosts.0=me@gpu1", "without user and port"),
    ("hosts", "gpu_hosts.0=gpu1:22", "without user and port"),
    ("hosts", "gpu_hosts.1=gpu1.mine", "give each host once"),
    ("hosts", "gpu.max_nodes=3", "but gpu_hosts has 4; make them equal"),
    ("hosts", "shared_folder=mnt/shared", "give an absolute path"),
    ("hosts", "image=registry/cloze", "name a version other than latest"),
    (
        "slurm",
        "repository=/shared/$(whoami)/cloze",
        "give an absolute path without .. and without characters of a shell",
    ),
    ("slurm", "repository=$HOME/cloze", "give an absolute path without .. and without characters of a shell"),
    ("slurm", "repository=/shared/`id`", "give an absolute path without .. and without characters of a shell"),
    ("slurm", "partition=gpu;rm", "give one word without spaces, quotes or other characters of a shell"),
    ("slurm", "hours=0", "Input should be greater than or equal to 1"),
    ("slurm", f"commands.train={TRAIN} wokers=32", "did you mean 'workers'?"),
    ("slurm", f"commands.train={TRAIN} workers=many", "give 1 to 32, the GPUs of all nodes"),
    ("slurm", f"commands.train={TRAIN} workers=8", "the job holds 4 nodes and uses 1; lower max_nodes"),
    ("slurm", f"commands.train={TRAIN} workers=32 workers=16", "is set 2 times; give it once"),
    ("slurm", f"commands.train={TRAIN} workers=32; reboot", "a shell would act on `;`; give one command without it"),
    ("slurm", f"commands.train={TRAIN} workers=32 > log", "a shell would act on `>`"),
    ("slurm", f"commands.train={TRAIN} workers=$(nproc)", "a shell would act on `$`"),
    ("slurm", f'commands.train={TRAIN} workers=32 "run_name=$(date)"', "a shell would act on `$`"),
    ("slurm", f"commands.train={TRAIN} workers=32 & ", "a shell would act on `&`"),
    ("slurm", f"commands.train={TRAIN} workers=32 # seed=1", "a shell would act on `#`"),
    ("slurm", f"commands.train={TRAIN} 'workers=32", "a shell cannot read it: No closing quotation; close it"),
    ("slurm", f"commands.train={TRAIN} workers=32 --freshh", "did you mean --fresh?"),
    ("slurm", f"commands.train={TRAIN} workers=32 --dry-run", "unknown option --dry-run"),
    ("slurm", f"commands.train={TRAIN} workers=32 data=sets/mine", "give an absolute path that all nodes see"),
    ("slurm", f"commands.train={TRAIN} workers=32 batch.lanes=some", "Input should be a valid integer"),
    ("slurm", f"commands.train={TRAIN} workers=16 min_workers=20", "exceeds workers=16; lower it"),
    ("slurm", f"commands.train={TRAIN} workers=32 launcher=processes", "set launcher=ray, or what"),
    (
        "slurm",
        "commands.train=python trainer/run.py workers=32",
        "add --config FILE; without it the job uses the sample",
    ),
    ("slurm", "commands.train=python trainer/rnu.py workers=32", "begin with `python trainer/run.py`"),
    ("slurm", f"commands.preprocess={BUILD}", "give 1 to 128, the CPUs of all nodes"),
    ("slurm", f"commands.preprocess={BUILD} workers=500", "give 1 to 128, the CPUs of all nodes"),
    ("slurm", f"commands.preprocess={BUILD} workers=9 masking=whole_wrod", "Input should be"),
    ("slurm", "commands.preprocess=python pipeline/run.py --config c.yaml workers=9", "set engine=ray, or what"),
    ("skypilot", "infra=awz", "did you mean aws?"),
    ("skypilot", "accelerators=H100", "give the GPUs of a node as NAME:COUNT"),
    ("skypilot", "accelerators=H100:4", "but gpu.gpus=8; make them equal"),
    ("skypilot", f"command={TRAIN} workers=32 data=/shared/sets", "give an address of an object store"),
    ("kubernetes", "namespace=My_Namespace", "Kubernetes refuses this name; give at most 63 lowercase letters"),
    ("kubernetes", f"namespace={'n' * 64}", "Kubernetes refuses this name; give at most 63"),
    ("kubernetes", "storage_claim=claim/one", "Kubernetes refuses this name; give at most 253"),
    ("kubernetes", "service_account=Cloze", "Kubernetes refuses this name"),
    ("kubernetes", "kueue_queue=-cloze", "Kubernetes refuses this name"),
    ("kubernetes", f"volcano_queue={'q' * 64}", "it is the value of a label; give at most 63 characters"),
    ("kubernetes", "gpu_node_selector={nvidia.com/gpu.product: NVIDIA H100}", "Kubernetes refuses this name"),
    ("kubernetes", "cpu_node_selector={pool/: cpu}", "give PREFIX/NAME or NAME"),
    ("kubernetes", f"commands.train={TRAIN} wokers=32", "did you mean 'workers'?"),
]


@pytest.mark.parametrize(("kind", "override", "remedy"), PLANTED)
def test_a_planted_fault_is_refused_with_place_value_and_remedy(
    tmp_path: Path, kind: str, override: str, remedy: str
) -> None:
    key, _, value = override.partition("=")
    faults = find_faults(tmp_path, kind, override)
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"{tmp_path}/east.yaml: ")
    assert remedy in faults[0]
    assert key.partition(".")[0] in faults[0]
    wrong = value.rpartition(" ")[2] if "command" in key else value.strip("'\"").partition(",")[0]
    if value not in ("null", "true", f"{BUILD}") and not value.startswith(("[", "{")):
        assert all(part[:20] in faults[0] for part in re.split("[='\"]", wrong)), faults[0]


TEXTS: list[tuple[str, str, str, str]] = [
    # (kind, text of the file, what takes its place, what the message says)
    ("aws", "region: us", "regoin: us", "unknown key 'regoin'.*did you mean 'region'"),
    ("aws", "region: us", "region: a\nregion: us", "'region' appears twice"),
    ("aws", "region: us", "  region: us", "line .*: not valid YAML"),
    ("aws", "region: us-east-1", "region: [us-east-1", "line .*: not valid YAML"),
    ("aws", "region: us-east-1", "region: null", "region=None: Input should be a valid string"),
    ("aws", "region: us-east-1\n", "", "'region' is required; set it in the file"),
    ("aws", "  cpus: 64", "  cpus: many", "cpu.cpus='many': Input should be a valid integer"),
    ("aws", "  cpus: 64", "  cpus: 64\n  1: 2", r"east\.yaml: .*1"),
    ("aws", "kind: aws", "kind: awz", "kind='awz': no such kind of cluster; give one of aws, gcp"),
    ("aws", "kind: aws\n", "", "'kind' is required; set it to one of aws, gcp"),
    ("aws", "kind: aws", "kind: [aws]", r"kind=\['aws'\]: no such kind of cluster"),
    ("hosts", "cpu:\n", "cpu: 5\nhead:\n", "cpu=5: Input should be a mapping"),
    ("kubernetes", "service_account: null", "service_account: 5", "service_account=5: Input should be a valid string"),
]


@pytest.mark.parametrize(("kind", "old", "new", "told"), TEXTS)
def test_a_broken_file_is_refused_in_one_line(tmp_path: Path, kind: str, old: str, new: str, told: str) -> None:
    text = filled_text(kind)
    assert old in text
    faults = list(check.find_faults([write_set(tmp_path, text.replace(old, new, 1))]))
    assert len(faults) == 1
    assert faults[0].startswith(f"{tmp_path}/east.yaml")
    assert re.search(told, faults[0])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"- a\n", b"text", b"", b"a: &a [*a]", b"\x00"])
def test_a_file_that_holds_no_values_is_refused(tmp_path: Path, content: bytes) -> None:
    chosen = write_set(tmp_path, "")
    chosen.file.write_bytes(content)
    faults = list(check.find_faults([chosen]))
    assert faults
    assert all(f"{tmp_path}/east.yaml" in fault for fault in faults)


def test_files_that_are_missing_or_misnamed_are_told(tmp_path: Path) -> None:
    chosen = write_set(tmp_path, filled_text("slurm"))
    chosen.file.rename(tmp_path / "east.yml")
    assert list(check.find_faults([chosen])) == [
        f"{tmp_path}/east.yaml: no such file of values; make it: cp cluster/values/KIND.yaml {tmp_path}/east.yaml"
    ]
    misnamed = type(chosen)(tmp_path / "east.yml", tmp_path / "east", shipped=False)
    assert "rename it to east.yaml" in next(check.find_faults([misnamed]))
    taken = write_set(tmp_path, filled_text("slurm"), name="slurm")
    assert "slurm is the name of a kind of cluster; give the set another name" in next(check.find_faults([taken]))
    (tmp_path / "slurm.yaml").unlink()
    (tmp_path / "slurm.yaml").mkdir()
    assert "no such file of values" in next(check.find_faults([taken]))


ODD: list[Any] = [None, [], {}, 5, -1, 1e308, True, "", " ", "x" * 5000, "a\nb", "\u00fc", "'", "$(x)", ["a"], {"a": 1}]
ODD += [{1: 2}, [[]], "fill-in; x", "\u0663", "9" * 5000, 10**30, [None], {"a": None}]


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in nested dicts and lists, the inner nodes included."""
    if path:
        yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from leaves(value, (*path, key))


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_causes_a_traceback(kind: str) -> None:
    """Every value of every file in turn becomes odd: what is refused is refused as an error of the user."""
    refused = []
    for place in leaves(filled_tree(kind)):
        for odd in ODD:
            tree = filled_tree(kind)
            node: Any = tree
            for key in place[:-1]:
                node = node[key]
            node[place[-1]] = odd
            with suppress(ConfigError):
                validate_values(kind, tree, origin="east.yaml")
                continue
            refused.append(place)
    assert len(refused) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_and_ready_gives_no_alarm(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = write_set(tmp_path, filled_text(kind))
    assert __main__.main([str(chosen.file)]) == 0
    assert "fill in" not in capsys.readouterr().out
    assert check.main(["--ready", str(chosen.file)]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.endswith("faults: 0\n")
    assert sorted(path.suffix for path in chosen.folder.iterdir())


GOV = [f"{side}_instance_profile=arn:aws-us-gov:iam::123456789012:instance-profile/x" for side in ("head", "worker")]
RIGHT = [
    ("aws", "region=us-gov-west-1", "availability_zone=us-gov-west-1a", "fsx=null", *GOV),
    ("aws", "region=us-west-2", "availability_zone=us-west-2-lax-1a", "fsx=null"),
    ("aws", "machine_image=ami-0123456789abcdef0", "cpu.machine=m7i-flex.16xlarge"),
    ("aws", f"capacity_reservation=cr-{AWS_ID}", "capacity_block=true", "placement_group=cloze-1"),
    ("aws", "images.training=ghcr.io/me/cloze:1.0", f"images.preprocessing=host/a@sha256:{'0' * 64}"),
    ("aws", "gpu.machine=p9.96xlarge", "gpu.gpus=16", "gpu.cpus=512", "efa_interfaces=64"),
    ("aws", "gpu.machine=p5en.48xlarge", "efa_interfaces=16", "gpu.spot_price_per_hour=null", "max_price_per_hour=500"),
    ("aws", "name=c", "idle_minutes=60", "security_group=sg-12345678", "efa_interfaces=0"),
    ("aws", "cpu.machine=c5n.18xlarge", "cpu.cpus=72", "cpu.memory_gib=192"),
    ("aws", "head.machine=m7i-flex.2xlarge", "cpu.machine=c7i.metal-48xl"),
    (
        "gcp",
        "region=europe-west12",
        "zone=europe-west12-b",
        "data_networks=[]",
        "network=projects/my-project/regions/europe-west12/subnetworks/a",
    ),
    (
        "gcp",
        "project=example.com:my-project",
        "filestore=null",
        "service_account=1234-compute@developer.gserviceaccount.com",
    ),
    (
        "gcp",
        "zone=us-central1-ai1a",
        "machine_image=projects/ubuntu-cloud-mine/global/images/ubuntu-2404-noble-amd64-v20260801",
    ),
    ("hosts", "head_host=10.0.0.1", "gpu_hosts.0=fd00::1", "network_interface=ib0", "shared_folder=/mnt/my data"),
    ("hosts", "ssh_private_key=/home/me/.ssh/id_rsa", "image=localhost:5000/cloze:1"),
    (
        "slurm",
        f"commands.train={TRAIN} workers=32 min_workers=8 seed=$SLURM_ARRAY_TASK_ID output=/runs/${{SLURM_JOB_ID}}",
    ),
    (
        "slurm",
        f"commands.train={TRAIN} workers=32 data=s3://sets/a model.size=base 'phases.0.data=/shared/a b' --fresh",
    ),
    ("slurm", f"commands.train={TRAIN} workers=32 'data=/shared/sets (new) & old' \"output=/shared/it's #1\""),
    ("slurm", f"commands.train={TRAIN} resume_from=null", "hours=168", "partition=gpu,gpu-long"),
    ("slurm", f"commands.preprocess={BUILD} workers=9 --traceback -- --beam_option=1", "repository=/shared/my cloze/"),
    ("skypilot", "infra=k8s/my-context", "use_spot=false", "fast_network=false"),
    ("skypilot", "infra=verda/x", "accelerators=H200-SXM:8"),
    (
        "kubernetes",
        "namespace=team-a1",
        "storage_claim=shared.claim",
        "service_account=a.b-c",
        "cpu_node_selector={a.b/c: ''}",
    ),
    ("kubernetes", "gpu_node_selector={cloud.google.com/gke-accelerator: nvidia-h100-80gb}", "kueue_queue=team-a"),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: f"{case[0]}-{case[1][:40]}")
def test_unusual_values_that_work_give_no_alarm(tmp_path: Path, case: tuple[str, ...]) -> None:
    assert find_faults(tmp_path, *case) == []


def test_every_region_and_machine_type_that_aws_names_is_taken() -> None:
    session = get_session()
    regions = {
        name for part in session.get_available_partitions() for name in session.get_available_regions("ec2", part)
    }
    assert [name for name in regions if not re.fullmatch(AWS_REGION, name)] == []
    machines = Loader().load_service_model("ec2", "service-2")["shapes"]["InstanceType"]["enum"]
    assert [name for name in machines if not re.fullmatch(AwsValues._machine[0], name)] == []
    assert {name for name in GPU_MACHINES if "." in name} <= set(machines)


SECRET = [
    f"token: {'x9' * 16}",
    "API_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12",
    "password: 'c2VjcmV0IHBhc3N3b3JkIGluIGJhc2U2NA=='",
    f"RAY_AUTH_TOKEN={'0123456789abcdef' * 4}",
    "secret: 550e8400-e29b-41d4-a716-446655440000",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "credentials: qzxwvbnmkljhgfdsqwrtpsdfghjk",
    "image: https://me:hunter22@registry.example/cloze",
    "- AKIA" + "Q" * 16,
    "# -----BEGIN OPENSSH PRIVATE KEY-----",
]
NAMES = [
    "secret: cloze-registry-credentials-production",
    "image_pull_secrets: [cloze-registry-credentials-europe-west4-prod01]",
    "secretName: team-language-models-registry-pull-secret-v2",
    "tokenizer: /shared/tokenizers/bert-large-uncased-whole-word-masking",
    "batch.tokens_per_slot=32768 token_file=/home/cloze/.ray/auth_token_of_the_cluster",
    "secret: MyTeamsRegistryCredentialsForTheCluster",
    "RAY_AUTH_TOKEN=$(kubectl -n NAMESPACE get secret cloze-head-with-a-long-name)",
    "password_file: projects/my-project/secrets/cloze-database-password/versions/12",
    "api_key_name: WANDB_API_KEY_OF_THE_RESEARCH_TEAM",
    "RAY_AUTH_TOKEN: null",
]


@pytest.mark.parametrize("line", SECRET)
def test_a_secret_is_found(line: str) -> None:
    assert [fault.partition(" looks")[0] for fault in find_secrets(f"a: 1\n{line}\n")][:1] == ["line 2"]


@pytest.mark.parametrize("line", NAMES)
def test_the_long_name_of_a_secret_is_none(line: str) -> None:
    assert list(find_secrets(line)) == []
