"""Files for Ray's launcher (`ray up`): AWS, Google Cloud, hosts of one's own; trees of plain data from the values.

Containers run everything; a token guards head and dashboard, which listens on loopback (`ray dashboard` tunnels). Not
tried on the providers themselves: what can be checked without them is, in tests/cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cluster import PREPROCESSING
from cluster.render.values import HOME, SHARED, AwsValues, ClusterValues, GcpValues, Group, HostsValues

Tree = dict[str, Any]

CONTAINER = "cloze"
RAY_MEMORY = 0.7
"""Share of a node's memory that Ray gives out; the rest is for its store and the system."""
STOP_S = 600
"""From `ray job stop` to the end of a job that does not end by itself: time for a checkpoint."""
UP = "ulimit -n 65536"
NOTICE = "nohup python -m cluster.notice --watch > /tmp/notice.log 2>&1 &"
OPEN_FILES = ["--ulimit", "nofile=65536:65536"]
LOCKED_MEMORY = ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
EFA = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "NCCL_SOCKET_IFNAME": "^lo,docker0",
    "NCCL_DEBUG": "WARN",
}
"""NCCL over EFA by the plugin in the training image."""


def resources_of(group: Group) -> Tree:
    """What a node of the group has, as Ray counts: integers, memory in bytes."""
    resources: Tree = {"CPU": group.cpus}
    if group.gpus:
        resources["GPU"] = group.gpus
    else:
        resources[PREPROCESSING] = group.cpus
    resources["memory"] = int(group.memory_gib * RAY_MEMORY) * 2**30
    return resources


def grown(*groups: Group) -> dict[str, int]:
    """What the cluster may grow to, as the head tells trainer/launch_ray.py: Ray's autoscalers do not say it."""
    return {
        "grows_to_CPU": sum(group.cpus * group.max_nodes for group in groups),
        "grows_to_GPU": sum(group.gpus * group.max_nodes for group in groups),
    }


def range_of(group: Group) -> Tree:
    """How many nodes of the group there are."""
    return {"min_workers": group.min_nodes, "max_workers": group.max_nodes}


def environment_options(variables: dict[str, str]) -> list[str]:
    """Options of `docker run` that set variables."""
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def common(values: ClusterValues) -> Tree:
    """What every cluster file has: the start of Ray, the token, when nodes go and how long they may take to come."""
    patience = {
        "AUTOSCALER_NODE_START_WAIT_S": values.boot_timeout_s,
        "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S": values.boot_timeout_s,
        "RAY_JOB_STOP_WAIT_TIME_S": STOP_S,
    }
    exports = "; ".join(f"export {name}={value}" for name, value in patience.items())
    return {
        "cluster_name": values.name,
        "idle_timeout_minutes": values.idle_minutes,
        "upscaling_speed": 100.0,  # a job asks for all its nodes at once
        "file_mounts": {f"{HOME}/.ray/auth_token": "~/.ray/auth_token"},
        "cluster_synced_files": [],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": [
            "ray stop",
            f"{UP}; {exports}; ray start --head --num-cpus=0 --port=6379 --object-manager-port=8076 "
            f"--dashboard-host=127.0.0.1 --metrics-export-port=8080 --autoscaling-config=~/ray_bootstrap_config.yaml",
        ],
        "worker_start_ray_commands": [
            "ray stop",
            f"{UP}; ray start --address=$RAY_HEAD_IP:6379 --object-manager-port=8076 --metrics-export-port=8080",
        ],
    }


def docker(image: str, *, shared: str | None) -> Tree:
    """The containers: the training image where a group has no other. `shared`: folder of the host seen as /shared."""
    mounts = ["--volume", f"{shared}:{SHARED}"] if shared is not None else []
    token = environment_options({"RAY_AUTH_MODE": "token"})
    return {
        "image": image,
        "container_name": CONTAINER,
        "pull_before_run": True,
        "run_options": [*OPEN_FILES, *token, *mounts],
    }


