"""Checks of the files for `ray up`: Ray's own reading first, then the providers' schemas, then what neither can say."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files as package_files
from itertools import dropwhile
from typing import Any

import jsonschema
from ray.autoscaler._private.util import prepare_config, validate_config

from cluster import PREPROCESSING
from cluster.findings import Files, Finding
from trainer.ray_watch import GROWS_TO

KINDS = ("aws", "gcp", "hosts")
TOO_SHORT = "a GPU node takes longer to boot, would be ended and asked for again without end; set 1200 or more"
TIMEOUTS = ("AUTOSCALER_NODE_START_WAIT_S", "RAY_AUTOSCALER_RECONCILE_REQUEST_STATUS_TIMEOUT_S")
"""Of the two autoscalers; by default 900 s and 600 s, less than a GPU node takes."""


def check_launcher(files: Files) -> Iterator[Finding]:
    """Every file for `ray up`."""
    for kind in KINDS:
        for name, tree in files.documents(kind):
            try:
                validate_config(prepare_config(copy.deepcopy(tree)))
            except jsonschema.ValidationError as error:
                place = ".".join(map(str, error.absolute_path)) or "the file"
                yield Finding(name, f"{place}: {error.message}")
                continue
            except (Exception, SystemExit) as error:  # Ray's own checks raise whatever they come upon
                yield Finding(name, f"Ray refuses it: {' '.join(str(error).split()) or type(error).__name__}")
                continue
            yield from check_start(name, tree)
            yield from check_docker(name, tree)
            types = tree.get("available_node_types", {})
            if kind != "hosts":
                yield from check_node_types(name, tree, types)
            if kind == "aws":
                yield from check_addresses(name, tree["provider"])
            for group, node_type in types.items():
                check_node = {"aws": check_ec2_node, "gcp": check_gce_node}[kind]
                for problem in check_node(node_type.get("node_config", {})):
                    yield Finding(name, f"available_node_types.{group}.node_config{problem}")


def check_node_types(name: str, tree: Mapping[str, Any], types: Mapping[str, Any]) -> Iterator[Finding]:
    """Ranges, resources, and which work wakes which nodes."""
    most = 0
    for group, node_type in types.items():
        place = f"available_node_types.{group}"
        least, greatest = node_type.get("min_workers", 0), node_type.get("max_workers", 0)
        most += greatest
        if least > greatest:
            yield Finding(name, f"{place}: min_workers={least} exceeds max_workers={greatest}")
        resources = node_type.get("resources", {})
        for key, value in resources.items():
            if not isinstance(value, int) or isinstance(value, bool):
                yield Finding(name, f"{place}.resources.{key}={value!r}: Ray takes whole numbers alone")
        if group == tree.get("head_node_type"):
            if resources.get("CPU") != 0:
                yield Finding(name, f"{place}.resources.CPU={resources.get('CPU')}: the head is to do no work; set 0")
        elif "CPU" not in resources or "memory" not in resources:
            yield Finding(name, f"{place}.resources: name CPU and memory, or nodes come for work that they cannot hold")
        if resources.get("GPU") and PREPROCESSING in resources:
            yield Finding(name, f"{place}.resources.{PREPROCESSING}: preprocessing would wake GPU nodes; remove it")
        if least and group != tree.get("head_node_type"):
            yield Finding(name, f"{place}.min_workers={least}: such nodes stay, and cost, without work; set 0")
    for unit in ("CPU", "GPU"):
        may_be = sum(
            node_type.get("max_workers", 0) * node_type.get("resources", {}).get(unit, 0)
            for node_type in types.values()
        )
        said = types[tree["head_node_type"]].get("resources", {}).get(f"{GROWS_TO}{unit}", 0)
        if said != may_be:
            yield Finding(
                name, f"the head says {GROWS_TO}{unit}={said}, but there may be {may_be}: training asks by it"
            )
    if not any(PREPROCESSING in node_type.get("resources", {}) for node_type in types.values()):
        yield Finding(name, f"no node type has the resource {PREPROCESSING}: preprocessing would wait for ever")
    if tree.get("max_workers", 0) < most:
        yield Finding(name, f"max_workers={tree.get('max_workers')} is less than the {most} of all node types")
    if tree["provider"].get("cache_stopped_nodes", tree["provider"]["type"] == "aws"):
        yield Finding(name, "provider.cache_stopped_nodes: stopped nodes keep their disks, and cost; set false")


def check_addresses(name: str, provider: Mapping[str, Any]) -> Iterator[Finding]:
    """Workers are in a private subnet, of which Ray takes none unless it is told to work with internal addresses."""
    for key, why in (
        ("use_internal_ips", "Ray passes over subnets without public addresses, and finds none for the workers"),
        ("use_external_head_ip", "`ray up` could not reach the head"),
    ):
        if provider.get(key) is not True:
            yield Finding(name, f"provider.{key}={provider.get(key)}: {why}; set true")


def check_start(name: str, tree: Mapping[str, Any]) -> Iterator[Finding]:
    """How Ray is started: known options, loopback, no work on the head, time enough for a node to boot."""
    head = tree.get("head_start_ray_commands", [])
    for command in [*head, *tree.get("worker_start_ray_commands", [])]:
        for problem in check_ray_command(command):
            yield Finding(name, f"{problem} in: {command}")
    started = " ".join(head)
    if "--dashboard-host=127.0.0.1" not in started:
        problem = "the dashboard runs code for whoever reaches it; give it --dashboard-host=127.0.0.1"
        yield Finding(name, f"head_start_ray_commands: {problem}")
    if "--num-cpus=0" not in started:
        yield Finding(name, "head_start_ray_commands: the head is to do no work; give it --num-cpus=0")
    if "--autoscaling-config" not in started:
        yield Finding(name, "head_start_ray_commands: no node would ever come; give it --autoscaling-config")
    for variable in TIMEOUTS:
        seconds = started.partition(f"{variable}=")[2].partition(";")[0].strip()
        if not seconds.isdigit() or int(seconds) < 1200:
            yield Finding(name, f"head_start_ray_commands: {variable}={seconds or 'not set'}: {TOO_SHORT}")


def check_ray_command(command: str) -> Iterator[str]:
    """What the installed Ray does not understand of the `ray ...` commands in a line of shell."""
    import click
    from ray.scripts.scripts import cli

    for command_words in split_commands(command):
        words = list(dropwhile(lambda word: word in ("srun", "exec", "until", "do", "then"), command_words))
        if len(words) < 2 or words[0] != "ray":
            continue
        known = cli.commands.get(words[1])
        if known is None:
            yield f"Ray has no command {words[1]}"
            continue
        options = words[2:]
        if "--" in options:  # symmetric-run hands on what it does not know itself to `ray start`
            options = options[: options.index("--")]
            known, options = cli.commands["start"], drop_option(options, "--min-nodes")
        names = {name for parameter in known.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in options:
            if word.startswith("--") and word.partition("=")[0] not in names:
                yield f"`ray {words[1]}` has no option {word.partition('=')[0]}"
        try:
            known.make_context(words[1], list(options)).close()
        except click.ClickException as error:
            yield error.format_message()


def split_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell, each as words; what a variable or a substitution gives is 1 or left out."""
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


