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
from typing import Any

import click
import jsonschema
import pytest
import yaml
from botocore.exceptions import ParamValidationError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import validate_parameters
from ray.autoscaler._private.util import prepare_config, validate_config
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
    types = dict(tree["available_node_types"])
    fallback = types.pop("gpu-on-demand", None)
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
    if fallback is not None:
        assert fallback["resources"] == types["gpu"]["resources"]
        assert fallback["priority"] < types["gpu"]["priority"]
        assert fallback["node_config"].get("InstanceMarketOptions", {}).get("MarketType") != "spot"
        assert types["gpu"]["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"


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