def node_types(
    values: AwsValues | GcpValues, *, node: Callable[..., Tree], spot: bool, run_options: Sequence[str]
) -> Tree:
    """The head without work, CPU nodes, GPU nodes. `node`: the provider's part of a node of a group; `run_options`: of
    the container on GPU nodes."""
    return {
        "head": {
            "resources": {"CPU": 0, **grown(values.cpu, values.gpu)},
            "min_workers": 0,
            "max_workers": 0,
            "node_config": node(values.head, public=True),
        },
        "cpu": {
            **range_of(values.cpu),
            "resources": resources_of(values.cpu),
            "node_config": node(values.cpu),
            "docker": {"worker_image": values.images.preprocessing},
        },
        "gpu": {
            **range_of(values.gpu),
            "resources": resources_of(values.gpu),
            "node_config": node(values.gpu, spot=spot),
            "docker": {
                "worker_image": values.images.training,
                "worker_run_options": [*LOCKED_MEMORY, *run_options],
            },
        },
    }


def render_aws(values: AwsValues, *, spot: bool) -> Tree:
    """`ray up` on EC2."""
    registry = values.registry
    login = (
        f"aws ecr get-login-password --region {values.region} | docker login --username AWS --password-stdin {registry}"
    )
    tree = common(values)
    tree |= {
        "max_workers": values.cpu.max_nodes + values.gpu.max_nodes,
        "provider": {
            "type": "aws",
            "region": values.region,
            "availability_zone": values.availability_zone,
            "cache_stopped_nodes": False,  # a stopped node keeps its disk, and its price
            "use_internal_ips": True,  # else Ray takes no private subnet
            "use_external_head_ip": True,
        },
        "auth": {"ssh_user": "ubuntu"},
        "docker": docker(values.images.training, shared=None if values.fsx is None else SHARED),
        "initialization_commands": [*(mount_fsx(values) if values.fsx is not None else []), login],
        "head_node_type": "head",
        "available_node_types": node_types(
            values,
            node=partial(ec2_node, values),
            spot=spot,
            run_options=[
                *(["--device=/dev/infiniband"] if values.efa_interfaces else []),
                *environment_options(EFA if values.efa_interfaces else {}),
            ],
        ),
    }
    if spot:
        tree["worker_start_ray_commands"].append(NOTICE)
    return tree


