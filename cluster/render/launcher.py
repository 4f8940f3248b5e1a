"""Files of Ray's launcher (`ray up`) for AWS, Google Cloud and existing hosts, as nested dicts and lists.

Everything runs in containers. Ray requires a token. Ray's dashboard listens on loopback, and the command `ray
dashboard` opens a tunnel to the dashboard. These files have not been run at any provider yet. The tests in
tests/cluster check them against the rules of the providers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cluster import IMAGE_FOLDER, PREPROCESSING, USER_ID
from cluster.render.launcher_values import AwsValues, CloudValues, Fsx, GcpValues, HostsValues
from cluster.render.machines import NO_EFA_ON_FIRST_CARD
from cluster.render.values import HOME, SHARED, ClusterValues, Group

Tree = dict[str, Any]

CONTAINER = "cloze"
RAY_MEMORY = 0.7
"""Share of a node's memory that Ray may assign to tasks. Ray's object store and the system need the rest."""
STOP_S = 600
"""Seconds after `ray job stop` until Ray kills a job, which is enough for a checkpoint."""
CHECK_USER = (
    f'test "$(id -u)" = {USER_ID} || {{ echo "error: user $(id -un) has the id $(id -u), the user in the image has '
    f'{USER_ID}: take an image or a user with this id" >&2; exit 1; }}'
)
"""Command that checks the id of the host's user. With another, the container cannot read the files that Ray copies to
the host (ray 2.60, autoscaler/_private/command_runner.py, DockerCommandRunner.run_init)."""
INFINIBAND = "$([ -d /dev/infiniband ] && echo --device=/dev/infiniband)"
"""Option of `docker run` that passes InfiniBand devices in, on hosts that have some. Ray puts the options unquoted into
a command of the host's shell, which evaluates the substitution (ray 2.60, autoscaler/_private/docker.py,
docker_start_cmds)."""
UP = "ulimit -n 65536"
NOTICE = "nohup python -m cluster.notice --watch > /tmp/notice.log 2>&1 &"
OPEN_FILES = ["--ulimit", "nofile=65536:65536"]
LOCKED_MEMORY = ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
NCCL = {"NCCL_SOCKET_IFNAME": "^lo,docker0", "NCCL_DEBUG": "WARN"}
"""Environment variables for NCCL, with EFA (AWS's fast network) too. There, the plugin in the training image takes the
provider efa by itself (aws-ofi-nccl 1.17.1, src/platform-aws.cpp). FI_EFA_USE_DEVICE_RDMA must not be set: 1 ends the
process on machines whose EFA has no RDMA, such as g5 (libfabric 2.6, man/fi_efa.7.md)."""


def resources_of(group: Group) -> Tree:
    """Return the resources of a node of `group` as Ray counts them: a dict from name to integer. Memory is in bytes."""
    resources: Tree = {"CPU": group.cpus}
    if group.gpus:
        resources["GPU"] = group.gpus
    else:
        resources[PREPROCESSING] = group.cpus
    resources["memory"] = ray_memory(group)
    return resources


def ray_memory(group: Group) -> int:
    """Return the memory in bytes that Ray may assign to tasks on a node of `group`."""
    return int(group.memory_gib * RAY_MEMORY) * 2**30


def growth_resources(*groups: Group) -> dict[str, int]:
    """Return custom resources for the head. They tell the trainer how many CPUs and GPUs the cluster has when `groups`
    have grown to their full size. Ray itself does not state these numbers."""
    return {
        "grows_to_CPU": sum(group.cpus * group.max_nodes for group in groups),
        "grows_to_GPU": sum(group.gpus * group.max_nodes for group in groups),
    }


def range_of(group: Group) -> Tree:
    """Return the lowest and highest number of nodes of `group`, under the launcher's keys min_workers and
    max_workers."""
    return {"min_workers": group.min_nodes, "max_workers": group.max_nodes}


def environment_options(variables: dict[str, str]) -> list[str]:
    """Return the options of `docker run` that set the environment variables `variables`."""
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def common(values: ClusterValues) -> Tree:
    """Return the part that all launcher files have in common: the name, Ray's start commands, the token, and limits on
    idle time and boot time."""
    patience = {
        "AUTOSCALER_NODE_START_WAIT_S": values.boot_timeout_s,
        "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S": values.boot_timeout_s,
        "RAY_JOB_STOP_WAIT_TIME_S": STOP_S,
    }
    exports = "; ".join(f"export {name}={value}" for name, value in patience.items())
    return {
        "cluster_name": values.name,
        "idle_timeout_minutes": values.idle_minutes,
        "upscaling_speed": 100.0,  # so all nodes of a job start at once
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
    """Return the settings of the containers on all nodes. A group of nodes may name another image than `image`.
    `shared` is the host's folder that containers see as /shared. If it is None, containers have no /shared."""
    mounts = ["--volume", f"{shared}:{SHARED}"] if shared is not None else []
    token = environment_options({"RAY_AUTH_MODE": "token"})
    return {
        "image": image,
        "container_name": CONTAINER,
        "pull_before_run": True,
        "run_options": [*OPEN_FILES, *token, *mounts],
    }


def render_aws(values: AwsValues, *, spot: bool) -> Tree:
    """Return the content of the file for `ray up` on EC2. If `spot`, GPU nodes are spot instances."""
    provider = {
        "type": "aws",
        "region": values.region,
        "availability_zone": values.availability_zone,
        "cache_stopped_nodes": False,  # a stopped node would keep its disk, which costs money
        "use_internal_ips": True,  # without this, Ray refuses private subnets
        "use_external_head_ip": True,
    }
    fallback = spot and values.on_demand_fallback
    if fallback:
        provider |= {"type": "external", "module": "cluster.spot_fallback.SpotOrOnDemand"}
    registry = values.registry
    region = registry.split(".")[3]  # a registry may lie in another region than the cluster
    login = f"aws ecr get-login-password --region {region} | docker login --username AWS --password-stdin {registry}"
    tree = render_cloud(
        values,
        provider=provider,
        mounts=mount_fsx(values.fsx) if values.fsx is not None else [],
        login=login,
        node=partial(ec2_node, values),
        gpu_options=["--device=/dev/infiniband"] if values.efa_interfaces else [],
        spot=spot,
    )
    if fallback:  # Ray's autoscaler on the head loads the provider's module
        tree["head_start_ray_commands"][-1] = f"export PYTHONPATH={IMAGE_FOLDER}; {tree['head_start_ray_commands'][-1]}"
    return tree


def render_gcp(values: GcpValues, *, spot: bool) -> Tree:
    """Return the content of the file for `ray up` on Compute Engine. If `spot`, GPU nodes are spot machines."""
    provider = {
        "type": "gcp",
        "region": values.region,
        "availability_zone": values.zone,
        "project_id": values.project,
    }
    return render_cloud(
        values,
        provider=provider,
        mounts=mount_filestore(values.filestore) if values.filestore is not None else [],
        login=f"gcloud auth configure-docker --quiet {values.registry}",
        node=partial(gce_node, values),
        gpu_options=[],
        spot=spot,
    )


def render_cloud(
    values: CloudValues,
    *,
    provider: Tree,
    mounts: list[str],
    login: str,
    node: Callable[..., Tree],
    gpu_options: list[str],
    spot: bool,
) -> Tree:
    """Return the content of the file for a cluster with a head, CPU nodes and GPU nodes.

    `provider` is the content of the file's section `provider`. `mounts` are shell commands that mount /shared, and
    `login` is a shell command that logs in to the registry. `node` is a function that returns the provider's
    description of a node of a group. `gpu_options` are further options of `docker run` on GPU nodes. If `spot`, GPU
    nodes are spot machines.
    """
    tree = common(values)
    tree |= {
        "max_workers": values.cpu.max_nodes + values.gpu.max_nodes,
        "provider": provider,
        "auth": {"ssh_user": "ubuntu"},
        "docker": docker(values.images.training, shared=SHARED if mounts else None),
        "initialization_commands": [CHECK_USER, *mounts, login],
        "head_node_type": "head",
        "available_node_types": {
            "head": {
                "resources": {"CPU": 0, **growth_resources(values.cpu, values.gpu)},
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
                    "worker_run_options": [*LOCKED_MEMORY, *gpu_options, *environment_options(NCCL)],
                },
            },
        },
    }
    if spot:
        tree["worker_start_ray_commands"].append(NOTICE)
    return tree


