"""The cluster's files as shipped have no fault, and every check of them finds a mistake planted for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.check import find_faults
from cluster.check_files import check_drift, check_images, check_scripts, check_secrets, check_sizes
from cluster.check_kuberay import check_kuberay
from cluster.check_launcher import check_launcher
from cluster.findings import Files, Finding, check_yaml

AWS, SPOT, GCP, HOSTS = "aws/on-demand.yaml", "aws/spot.yaml", "gcp/on-demand.yaml", "hosts/cluster.yaml"
CLUSTER, TRAIN = "kubernetes/raycluster.yaml", "kubernetes/rayjob-train.yaml"
KUEUE, VOLCANO = "kubernetes/rayjob-train-kueue.yaml", "kubernetes/rayjob-train-volcano.yaml"
TRAINING_IMAGE = "images/training.Dockerfile"
Check = Callable[[Files], Iterator[Finding]]


@pytest.fixture(scope="module")
def shipped() -> Files:
    return Files.read()


def test_what_is_shipped_has_no_fault(shipped: Files) -> None:
    """ray#11900, dclm#69: shipped sample configs do not load."""
    assert len(shipped.texts) >= 20
    assert [str(fault) for fault in find_faults(shipped)] == []


def test_the_custom_resources_are_as_their_strict_schema_says(shipped: Files, repository: Path) -> None:
    schemas = repository.parent / "shared" / "schemas"
    if not schemas.is_dir():
        pytest.skip(f"strict schemas of KubeRay's resources are absent: {schemas}")
    assert list(check_kuberay(shipped, schemas=schemas)) == []
    broken = plant(shipped, TRAIN, "shutdownAfterJobFinishes: true", "shutDownAfterJobFinishes: true")
    assert any("shutDownAfterJobFinishes" in str(fault) for fault in check_kuberay(broken, schemas=schemas))


def plant(files: Files, name: str, old: str, new: str) -> Files:
    """The files with the first `old` in one of them replaced."""
    assert old in files.texts[name], f"{name} has no {old!r}"
    return files.with_text(name, files.texts[name].replace(old, new, 1))