def ec2_node(values: AwsValues, group: Group, *, public: bool = False, spot: bool = False) -> Tree:
    """Parameters of RunInstances for a node of the group."""
    node: Tree = {
        "InstanceType": group.machine,
        "ImageId": values.machine_image,
        "IamInstanceProfile": {"Arn": values.head_instance_profile if public else values.worker_instance_profile},
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": group.disk_gib, "VolumeType": "gp3", "Encrypted": True}}
        ],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},  # 2: from inside a container
    }
    subnet = values.head_subnet if public else values.worker_subnet
    cards = values.efa_interfaces if group.gpus else 0
    if cards:
        node["NetworkInterfaces"] = [
            {
                "NetworkCardIndex": card,
                "DeviceIndex": 0 if card == 0 else 1,
                "InterfaceType": "efa" if card == 0 else "efa-only",
                "SubnetId": subnet,
                "Groups": [values.security_group],
                "DeleteOnTermination": True,
            }
            for card in range(cards)
        ]
    else:
        node["SubnetIds"] = [subnet]
        node["SecurityGroupIds"] = [values.security_group]
    if spot:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        node["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    elif group.gpus and values.capacity_reservation is not None:
        target = {"CapacityReservationId": values.capacity_reservation}
        node["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if values.capacity_block:
            node["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return node


def mount_fsx(values: AwsValues) -> list[str]:
    """Commands that mount FSx for Lustre on a node; with flock, which leases and builds need."""
    assert values.fsx is not None
    keyring, repository = "/usr/share/keyrings/fsx.gpg", "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu"
    key = "https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc"
    return [
        f"command -v mount.lustre || (curl -fsS {key} | gpg --dearmor | sudo tee {keyring} > /dev/null && "
        f"echo 'deb [signed-by={keyring}] {repository} jammy main' | sudo tee /etc/apt/sources.list.d/fsx.list && "
        f"sudo apt-get update -q && sudo apt-get install -qy lustre-client-modules-$(uname -r))",
        f"sudo mkdir -p {SHARED}",
        f"mountpoint -q {SHARED} || sudo mount -t lustre -o relatime,flock "
        f"{values.fsx.dns_name}@tcp:/{values.fsx.mount_name} {SHARED}",
        f"sudo chown 1000:1000 {SHARED}",
    ]


def render_gcp(values: GcpValues, *, spot: bool) -> Tree:
    """`ray up` on Compute Engine."""
    mounts = []
    if values.filestore is not None:
        mounts = [
            "command -v mount.nfs || (sudo apt-get update -q && sudo apt-get install -qy nfs-common)",
            f"sudo mkdir -p {SHARED}",
            f"mountpoint -q {SHARED} || sudo mount -t nfs {values.filestore} {SHARED}",
            f"sudo chown 1000:1000 {SHARED}",
        ]
    tree = common(values)
    tree |= {
        "max_workers": values.cpu.max_nodes + values.gpu.max_nodes,
        "provider": {
            "type": "gcp",
            "region": values.region,
            "availability_zone": values.zone,
            "project_id": values.project,
        },
        "auth": {"ssh_user": "ubuntu"},
        "docker": docker(values.images.training, shared=None if values.filestore is None else SHARED),
        "initialization_commands": [*mounts, f"gcloud auth configure-docker --quiet {values.registry}"],
        "head_node_type": "head",
        "available_node_types": node_types(
            values,
            node=partial(gce_node, values),
            spot=spot,
            run_options=environment_options({"NCCL_SOCKET_IFNAME": "^lo,docker0", "NCCL_DEBUG": "WARN"}),
        ),
    }
    if spot:
        tree["worker_start_ray_commands"].append(NOTICE)
    return tree


def gce_node(values: GcpValues, group: Group, *, public: bool = False, spot: bool = False) -> Tree:
    """Body of instances.insert for a node of the group."""
    card: Tree = {"subnetwork": values.network}
    if public:
        card["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    cards = [card, *({"subnetwork": name} for name in values.data_networks)] if group.gpus else [card]
    image = values.gpu_machine_image if group.gpus else values.machine_image
    node: Tree = {
        "machineType": group.machine,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "type": "PERSISTENT",
                "initializeParams": {"diskSizeGb": group.disk_gib, "sourceImage": image},
            }
        ],
        "networkInterfaces": [{**each, "nicType": "GVNIC"} for each in cards],
        "serviceAccounts": [
            {"email": values.service_account, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ],
    }
    if group.gpus:
        node["scheduling"] = {"onHostMaintenance": "TERMINATE", "automaticRestart": False}
    if spot:
        node["scheduling"] |= {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    return node


def render_hosts(values: HostsValues) -> Tree:
    """`ray up` on hosts that are there. A host without a GPU preprocesses; where none is named, all do."""
    tree = common(values)
    workers = [*values.cpu_hosts, *values.gpu_hosts]
    resource = f"--resources='{{\"{PREPROCESSING}\":{values.cpu.cpus}}}'"
    which = f"$([ -e /dev/nvidia0 ] || echo {resource})" if values.cpu_hosts else resource
    tree["worker_start_ray_commands"][-1] += f" {which}"
    tree |= {
        "min_workers": len(workers),
        "max_workers": len(workers),
        "provider": {"type": "local", "head_ip": values.head_host, "worker_ips": workers},
        "auth": {"ssh_user": values.ssh_user, "ssh_private_key": values.ssh_private_key},
        "docker": docker(values.image, shared=values.shared_folder),
        "initialization_commands": [],
    }
    variables = {"NCCL_SOCKET_IFNAME": values.network_interface, "NCCL_DEBUG": "WARN"}
    tree["docker"]["worker_run_options"] = [*LOCKED_MEMORY, *environment_options(variables)]
    return tree
