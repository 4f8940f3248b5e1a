"""Files that start Ray themselves (`ray up`, Slurm, SkyPilot), held against Ray's, bash's and the providers' rules."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files as package_files
from itertools import dropwhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import pytest
import yaml
from botocore.exceptions import ClientError, ParamValidationError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import validate_parameters
from ray.autoscaler._private.docker import docker_start_cmds
from ray.autoscaler._private.providers import _get_node_provider_cls
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import TAG_RAY_NODE_KIND
from ray.autoscaler.v2.instance_manager.subscribers.cloud_resource_monitor import CloudResourceMonitor
from ray.core.generated.instance_manager_pb2 import Instance, InstanceUpdateEvent
from ray.scripts.scripts import cli

from cluster import PREPROCESSING
from cluster.render import SHORTEST_BOOT_S, read_values, render
from trainer.launch.elastic import GROWS_TO

Tree = dict[str, Any]
WITHOUT_OPTIONS: dict[str, Tree] = {
    "aws": {"fsx": None, "efa_interfaces": 0, "capacity_reservation": "cr-1", "capacity_block": True},
    "gcp": {"filestore": None, "data_networks": ()},
    "hosts": {"cpu_hosts": ()},
}
TIMEOUTS = ("AUTOSCALER_NODE_START_WAIT_S", "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S")
"""Limits of Ray's two autoscalers."""


def render_trees(*kinds: str) -> list[Any]:
    """Parameters: the files of some kinds, as shipped and without what is optional."""
    parameters = []
    for kind in kinds:
        for label, update in (("shipped", {}), ("plain", WITHOUT_OPTIONS[kind])):
            for name, text in render(kind, read_values(kind).model_copy(update=update)).items():
                parameters.append(pytest.param(yaml.safe_load(text), id=f"{name}-{label}"))
    return parameters


every_file = pytest.mark.parametrize("tree", render_trees("aws", "gcp", "hosts"))
cloud_files = pytest.mark.parametrize("tree", render_trees("aws", "gcp"))


def read_by_ray(tree: Tree) -> None:
    """Read the file as `ray up` does first."""
    validate_config(prepare_config(copy.deepcopy(tree)))


@every_file
def test_ray_accepts_the_file(tree: Tree) -> None:
    """ray#11900, dclm#69: shipped sample configs do not load."""
    read_by_ray(tree)


@every_file
def test_ray_starts_with_known_options_on_loopback_without_work_for_the_head(tree: Tree) -> None:
    for command in (*tree["head_start_ray_commands"], *tree["worker_start_ray_commands"]):
        check_ray_commands(command)
    head = " ".join(tree["head_start_ray_commands"])
    for option in ("--dashboard-host=127.0.0.1", "--num-cpus=0", "--autoscaling-config=~/ray_bootstrap_config.yaml"):
        assert option in head.split()
    for name in TIMEOUTS:
        (seconds,) = re.findall(rf"{name}=(\d+);", head)
        assert int(seconds) >= SHORTEST_BOOT_S


@every_file
def test_containers_demand_the_token_and_have_no_privileges(tree: Tree) -> None:
    assert "RAY_AUTH_MODE=token" in tree["docker"]["run_options"]
    assert any(path.endswith(".ray/auth_token") for path in tree["file_mounts"])
    assert "--privileged" not in json.dumps(tree)


@cloud_files
def test_jobs_start_the_right_nodes_and_all_nodes_stop(tree: Tree) -> None:
    types = tree["available_node_types"]
    for unit in ("CPU", "GPU"):
        may_be = sum(each["max_workers"] * each["resources"].get(unit, 0) for each in types.values())
        assert types["head"]["resources"][f"{GROWS_TO}{unit}"] == may_be > 0
    assert tree["head_node_type"] == "head"
    assert types["head"]["resources"]["CPU"] == 0
    for name, each in types.items():
        assert all(type(value) is int for value in each["resources"].values()), "Ray takes only integers"
        assert each["min_workers"] == 0
        assert name == "head" or {"CPU", "memory"} <= set(each["resources"])
    assert [name for name in types if PREPROCESSING in types[name]["resources"]] == ["cpu"]
    assert tree["max_workers"] == sum(each["max_workers"] for each in types.values())


@pytest.mark.parametrize("tree", render_trees("aws"))
def test_every_node_on_aws_is_a_request_that_ec2_takes(tree: Tree) -> None:
    provider = tree["provider"]
    assert provider["cache_stopped_nodes"] is False, "stopped nodes keep their disks, and cost"
    assert provider["use_internal_ips"] is True, "Ray passes over subnets without public addresses"
    assert provider["use_external_head_ip"] is True, "`ray up` reaches the head from outside"
    for each in tree["available_node_types"].values():
        check_ec2_node(each["node_config"])


