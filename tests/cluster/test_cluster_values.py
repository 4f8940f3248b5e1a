"""What a user fills in: the README names all of it, mistakes are refused or found, costs are what the values give."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import CLUSTER, REPOSITORY, check, costs, render
from cluster.render import KINDS, VALUES, __main__, read_values, validate_values
from filled_values import filled_text
from pipeline.settings import ConfigError, load_settings, load_tree
from trainer.config.schema import TrainerConfig

SECTIONS = {
    "aws": "AWS",
    "gcp": "Google Cloud",
    "hosts": "Hosts of your own",
    "kubernetes": "Kubernetes",
    "slurm": "Slurm",
    "skypilot": "SkyPilot",
}
README = (REPOSITORY / "cluster" / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_names_what_is_to_be_filled_in_and_nothing_else(kind: str) -> None:
    table = section(SECTIONS[kind]).split("| fill in |")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {key for row in rows for key in re.findall(r"`([\w.]+)`", row)}
    assert named == set(render.list_unfilled(read_values(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_filled_in_file_gives_files_without_gaps(kind: str, tmp_path: Path) -> None:
    (tmp_path / f"{kind}.yaml").write_text(filled_text(kind), encoding="utf-8")
    values = read_values(kind, folder=tmp_path)
    assert render.list_unfilled(values) == []
    assert not any("fill-in" in made for made in render.render(kind, values).values())


def test_the_readmes_costs_are_those_of_the_values() -> None:
    assert "\n".join(costs.table()) in README
    rate = re.search(r"at the (\d+)k tokens/s", README)
    assert rate is not None
    assert int(rate[1]) == round(costs.TOKENS_PER_SECOND / 1000)


def test_the_cpu_hours_are_those_of_the_recipe_and_of_the_page_on_scale() -> None:
    recipe = (REPOSITORY / "pipeline" / "configs" / "wikipedia_books.yaml").read_text(encoding="utf-8")
    scale = (REPOSITORY / "docs" / "SCALE.md").read_text(encoding="utf-8")
    told = [
        re.search(pattern, text)
        for pattern, text in (
            (r"takes (\d+) CPU hours: (\d+) minutes on (\d+) cores", README),
            (r"work +(\d+) CPU hours: (\d+) minutes on (\d+) cores", recipe),
            (r"\| all \| \| (\d+): (\d+) minutes on (\d+) cores", scale),
        )
    ]
    assert len({match.groups() for match in told if match is not None}) == 1
    assert None not in told


def test_render_writes_files_and_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert __main__.main(["slrm"]) == 2
    assert "no such kind of cluster and no such set: slrm; did you mean slurm?" in capsys.readouterr().err
    assert __main__.main(["--help"]) == 0
    assert "efa_interfaces (int, default 32): EFA network cards" in capsys.readouterr().out
    shutil.copytree(CLUSTER / "values", tmp_path / "values")
    __main__.write(render.shipped_set("slurm", folder=tmp_path))
    assert f"fill in {tmp_path}/values/slurm.yaml: account, partition" in capsys.readouterr().out
    for name in ("train", "preprocess"):
        script = tmp_path / "slurm" / f"{name}.sbatch"
        assert script.stat().st_mode & 0o111
        shipped = (CLUSTER / "slurm" / f"{name}.sbatch").read_text(encoding="utf-8")
        assert script.read_text(encoding="utf-8") == shipped.replace("from cluster/", f"from {tmp_path}/")


def test_without_optional_parts_files_are_still_whole() -> None:
    plain = read_values("aws").model_copy(update={"fsx": None, "efa_interfaces": 0, "capacity_reservation": "cr-1"})
    made = yaml.safe_load(render.render("aws", plain)["aws/on-demand.yaml"])
    node = made["available_node_types"]["gpu"]["node_config"]
    assert "NetworkInterfaces" not in node
    assert node["CapacityReservationSpecification"]["CapacityReservationTarget"] == {"CapacityReservationId": "cr-1"}
    assert not any("lustre" in command for command in made["initialization_commands"])
    assert "/shared:/shared" not in made["docker"]["run_options"]
    bucket = read_values("gcp").model_copy(update={"filestore": None, "data_networks": ()})
    made = yaml.safe_load(render.render("gcp", bucket)["gcp/spot.yaml"])
    assert len(made["available_node_types"]["gpu"]["node_config"]["networkInterfaces"]) == 1
    alone = read_values("hosts").model_copy(update={"cpu_hosts": ()})
    made = yaml.safe_load(render.render("hosts", alone)["hosts/cluster.yaml"])
    assert "/dev/nvidia0" not in made["worker_start_ray_commands"][-1]
    assert '{"preprocessing":64}' in made["worker_start_ray_commands"][-1]


TRAIN, BUILD = "python trainer/run.py --config c", "python pipeline/run.py --config c ray.resource=preprocessing"
WORD = "give one word without spaces, quotes or other characters of a shell"
REFUSED = [
    ("slurm", "account='a b'", f"account='a b': {WORD}"),
    ("slurm", "partition='$(x)'", f"partition=.*: {WORD}"),
    ("slurm", "network_interface=a;b", "network_interface=.*: give names of network cards"),
    ("slurm", 'repository="a\\nb"', "repository=.*: give an absolute path without .. and without characters"),
    ("slurm", "commands.train=''", r"commands\.train=: begin with `python trainer/run.py`"),
    ("slurm", "gpu.min_nodes=9", "min_nodes=9 exceeds max_nodes=4; lower it"),
    ("slurm", "gpu.max_nodes=2", r"commands\.train: workers=32: give 1 to 16, the GPUs of all nodes"),
    ("slurm", "commands.train=python3 trainer/run.py", "begin with `python trainer/run.py`"),
    ("slurm", f"commands.train={TRAIN} min_workers=many", "min_workers=many: give 1 to 32"),
    ("skypilot", f"command={TRAIN} 'a", "a shell cannot read it: No closing quotation"),
    ("gcp", "gpu.gpus=0", r"gpu\.gpus=0: give the number of a node"),
    ("gcp", "cpu.gpus=1", r"cpu\.gpus=1: only the group gpu has machines with GPUs"),
    ("gcp", "cpu.memory_gib=1", r"cpu\.memory_gib=1: Input should be greater than or equal to 2"),
    ("gcp", "idle_minutes=600", "idle_minutes=600: Input should be less than or equal to 60"),
    ("gcp", "boot_timeout_s=900", "boot_timeout_s=900: Ray would stop a GPU node .*; set 1200 or more"),
    ("gcp", "regoin=us", "unknown key 'regoin'.*did you mean 'region'"),
    ("aws", "images.training=host:5000/training", r"images\.training=.*: name a version other than latest"),
    ("aws", "images.preprocessing=host/a:latest", r"images\.preprocessing=.*: name a version other than latest"),
    ("hosts", "image=a", "image='a': name a version other than latest"),
    ("hosts", "gpu_hosts.1=gpu1.fill-in", "gpu1.fill-in: give each host once"),
    ("hosts", "gpu.max_nodes=3", r"gpu\.max_nodes=3, but gpu_hosts has 4; make them equal"),
    ("kubernetes", "name=Cloze", "name='Cloze': give at most 30 lowercase letters"),
    ("kubernetes", "retries=-1", "retries=-1: Input should be greater than or equal to 0"),
    ("kubernetes", "shm_gib=640", r"shm_gib=640 is more than half of gpu\.memory_gib=1024"),
    ("kubernetes", "commands.train=''", r"commands\.train=: begin with `python trainer/run.py`"),
    ("kubernetes", f"commands.train={TRAIN} 'model.size=base'", "write it without '"),
    ("kubernetes", f"commands.preprocess={BUILD}", r"commands\.preprocess: workers=: give 1 to 512, the CPUs of"),
    ("kubernetes", f"commands.preprocess={BUILD} workers=513", "workers=513: give 1 to 512"),
    ("kubernetes", "commands.preprocess=python pipeline/run.py --config c workers=9", "add ray.resource=preprocessing"),
]


@pytest.mark.parametrize(("kind", "override", "message"), REFUSED)
def test_values_that_cannot_work_are_refused(kind: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(kind, override)


def read(kind: str, *overrides: str) -> Any:
    """The shipped values of a kind with overrides."""
    tree = load_tree(VALUES / f"{kind}.yaml", overrides=overrides)
    assert tree.pop("kind") == kind
    return validate_values(kind, tree, origin="test")


def test_an_image_may_be_named_by_its_digest() -> None:
    digest = f"host/a@sha256:{'0' * 64}"
    assert read("hosts", f"image={digest}").image == digest


def test_what_is_shipped_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([*KINDS]) == 0
    assert capsys.readouterr().out.endswith("\nfaults: 0\n")
    assert list(check.find_leaks(path for path in CLUSTER.rglob("*") if path.suffix in check.SCANNED)) == []


KEY, LONG = "AKIA" + "Q" * 16, "x9" * 16
FAULTS = [
    (
        "aws/on-demand.yaml",
        "VolumeSize: ",
        "VolumeSize: 1",
        r"on-demand\.yaml: does not match .*run `make cluster`",
    ),
    ("values/aws.yaml", "disk_gib: ", "disk_gib: 1", r"aws/spot\.yaml: does not match .*values/aws\.yaml"),
    (
        "values/aws.yaml",
        "region: us",
        f"region: {KEY}",
        r"aws\.yaml: line 6 looks like an AWS key; remove it, and revoke",
    ),
    ("values/slurm.yaml", "hours: 24", "hours: 24 # -----BEGIN RSA PRIVATE KEY-----", "a private key"),
    ("values/kubernetes.yaml", "min_workers=8", f"a=ghp_{LONG}", "a token of a code host"),
    ("values/kubernetes.yaml", "min_workers=8", f"a=AIza{LONG}{'y' * 3}", "a key of Google"),
    ("images/training.Dockerfile", "ENV HOME", f"ENV API_KEY={LONG} HOME", "a long secret"),
    ("images/training.Dockerfile", "ENV HOME", "\udcff", "training.Dockerfile: cannot be read as UTF-8 text"),
]


@pytest.mark.parametrize(("name", "old", "new", "found"), FAULTS)
def test_the_check_finds_what_is_wrong_in_files(tmp_path: Path, name: str, old: str, new: str, found: str) -> None:
    folder = copy_cluster(tmp_path)
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8", errors="surrogateescape")
    faults = list(check.find_faults([render.shipped_set(kind, folder=folder) for kind in KINDS]))
    assert any(re.search(found, fault) for fault in faults), faults


def copy_cluster(folder: Path) -> Path:
    """A copy of cluster/ in `folder`, rendered from its own values."""
    shutil.copytree(CLUSTER, folder / "cluster", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for kind in KINDS:
        __main__.write(render.shipped_set(kind, folder=folder / "cluster"))
    return folder / "cluster"


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    folder = copy_cluster(tmp_path)
    (folder / "hosts" / "cluster.yaml").unlink()
    told = f"{folder}/hosts/cluster.yaml: does not match {folder}/values/hosts.yaml; run `make cluster`"
    assert list(check.find_faults([render.shipped_set(kind, folder=folder) for kind in KINDS])) == [told]


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_training_configs_fit_every_cluster(kind: str) -> None:
    values: Any = read_values(kind)
    for path in (REPOSITORY / "trainer" / "configs").glob("*.yaml"):
        config = load_settings(TrainerConfig, file=path)
        assert config.workers <= values.gpu.gpus * values.gpu.max_nodes
        assert config.start_timeout_s > values.boot_timeout_s


def test_a_command_keeps_its_quotes_in_a_batch_script() -> None:
    values = read_values("slurm")
    commands = values.commands.model_copy(update={"train": "echo 'a  b' \"$((1 + 1))\""})  # type: ignore[attr-defined]
    made = render.render("slurm", values.model_copy(update={"commands": commands}))["slurm/train.sbatch"]
    line = next(line for line in made.splitlines() if "exec echo" in line)
    script = line.replace('"$driver" "$head:$port" &', "/dev/null address")
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "a  b 2\n"