def drop_option(words: list[str], name: str) -> list[str]:
    """Without an option that takes the next word."""
    if name not in words:
        return words
    place = words.index(name)
    return words[:place] + words[place + 2 :]


def check_docker(name: str, tree: Mapping[str, Any]) -> Iterator[Finding]:
    """Containers: the token is demanded, nothing privileged, images with a version."""
    docker = tree.get("docker", {})
    options = docker.get("run_options", [])
    if "RAY_AUTH_MODE=token" not in options:
        yield Finding(name, "docker.run_options: Ray runs code for whoever reaches it; set RAY_AUTH_MODE=token")
    if not any(str(path).endswith(".ray/auth_token") for path in tree.get("file_mounts", {})):
        yield Finding(name, "file_mounts: no token reaches the nodes; mount ~/.ray/auth_token")
    own = [node_type.get("docker", {}) for node_type in tree.get("available_node_types", {}).values()]
    for part in [docker, *own]:
        for key in ("run_options", "head_run_options", "worker_run_options"):
            if any("--privileged" in option for option in part.get(key, [])):
                yield Finding(name, f"docker.{key}: --privileged gives the container the host; remove it")
        for key in ("image", "head_image", "worker_image"):
            image = part.get(key)
            if image is not None and not has_version(image):
                yield Finding(name, f"docker.{key}={image}: name a version, so that all nodes run the same")