def check_ec2_node(node: Tree) -> None:
    """By botocore's model of RunInstances, with what Ray adds and takes out; and by EC2's rules for network cards."""
    own = {key: value for key, value in node.items() if key != "SubnetIds"}
    model = ServiceModel(ec2_model(), "ec2").operation_model("RunInstances")
    validate_parameters({**own, "MinCount": 1, "MaxCount": 1}, model.input_shape)
    cards = node.get("NetworkInterfaces", [])
    assert [card["NetworkCardIndex"] for card in cards] == list(range(len(cards)))
    assert all(card["SubnetId"] and card["Groups"] for card in cards)
    of_the_node = {"SubnetIds", "SecurityGroupIds"} & set(node)
    assert of_the_node == (set() if cards else {"SubnetIds", "SecurityGroupIds"})
    assert node["MetadataOptions"]["HttpTokens"] == "required", "no web request of a job reads the node's rights"


@cache
def ec2_model() -> Any:
    return Loader().load_service_model("ec2", "service-2")


@pytest.mark.parametrize("tree", render_trees("gcp"))
def test_every_node_on_google_cloud_is_an_instance_of_the_compute_api(tree: Tree) -> None:
    for each in tree["available_node_types"].values():
        gce_validator().validate(each["node_config"])
        assert [disk["boot"] for disk in each["node_config"]["disks"]] == [True]


@cache
def gce_validator() -> jsonschema.Draft202012Validator:
    """By the discovery document that Google's client brings along."""
    document = package_files("googleapiclient.discovery_cache") / "documents" / "compute.v1.json"
    schemas = json.loads(document.read_text(encoding="utf-8"))["schemas"]
    definitions = {name: as_json_schema(schema) for name, schema in schemas.items()}
    return jsonschema.Draft202012Validator({"$ref": "#/$defs/Instance", "$defs": definitions})


def as_json_schema(schema: Mapping[str, Any]) -> Tree:
    """JSON Schema of a Google schema: no unknown keys, 64-bit integers as text or number."""
    if "$ref" in schema:
        return {"$ref": f"#/$defs/{schema['$ref']}"}
    kept = {key: schema[key] for key in ("type", "enum") if key in schema and schema[key] != "any"}
    if schema.get("format") in ("int64", "uint64"):
        kept["type"] = ["string", "integer"]
    if "items" in schema:
        kept["items"] = as_json_schema(schema["items"])
    if "properties" in schema:
        kept["properties"] = {key: as_json_schema(value) for key, value in schema["properties"].items()}
    if kept.get("type") == "object":
        further = schema.get("additionalProperties")
        kept["additionalProperties"] = False if further is None else as_json_schema(further)
    return kept


@pytest.mark.parametrize("name", ["slurm/train.sbatch", "slurm/preprocess.sbatch", "skypilot/train.yaml"])
def test_scripts_parse_and_their_ray_demands_a_token(name: str) -> None:
    kind = name.partition("/")[0]
    text = render(kind, read_values(kind))[name]
    if kind == "slurm":
        assert "export RAY_AUTH_MODE=token" in text
    else:
        tree = yaml.safe_load(text)
        assert tree["envs"]["RAY_AUTH_MODE"] == "token"
        text = tree["run"]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "export RAY_ADDRESS=" in text, "else the command would start a Ray of its own"
    for line in text.replace("\\\n", " ").splitlines():
        if not line.startswith("#") and re.search(r"(^|\s)ray [a-z]", line):
            check_ray_commands(line.strip())


def check_ray_commands(line: str) -> None:
    """Fail on what the installed Ray does not know of the `ray ...` commands in a line of shell."""
    for words in split_commands(line):
        name, *options = list(dropwhile(lambda word: word in ("srun", "until", "do"), words))[1:] or [""]
        if "ray" not in words or not name:
            continue
        assert name in cli.commands, f"Ray has no command {name}"
        command = cli.commands[name]
        if name == "symmetric-run":  # it passes on what it does not know to `ray start`
            command, options = cli.commands["start"], options[: options.index("--")]
            place = options.index("--min-nodes")
            del options[place : place + 2]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert {word.partition("=")[0] for word in options if word.startswith("--")} <= known
        command.make_context(name, options).close()