def ec2_node(values: AwsValues, group: Group, *, public: bool = False, spot: bool = False) -> Tree:
    """Return the parameters of RunInstances (EC2) for a node of `group`. `public` is true for the head, which gets a
    public address, and false for all other nodes."""
    node: Tree = {
        "InstanceType": group.machine,
        "ImageId": values.machine_image,
        "IamInstanceProfile": {"Arn": values.head_instance_profile if public else values.worker_instance_profile},
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": group.disk_gib, "VolumeType": "gp3", "Encrypted": True}}
        ],
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},  # 2: containers reach it too
    }
    subnet = values.head_subnet if public else values.worker_subnet
    cards = values.efa_interfaces if group.gpus else 0
    if cards:
        # Only the first card has an address, so it cannot be EFA-only (Amazon EC2 User Guide, "Maximize network
        # bandwidth on Amazon EC2 instances with multiple network cards").
        first = ["interface", "efa-only"] if group.machine in NO_EFA_ON_FIRST_CARD else ["efa"]
        node["NetworkInterfaces"] = [
            {
                "NetworkCardIndex": card,
                "DeviceIndex": 0,
                "InterfaceType": kind,
                "SubnetId": subnet,
                "Groups": [values.security_group],
                "DeleteOnTermination": True,
            }
            for card, kind in enumerate([*first, *["efa-only"] * (cards - 1)])
        ]
    else:
        node["SubnetIds"] = [subnet]
        node["SecurityGroupIds"] = [values.security_group]
    in_block = values.capacity_block and not spot  # EC2 itself places these near each other (API, CapacityBlock)
    if group.gpus and values.placement_group is not None and not in_block:
        node["Placement"] = {"GroupName": values.placement_group}
    if spot:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        node["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    elif group.gpus and values.capacity_reservation is not None:
        target = {"CapacityReservationId": values.capacity_reservation}
        node["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if values.capacity_block:
            node["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return node


def mount_fsx(fsx: Fsx) -> list[str]:
    """Return the shell commands that mount FSx for Lustre at /shared on a node. File locks are turned on, because
    leases and builds use them."""
    keyring, repository = "/usr/share/keyrings/fsx.gpg", "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu"
    key = "https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc"
    return [
        f"command -v mount.lustre || (curl -fsS {key} | gpg --dearmor | sudo tee {keyring} > /dev/null && "
        f"echo 'deb [signed-by={keyring}] {repository} jammy main' | sudo tee /etc/apt/sources.list.d/fsx.list && "
        f"sudo apt-get update -q && sudo apt-get install -qy lustre-client-modules-$(uname -r))",
        f"sudo mkdir -p {SHARED}",
        f"mountpoint -q {SHARED} || sudo mount -t lustre -o relatime,flock "
        f"{fsx.dns_name}@tcp:/{fsx.mount_name} {SHARED}",
        f"sudo chown {USER_ID}:{USER_ID} {SHARED}",
    ]


def mount_filestore(export: str) -> list[str]:
    """Return the shell commands that mount an NFS export (HOST:/PATH) at /shared on a node."""
    return [
        "command -v mount.nfs || (sudo apt-get update -q && sudo apt-get install -qy nfs-common)",
        f"sudo mkdir -p {SHARED}",
        f"mountpoint -q {SHARED} || sudo mount -t nfs {export} {SHARED}",
        f"sudo chown {USER_ID}:{USER_ID} {SHARED}",
    ]


def gce_node(values: GcpValues, group: Group, *, public: bool = False, spot: bool = False) -> Tree:
    """Return the body of instances.insert (Compute Engine) for a node of `group`. `public` is true for the head, which
    gets a public address, and false for all other nodes."""
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
    """Return the content of the file for `ray up` on existing hosts. The hosts that have no GPU run the preprocessing.
    If `values` names no hosts without a GPU, all hosts run it."""
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
        "initialization_commands": [CHECK_USER],
    }
    variables = NCCL | {"NCCL_SOCKET_IFNAME": values.network_interface}
    tree["docker"]["worker_run_options"] = [*LOCKED_MEMORY, INFINIBAND, *environment_options(variables)]
    return tree