HEAD, GPU = "  head:\n    resources:\n      CPU: 0", "  gpu:\n    min_workers: 0\n    max_workers: 4"
LAUNCHER = [
    (AWS, "max_workers: 12", "max_workers: twelve", "max_workers: 'twelve' is not of type 'integer'"),
    (AWS, "GPU: 8", "GPU: 8.5", r"resources\.GPU.*8.5 is not of type 'integer'|GPU=8.5: Ray takes whole numbers"),
    (AWS, "head_node_type: head", "head_node_type: hed", "Ray refuses it: `head_node_type` must be one of"),
    (AWS, GPU, "  gpu:\n    min_nodes: 0\n    max_workers: 4", r"gpu: Additional properties .*'min_nodes'"),
    (AWS, GPU, "  gpu:\n    min_workers: 5\n    max_workers: 4", "gpu: min_workers=5 exceeds max_workers=4"),
    (AWS, GPU, "  gpu:\n    min_workers: 1\n    max_workers: 4", r"gpu\.min_workers=1: such nodes stay, and cost"),
    (AWS, HEAD, HEAD.replace("CPU: 0", "CPU: 8"), r"head\.resources\.CPU=8: the head is to do no work"),
    (AWS, "grows_to_GPU: 32", "grows_to_GPU: 8", "the head says grows_to_GPU=8, but there may be 32"),
    (AWS, "      CPU: 64\n", "", r"cpu\.resources: name CPU and memory"),
    (AWS, "      GPU: 8\n", "      GPU: 8\n      preprocessing: 8\n", "preprocessing would wake GPU nodes"),
    (AWS, "      preprocessing: 64\n", "", "no node type has the resource preprocessing"),
    (AWS, "max_workers: 12", "max_workers: 5", "max_workers=5 is less than the 12 of all node types"),
    (AWS, "cache_stopped_nodes: false", "cache_stopped_nodes: true", "stopped nodes keep their disks"),
    (AWS, "--dashboard-host=127.0.0.1", "--dashboard-host=0.0.0.0", "the dashboard runs code for whoever reaches it"),
    (AWS, " --num-cpus=0", "", "head_start_ray_commands: the head is to do no work"),
    (AWS, " --autoscaling-config=~/ray_bootstrap_config.yaml", "", "no node would ever come"),
    (AWS, "AUTOSCALER_NODE_START_WAIT_S=1500", "AUTOSCALER_NODE_START_WAIT_S=900", "=900: a GPU node takes longer"),
    (AWS, "export RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S=1500; ", "", "not set: a GPU node takes longer"),
    (AWS, "--object-manager-port", "--object-manger-port", "`ray start` has no option --object-manger-port"),
    (AWS, "--port=6379", "--port=high", "'high' is not a valid integer"),
    (AWS, "- ray stop", "- ray halt", "Ray has no command halt"),
    (AWS, "RAY_AUTH_MODE=token", "RAY_AUTH_MODE=disabled", "set RAY_AUTH_MODE=token"),
    (AWS, "/home/cloze/.ray/auth_token: ~/.ray/auth_token", "/tmp/a: /tmp/b", "no token reaches the nodes"),
    (AWS, "  - --ulimit", "  - --privileged\n  - --ulimit", "--privileged gives the container the host"),
    (AWS, "cloze-training:0.1.0", "cloze-training:latest", "image=.*:latest: name a version"),
    (AWS, "InstanceType: p5", "InstanceTyp: p5", 'gpu.node_config: Unknown parameter in input: "InstanceTyp"'),
    (AWS, "VolumeSize: 500", "VolumeSize: '500'", "Invalid type for parameter .*VolumeSize"),
    (SPOT, "MarketType: spot", "MarketTyp: spot", "Unknown parameter in InstanceMarketOptions"),
    (AWS, "NetworkCardIndex: 3", "NetworkCardIndex: 2", "number them 0, 1, 2"),
    (AWS, "efa\n        SubnetId: subnet-fill-in\n", "efa\n", "card 0 lacks SubnetId or Groups"),
    (AWS, "      NetworkInterfaces:", "      SubnetIds: [a]\n      NetworkInterfaces:", "belong to each of"),
    (AWS, "      SubnetIds:\n      - subnet-fill-in\n", "", "SubnetIds and SecurityGroupIds are missing"),
    (AWS, "use_internal_ips: true", "use_internal_ips: false", "finds none for the workers; set true"),
    (AWS, "  use_external_head_ip: true\n", "", "use_external_head_ip=None: `ray up` could not reach the head"),
    (AWS, "HttpTokens: required", "HttpTokens: optional", "HttpTokens: set required"),
    (GCP, "machineType: a3", "machinetype: a3", r"gpu\.node_config\.machinetype: the Compute API does not know"),
    (GCP, "diskSizeGb: 500", "diskSizeGb: [500]", r"diskSizeGb=\[500\]: give string"),
    (GCP, "boot: true", "boot: 'yes'", r"disks\.0\.boot='yes': give boolean"),
    (GCP, "boot: true", "boot: false", "none is the boot disk"),
    (GCP, "nicType: GVNIC", "nicType: FAST", r"nicType='FAST': give one of .*GVNIC"),
    (GCP, "disks:\n", "disks: none\n      labels:\n", "disks='none': give a list"),
    (GCP, "initializeParams:", "initializeParams: big\n        labels:", "initializeParams='big': give a mapping"),
    (HOSTS, "head_ip: head.fill-in", "head: head.fill-in", "Ray refuses it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "found"), LAUNCHER)
def test_mistakes_in_launcher_files_are_found(shipped: Files, name: str, old: str, new: str, found: str) -> None:
    assert_found(check_launcher, plant(shipped, name, old, new), name=name, found=found)


TAINT = "key: nvidia.com/gpu\n            operator: Exists\n            effect: NoSchedule\n"
KUBERAY = [
    (TRAIN, "name: cloze-train", "name: Cloze", "metadata.name=Cloze: RayJob takes small letters"),
    (TRAIN, "name: cloze-train", f"name: {'a' * 48}", "at most 47 of them"),
    (TRAIN, "shutdownAfterJobFinishes: true", "shutdownAfterJobFinishes: false", "the cluster would outlive its job"),
    (TRAIN, "ttlSecondsAfterFinished: 60", "ttlSecondsAfterFinished: -1", "ttlSecondsAfterFinished=-1: give 0 or more"),
    (TRAIN, "ttlSecondsAfterFinished: 60", "ttlSecondsAfterFinished: 86400", "idle nodes would cost for over an hour"),
    (TRAIN, "  backoffLimit: 2\n  shut", "  backoffLimit: -2\n  shut", "backoffLimit=-2: give 0 or more"),
    (TRAIN, "submissionMode: K8sJobMode", "submissionMode: InteractiveMode", "does not go with InteractiveMode"),
    (TRAIN, "submissionMode: K8sJobMode", "submissionMode: SidecarMode", "do not go with SidecarMode"),
    (TRAIN, "shutdownAfterJobFinishes: true", "suspend: true", "spec.suspend needs shutdownAfterJobFinishes"),
    (TRAIN, "  entrypoint: python", "  entrypoints: python", "spec.entrypoint is missing"),
    (TRAIN, "restartPolicy: Never", "restartPolicy: Always", "restartPolicy must be Never or OnFailure"),
    (KUEUE, "    rayVersion", "    enableInTreeAutoscaling: true\n    rayVersion", "the queue admits what is"),
    (VOLCANO, "    volcano.sh/queue-name: default\n", "", "Volcano needs volcano.sh/queue-name"),
    (TRAIN, "rayVersion: 2.60.0", "rayVersion: 2.59.0", "rayVersion=2.59.0: the images have"),
    (TRAIN, "mode: token", "mode: disabled", "authOptions.mode: .*set token"),
    (TRAIN, "serviceType: ClusterIP", "serviceType: LoadBalancer", "LoadBalancer: opens the dashboard"),
    (CLUSTER, "groupName: cpu", "groupName: gpu", "group names .* repeat"),
    (TRAIN, "num-cpus: '0'", "num-cpus: '4'", "the head is to do no work"),
    (TRAIN, "num-cpus: '0'", "num-cpus: 0", "values must be quoted"),
    (TRAIN, "name: RAY_DATA_DISABLE_PROGRESS_BARS", "name: RAY_enable_autoscaler_v2", "use autoscalerOptions.version"),
    (TRAIN, "minReplicas: 0\n      maxReplicas: 4", "minReplicas: 5\n      maxReplicas: 4", "minReplicas=5 exceeds"),
    (TRAIN, "replicas: 0\n", "replicas: 9\n", "replicas=9 is not between 0 and 4"),
    (TRAIN, "minReplicas: 0", "minReplicas: 1", r"minReplicas=1: such pods stay"),
    (TRAIN, "metrics-export-port: '8080'\n      resources", "num-gpus: '8'\n      resources", "both say what a node"),
    (TRAIN, "metrics-export-port: '8080'\n      resources", "labels: a=b\n      resources", "from labels of the group"),
    (TRAIN, "      rayStartParams:\n        metrics", "      suspend: true\n      rayStartParams:\n        metrics",
     "does not go with the autoscaler"),
    (TRAIN, "          nodeSelector:", "          restartPolicy: Always\n          nodeSelector:", "v2 needs Never"),
    (TRAIN, "version: v2", "version: v1", "autoscalerOptions.version=v1: set v2"),
    (TRAIN, "idleTimeoutSeconds: 300", "idleTimeoutSeconds: 36000", "idleTimeoutSeconds=36000: give 60 to 3600"),
    (TRAIN, "value: '1500'", "value: '600'", "=600: a GPU node takes longer"),
    (TRAIN, "enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false", "nothing would ever scale"),
    (TRAIN, "        GPU: '8'", "        GPU: '1'", "the autoscaler sees 1 GPUs, the pod has 8"),
    (TRAIN, "        CPU: '96'\n", "        CPU: '1'\n", "the autoscaler sees 1 CPUs, the pod has 96"),
    (TRAIN, 'grows_to_GPU\\": 32', 'grows_to_GPU\\": 8', "the head says grows_to_GPU=8, but there may be 32"),
    (TRAIN, "        CPU: '96'\n", "        CPU: many\n", "Ray's autoscaler cannot read it"),
    (TRAIN, "memory: '768799145984'", "memory: '7687991459840'", "the autoscaler sees 7687991459840 bytes"),
    (TRAIN, "        GPU: '8'\n", "        GPU: '8'\n        preprocessing: '8'\n", "preprocessing would wake it"),
    (CLUSTER, "      preprocessing: '32'\n", "", "give it the resource preprocessing, one a CPU"),
    (TRAIN, f"          tolerations:\n          - {TAINT}", "", "GPU nodes are tainted; tolerate it"),
    (TRAIN, "sizeLimit: 64Gi", "sizeLimit: 640Gi", "/dev/shm of 640Gi is more than half"),
    (TRAIN, "medium: Memory\n              sizeLimit: 64Gi", "sizeLimit: 64Gi", "/dev/shm would be 64 MB"),
    (TRAIN, "runAsNonRoot: true", "runAsNonRoot: false", "set runAsNonRoot: true"),
    (TRAIN, "cloze-training:0.1.0", "cloze-training", "name a version, so that all pods run the same"),
    (TRAIN, "- name: shared\n              mountPath", "- name: sharde\n              mountPath", "no volume sharde"),
    (TRAIN, "mountPath: /shared", "mountpath: /shared", "'mountPath' is a required property"),
    (TRAIN, "limits:\n                cpu: '96'", "limits:\n                cpu: many", "the pod has many"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "found"), KUBERAY)
def test_mistakes_in_kuberay_files_are_found(shipped: Files, name: str, old: str, new: str, found: str) -> None:
    assert_found(check_kuberay, plant(shipped, name, old, new), name=name, found=found)


def test_a_side_car_before_the_ray_container_is_found(shipped: Files) -> None:
    """kuberay (reproduced): the GPU group counts as one CPU."""
    sidecar = "          containers:\n          - name: log\n            image: log:1\n            securityContext:\n"
    sidecar += "              runAsNonRoot: true\n              allowPrivilegeEscalation: false\n"
    place = shipped.texts[TRAIN].index("workerGroupSpecs")
    head, rest = shipped.texts[TRAIN][:place], shipped.texts[TRAIN][place:]
    broken = Files({TRAIN: head + rest.replace("          containers:\n", sidecar, 1)})
    found = [str(fault) for fault in check_kuberay(broken)]
    assert any("container log comes first, where KubeRay starts Ray" in fault for fault in found)
    assert any("the autoscaler sees 96 CPUs, the pod has None" in fault for fault in found)


KEY, LONG = "AKIA" + "Q" * 16, "x9" * 16
FILES: list[tuple[Check, str, str, str, str]] = [
    (check_yaml, AWS, "provider:", "\tprovider:", "not valid YAML"),
    (check_yaml, AWS, "cluster_name: cloze", "cluster_name: cloze\ncluster_name: other", "stands twice"),
    (check_yaml, AWS, "cluster_name: cloze", "cluster_name: !!python/name:os.system ''", "not valid YAML"),
    (check_drift, AWS, "VolumeSize: 500", "VolumeSize: 600", "is not what values/aws.yaml gives; run `make cluster`"),
    (check_drift, "values/aws.yaml", "disk_gib: 500", "disk_gib: 600", "is not what values/aws.yaml gives"),
    (check_drift, "values/aws.yaml", "region: us", "regoin: us", "unknown key 'regoin'.*did you mean 'region'"),
    (check_drift, "values/slurm.yaml", "  max_nodes: 4", "  max_nodes: 4\n  min_nodes: 9", "min_nodes=9 exceeds"),
    (check_drift, "values/hosts.yaml", "- gpu2.", "- gpu1.", "host gpu1.fill-in is named twice"),
    (check_drift, "values/hosts.yaml", "- gpu4.fill-in\n", "", "gpu.max_nodes=4, but gpu_hosts names 3"),
    (check_drift, "values/kubernetes.yaml", "name: cloze\n", "name: Cloze\n", "name='Cloze'"),
    (check_secrets, AWS, "cluster_name: cloze", f"cluster_name: {KEY}", "line 2 looks like an AWS key"),
    (check_secrets, AWS, "cluster_name: cloze", "a: -----BEGIN RSA PRIVATE KEY-----", "a private key"),
    (check_secrets, AWS, "cluster_name: cloze", f"a: ghp_{LONG}", "a token of a code host"),
    (check_secrets, AWS, "cluster_name: cloze", f"a: AIza{LONG}{'y' * 3}", "a key of Google"),
    (check_secrets, TRAINING_IMAGE, "ENV HOME", f"ENV API_KEY={LONG} HOME", "a long secret"),
    (check_scripts, "slurm/train.sbatch", "trap 'rm", 'trap "rm', "bash cannot read it"),
    (check_scripts, "slurm/train.sbatch", "--min-nodes", "--least-nodes", "has no option --least-nodes"),
    (check_scripts, "slurm/train.sbatch", "--num-gpus=8", "--num-gpu=8", "has no option --num-gpu"),
    (check_scripts, "slurm/train.sbatch", "symmetric-run", "symetric-run", "Ray has no command symetric-run"),
    (check_scripts, "slurm/train.sbatch", "RAY_AUTH_MODE=token", "RAY_AUTH_MODE=disabled", "export RAY_AUTH_MODE"),
    (check_scripts, "slurm/train.sbatch", "export RAY_ADDRESS", "export ADDRESS", "would start a Ray of its own"),
    (check_scripts, "skypilot/train.yaml", "MODE: token", "MODE: disabled", "envs: Ray runs code"),
    (check_scripts, "skypilot/train.yaml", "--temp-dir", "--tmp-dir", "has no option --tmp-dir"),
    (check_images, TRAINING_IMAGE, "FROM ubuntu:noble-20251013", "FROM ubuntu:latest", "name a version of the base"),
    (check_images, TRAINING_IMAGE, "USER cloze", "USER root", "runs as root"),
    (check_images, TRAINING_IMAGE, "WORKDIR /opt/cloze", "", "the repository must be its WORKDIR"),
    (check_images, TRAINING_IMAGE, "COPY --chown=cloze:cloze . .", "", "the repository must be its WORKDIR"),
    (check_images, TRAINING_IMAGE, "-e '.[pipeline", "'.[pipeline", "must install the package once, with its extras"),
    (check_images, TRAINING_IMAGE, "[pipeline,", "[pipelines,", "installs the extra pipelines, which"),
    (check_images, TRAINING_IMAGE, "-c constraints.txt ", "", "installs what constraints.txt does not pin"),
    (check_sizes, "values/gcp.yaml", "gpus: 8\n  max_nodes: 4", "gpus: 1\n  max_nodes: 4", "asks for workers=8"),
    (check_sizes, "values/aws.yaml", "name: cloze", "name: cloze\nboot_timeout_s: 1800", "would give up first"),
    (check_sizes, "values/slurm.yaml", "max_nodes: 4", "max_nodes: 2", "workers=32, but gpu has 16 GPUs at most"),
    (check_sizes, "values/slurm.yaml", "command: python trainer", "command: python3 trainer", "begin with `python"),
    (check_sizes, "values/slurm.yaml", "fill-in.yaml workers", "'fill in.yaml' workers", "write it without"),
    (check_sizes, "values/kubernetes.yaml", " workers=128", "", "workers=: nodes come for as many as are asked for"),
    (check_sizes, "values/kubernetes.yaml", " workers=128", " workers=513", "workers=513: .*; give 1 to 512"),
    (check_sizes, "values/kubernetes.yaml", " ray.resource=preprocessing", "", "or it may wake GPU nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "name", "old", "new", "found"), FILES)
def test_mistakes_in_any_file_are_found(
    shipped: Files, check: Check, name: str, old: str, new: str, found: str
) -> None:
    broken = plant(shipped, name, old, new)
    assert any(re.search(found, str(fault)) for fault in check(broken)), [str(fault) for fault in check(broken)]


def test_a_missing_file_and_a_newer_ray_are_found(shipped: Files, tmp_path: Path) -> None:
    texts = {name: text for name, text in shipped.texts.items() if name != AWS}
    assert [str(fault) for fault in check_yaml(Files(texts))] == [f"{AWS}: is missing; run `make cluster`"]
    for name in ("pyproject.toml", "constraints.txt"):
        text = (shipped.repository / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("\nray==", "\nray==1"), encoding="utf-8")
    assert any("does not pin ray==" in str(fault) for fault in check_images(Files(shipped.texts, repository=tmp_path)))


def test_a_config_that_does_not_load_is_found(shipped: Files, tmp_path: Path) -> None:
    (tmp_path / "trainer" / "configs").mkdir(parents=True)
    (tmp_path / "trainer" / "configs" / "mine.yaml").write_text("workers: 3\nwokers: 4\n", encoding="utf-8")
    found = [str(fault) for fault in check_sizes(Files(shipped.texts, repository=tmp_path))]
    assert any("unknown key 'wokers'" in fault for fault in found)


def assert_found(check: Check, files: Files, *, name: str, found: str) -> None:
    faults = [str(fault) for fault in check(Files({name: files.texts[name]}))]  # the others are as they were
    assert any(fault.startswith(f"{name}:") and re.search(found, fault) for fault in faults), faults