def split_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell, each as words; a variable becomes 1, a substitution is cut off."""
    line = re.sub(r"\$\{?\w+\}?", "1", re.sub(r"\$\(.*", "", line))
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    for word in reader:
        if set(word) <= set(";&|()<>"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def test_the_rules_find_planted_mistakes() -> None:
    """Foreign validators judge the files; this shows that they do."""
    aws, gcp = (yaml.safe_load(render(kind, read_values(kind))[f"{kind}/on-demand.yaml"]) for kind in ("aws", "gcp"))
    for broken in ({"max_workers": "twelve"}, {"head_node_type": "hed"}, {"available_node_typs": {}}):
        with pytest.raises((jsonschema.ValidationError, ValueError)):
            read_by_ray(aws | broken)
    node = aws["available_node_types"]["gpu"]["node_config"]
    for broken in ({"InstanceTyp": "p5"}, {"EbsOptimized": "yes"}):
        with pytest.raises(ParamValidationError):
            check_ec2_node(node | broken)
    node = gcp["available_node_types"]["gpu"]["node_config"]
    card = {"nicType": "FAST"}
    for broken in ({"machinetype": "a3"}, {"disks": "none"}, {"networkInterfaces": [card]}, {"canIpForward": "yes"}):
        with pytest.raises(jsonschema.ValidationError):
            gce_validator().validate(node | broken)
    for line in ("ray halt", "ray start --object-manger-port=1", "ulimit -n 1; ray start --port=high"):
        with pytest.raises((AssertionError, click.ClickException)):
            check_ray_commands(line)


class RefusingEc2:
    """Stands for EC2, which has no spot machines: it refuses requests for them with `code`."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.asked: list[Tree] = []

    def create_instances(self, **request: Any) -> list[Any]:
        self.asked.append(request)
        if "InstanceMarketOptions" in request or self.code == "UnauthorizedOperation":
            raise ClientError({"Error": {"Code": self.code, "Message": "no"}}, "RunInstances")
        return [SimpleNamespace(id="i-1", instance_id="i-1", state={"Name": "pending"}, state_reason=None)]


def ask_for_nodes(tree: Tree, ec2: RefusingEc2) -> Any:
    """Ask the provider that the file names for two GPU nodes, as Ray's autoscaler does."""
    provider_class = _get_node_provider_cls(tree["provider"])
    provider = provider_class.__new__(provider_class)
    provider.provider_config, provider.cluster_name = tree["provider"], "cloze"
    provider.cache_stopped_nodes, provider.ec2_fail_fast = False, ec2
    node = copy.deepcopy(tree["available_node_types"]["gpu"]["node_config"])
    return provider.create_node({**node, "SubnetIds": ["subnet-1"]}, {TAG_RAY_NODE_KIND: "worker"}, 2)


def test_on_demand_machines_take_the_place_of_spot_machines_that_ec2_has_not() -> None:
    ec2 = RefusingEc2("InsufficientInstanceCapacity")
    tree = yaml.safe_load(render("aws", read_values("aws"))["aws/spot.yaml"])
    assert list(ask_for_nodes(tree, ec2)) == ["i-1"]
    *refused, taken = ec2.asked
    assert refused
    assert all(request["InstanceMarketOptions"]["MarketType"] == "spot" for request in refused)
    assert {key: value for key, value in refused[0].items() if key != "InstanceMarketOptions"} == taken
    assert "PYTHONPATH=/opt/cloze" in tree["head_start_ray_commands"][-1], "Ray on the head must find the class"


def test_another_refusal_takes_no_on_demand_machine() -> None:
    """Also: values without the fall-back, and a file for on-demand machines."""
    shipped = read_values("aws")
    tree = yaml.safe_load(render("aws", shipped)["aws/spot.yaml"])
    plain = yaml.safe_load(render("aws", shipped.model_copy(update={"on_demand_fallback": False}))["aws/spot.yaml"])
    cases = [
        (tree, "InvalidSubnetID.NotFound"),
        (tree, "UnauthorizedOperation"),
        (plain, "InsufficientInstanceCapacity"),
    ]
    for each, code in cases:
        ec2 = RefusingEc2(code)
        with pytest.raises(NodeLaunchException):
            ask_for_nodes(each, ec2)
        assert all("InstanceMarketOptions" in request for request in ec2.asked)
    assert plain["provider"]["type"] == "aws"
    assert yaml.safe_load(render("aws", shipped)["aws/on-demand.yaml"])["provider"]["type"] == "aws"


def test_rays_autoscaler_asks_for_spot_machines_again_after_a_refusal() -> None:
    """Why the fall-back is ours: if this fails, Ray has learned it, and cluster/spot_fallback.py can go."""
    monitor = CloudResourceMonitor()
    failed = InstanceUpdateEvent(new_instance_status=Instance.ALLOCATION_FAILED, instance_type="gpu")
    monitor.notify([failed])
    assert monitor.get_recoverable_resource_availabilities() == {}