def has_version(image: str) -> bool:
    """Whether an image is named with a tag other than latest, or a digest."""
    last = image.rpartition("/")[2]
    return "@sha256:" in image or (":" in last and not last.endswith(":latest"))


def check_ec2_node(node: Mapping[str, Any]) -> Iterator[str]:
    """By botocore's own validator of RunInstances, with what Ray adds and takes out."""
    from botocore.validate import ParamValidator

    parameters = {key: value for key, value in node.items() if key != "SubnetIds"}
    report = ParamValidator().validate({**parameters, "MinCount": 1, "MaxCount": 1}, run_instances_shape())
    if report.has_errors():
        yield from (f": {line}" for line in report.generate_report().splitlines())
    cards = node.get("NetworkInterfaces", [])
    if cards and {"SubnetIds", "SubnetId", "SecurityGroupIds"} & set(node):
        yield ": subnet and security groups belong to each of NetworkInterfaces, or to the node where it has none"
    if not cards and not ("SubnetIds" in node and "SecurityGroupIds" in node):
        yield ": SubnetIds and SecurityGroupIds are missing"
    indices = [card.get("NetworkCardIndex") for card in cards]
    if indices != list(range(len(cards))):
        yield f".NetworkInterfaces: cards {indices}; number them 0, 1, 2, ..."
    for card in cards:
        if not card.get("SubnetId") or not card.get("Groups"):
            yield f".NetworkInterfaces: card {card.get('NetworkCardIndex')} lacks SubnetId or Groups"
    if node.get("MetadataOptions", {}).get("HttpTokens") != "required":
        yield ".MetadataOptions.HttpTokens: set required, so that no web request of a job reads the node's rights"


@cache
def run_instances_shape() -> Any:
    """What RunInstances takes; from botocore's model of EC2, without a network."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    model = ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2")
    return model.operation_model("RunInstances").input_shape


def check_gce_node(node: Mapping[str, Any]) -> Iterator[str]:
    """By the Compute API's own description of an instance."""
    problems = list(_compare(node, compute_schemas()["Instance"], place=""))
    yield from problems
    if not problems and not any(disk.get("boot") for disk in node.get("disks", [])):
        yield ".disks: none is the boot disk"


@cache
def compute_schemas() -> dict[str, Any]:
    """The schemas of the Compute API, from the discovery document that Google's client brings along."""
    document = package_files("googleapiclient.discovery_cache") / "documents" / "compute.v1.json"
    schemas: dict[str, Any] = json.loads(document.read_text(encoding="utf-8"))["schemas"]
    return schemas


_PYTHON_TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}


def _compare(value: Any, schema: Mapping[str, Any], *, place: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = compute_schemas()[schema["$ref"]]
    kind = schema.get("type")
    if kind == "object":
        if not isinstance(value, Mapping):
            yield f"{place}={value!r}: give a mapping"
            return
        properties = schema.get("properties")
        for key, inner in value.items():
            if properties is None:
                yield from _compare(inner, schema.get("additionalProperties", {}), place=f"{place}.{key}")
            elif key not in properties:
                yield f"{place}.{key}: the Compute API does not know this key"
            else:
                yield from _compare(inner, properties[key], place=f"{place}.{key}")
    elif kind == "array":
        if not isinstance(value, list):
            yield f"{place}={value!r}: give a list"
            return
        for index, inner in enumerate(value):
            yield from _compare(inner, schema["items"], place=f"{place}.{index}")
    else:
        expected: Any = _PYTHON_TYPES.get(str(kind), object)
        if schema.get("format") in ("int64", "uint64"):
            expected = (int, str)
        if not isinstance(value, expected) or (kind == "integer" and isinstance(value, bool)):
            yield f"{place}={value!r}: give {kind}"
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{place}={value!r}: give one of {', '.join(schema['enum'])}"