def test_gpu_nodes_on_aws_stand_in_their_placement_group() -> None:
    values = read_values("aws").model_copy(update={"placement_group": "near"})
    for text in render("aws", values).values():
        types = yaml.safe_load(text)["available_node_types"]
        assert types["gpu"]["node_config"]["Placement"] == {"GroupName": "near"}
        assert "Placement" not in types["cpu"]["node_config"]
        check_ec2_node(types["gpu"]["node_config"])
    block = {"placement_group": "near", "capacity_reservation": "cr-1", "capacity_block": True}
    for name, text in render("aws", read_values("aws").model_copy(update=block)).items():
        placed = "Placement" in yaml.safe_load(text)["available_node_types"]["gpu"]["node_config"]
        assert placed == ("spot" in name), "EC2 places the machines of a Capacity Block itself"


@pytest.mark.parametrize(
    ("machine", "efa", "kinds"),
    [
        ("g5.12xlarge", 1, ["efa"]),
        ("p4d.24xlarge", 4, ["efa", "efa-only", "efa-only", "efa-only"]),
        ("p6-b300.48xlarge", 2, ["interface", "efa-only", "efa-only"]),
    ],
)
def test_gpu_nodes_on_aws_get_the_cards_that_their_machine_has(machine: str, efa: int, kinds: list[str]) -> None:
    """One address, on the first card, which has no EFA on a p6-b300 (aws/aws-parallelcluster#7143)."""
    values: Any = read_values("aws")
    changed = {"gpu": values.gpu.model_copy(update={"machine": machine}), "efa_interfaces": efa}
    for text in render("aws", values.model_copy(update=changed)).values():
        node = yaml.safe_load(text)["available_node_types"]["gpu"]["node_config"]
        check_ec2_node(node)
        assert [card["InterfaceType"] for card in node["NetworkInterfaces"]] == kinds
        assert {card["DeviceIndex"] for card in node["NetworkInterfaces"]} == {0}, "one interface on each card"


@pytest.mark.parametrize("kind", ["aws", "gcp", "hosts", "kubernetes"])
def test_nccl_chooses_how_it_uses_efa(kind: str) -> None:
    """FI_EFA_USE_DEVICE_RDMA=1 ends the process on EFA without RDMA, as g5 has (libfabric 2.6, man/fi_efa.7.md)."""
    values = read_values(kind)
    for text in render(kind, values.model_copy(update={"efa_interfaces": 1} if kind == "kubernetes" else {})).values():
        assert "FI_" not in text
        assert ("NCCL_DEBUG" in text) == ("gpu" in text)


def test_nodes_log_in_to_the_registry_in_its_own_region() -> None:
    values = read_values("aws").model_copy(update={"registry": "123456789012.dkr.ecr.eu-west-1.amazonaws.com"})
    login = yaml.safe_load(render("aws", values)["aws/spot.yaml"])["initialization_commands"][-1]
    assert login.startswith("aws ecr get-login-password --region eu-west-1 |")


@every_file
def test_a_host_whose_user_is_not_the_containers_is_refused_with_the_reason(tree: Tree) -> None:
    check = tree["initialization_commands"][0]
    for number, status in ((1000, 0), (1001, 1)):
        script = f'id() {{ if [ "$1" = -u ]; then echo {number}; else echo ubuntu; fi; }}; ( {check} )'
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == status
    assert "error: user ubuntu has the id 1001, the user in the image has 1000" in done.stderr


def test_infiniband_devices_of_own_hosts_reach_the_containers(tmp_path: Path) -> None:
    """Ray puts the options unquoted into a command of the host's shell: docker_start_cmds, ray 2.60."""
    tree = yaml.safe_load(render("hosts", read_values("hosts"))["hosts/cluster.yaml"])
    options = tree["docker"]["worker_run_options"]
    command = docker_start_cmds("me", "image", {}, "cloze", options, "cloze", "/home/cloze", "docker")
    for there in (True, False):
        shell = f"docker() {{ printf '%s\n' \"$@\"; }}; {command}".replace("/dev/infiniband ]", f"{tmp_path}/ib ]")
        if there:
            (tmp_path / "ib").mkdir()
        else:
            (tmp_path / "ib").rmdir()
        words = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.split("\n")
        assert ("--device=/dev/infiniband" in words) == there
        assert "" not in words[:-1]
    assert "memlock=-1" in options


def test_images_on_google_cloud_are_pinned() -> None:
    values: Any = read_values("gcp")
    for image in (values.machine_image, values.gpu_machine_image):
        assert re.fullmatch(r"projects/[\w-]+/global/images/[\w-]+-v\d{8}", image)
