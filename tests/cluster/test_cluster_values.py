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
from cluster.render import KINDS, VALUES, __main__, read_values
from pipeline.settings import ConfigError, load_settings
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
    text = (VALUES / f"{kind}.yaml").read_text(encoding="utf-8").replace("fill-in", "mine")
    (tmp_path / f"{kind}.yaml").write_text(text, encoding="utf-8")
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
    assert "no such kind of cluster: slrm; known: aws, gcp" in capsys.readouterr().err
    assert __main__.main(["--help"]) == 0
    assert "efa_interfaces (int, default 32): EFA network cards" in capsys.readouterr().out
    __main__.write("slurm", folder=tmp_path)
    assert "fill in cluster/values/slurm.yaml: account, partition" in capsys.readouterr().out
    script = tmp_path / "slurm" / "train.sbatch"
    assert script.stat().st_mode & 0o111
    assert script.read_bytes() == (CLUSTER / "slurm" / "train.sbatch").read_bytes()


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


TRAIN, BUILD = "python trainer/run.py", "python pipeline/run.py ray.resource=preprocessing"
REFUSED = [
    ("slurm", "account='a b'", "account='a b': String should match pattern"),
    ("slurm", "partition='$(x)'", "partition=.*: String should match pattern"),
    ("slurm", "network_interface=a;b", "network_interface=.*: String should match pattern"),
    ("slurm", 'repository="a\\nb"', "repository=.*: String should match pattern"),
    ("slurm", "command=''", "command=.*: String should match pattern"),
    ("slurm", "gpu.min_nodes=9", "min_nodes=9 exceeds max_nodes=4; lower it"),
    ("slurm", "gpu.max_nodes=2", "command: workers=32: give 1 to 16, the GPUs of all nodes"),
    ("slurm", "command=python3 trainer/run.py", "begin with `python trainer/run.py`"),
    ("slurm", f"command={TRAIN} min_workers=many", "min_workers=many: give 1 to 32"),
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
    ("kubernetes", "name=Cloze", "name='Cloze': String should match pattern"),
    ("kubernetes", "retries=-1", "retries=-1: Input should be greater than or equal to 0"),
    ("kubernetes", "shm_gib=640", r"shm_gib=640 is more than half of gpu\.memory_gib=1024"),
    ("kubernetes", "commands.train=''", r"commands\.train=: begin with `python trainer/run.py`"),
    ("kubernetes", f"commands.train={TRAIN} 'a b'", "write it without '"),
    ("kubernetes", f"commands.preprocess={BUILD}", r"commands\.preprocess: workers=: give 1 to 512, the CPUs of"),
    ("kubernetes", f"commands.preprocess={BUILD} workers=513", "workers=513: give 1 to 512"),
    ("kubernetes", "commands.preprocess=python pipeline/run.py workers=9", "add ray.resource=preprocessing, or GPU"),
]


@pytest.mark.parametrize(("kind", "override", "message"), REFUSED)
def test_values_that_cannot_work_are_refused(kind: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(KINDS[kind], file=VALUES / f"{kind}.yaml", overrides=[override])


def test_an_image_may_be_named_by_its_digest() -> None:
    digest = f"host/a@sha256:{'0' * 64}"
    values = load_settings(KINDS["hosts"], file=VALUES / "hosts.yaml", overrides=[f"image={digest}"])
    assert values.model_dump()["image"] == digest


def test_what_is_shipped_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 0
    assert capsys.readouterr().out == "faults: 0\n"


KEY, LONG = "AKIA" + "Q" * 16, "x9" * 16
FAULTS = [
    (
        "aws/on-demand.yaml",
        "VolumeSize: ",
        "VolumeSize: 1",
        r"on-demand\.yaml: does not match .*run `make cluster`",
    ),
    ("values/aws.yaml", "disk_gib: ", "disk_gib: 1", r"aws/spot\.yaml: does not match .*values/aws\.yaml"),
    ("values/aws.yaml", "region: us", "regoin: us", "unknown key 'regoin'"),
    ("values/aws.yaml", "region: us", "region: a\nregion: us", "'region' appears twice"),
    ("values/gcp.yaml", "max_nodes: 8", "max_nodes: 8\n  min_nodes: 1", r"cpu\.min_nodes=1: these nodes never stop"),
    ("values/aws.yaml", "name: cloze", "name: cloze\nboot_timeout_s: 1800", "waits only start_timeout_s=1800"),
    (
        "values/aws.yaml",
        "region: us",
        f"region: {KEY}",
        r"aws\.yaml: line 4 looks like an AWS key; remove it, and revoke",
    ),
    ("values/slurm.yaml", "hours: 24", "hours: 24 # -----BEGIN RSA PRIVATE KEY-----", "a private key"),
    ("values/kubernetes.yaml", "min_workers=8", f"a=ghp_{LONG}", "a token of a code host"),
    ("values/kubernetes.yaml", "min_workers=8", f"a=AIza{LONG}{'y' * 3}", "a key of Google"),
    ("images/training.Dockerfile", "ENV HOME", f"ENV API_KEY={LONG} HOME", "a long secret"),
]


@pytest.mark.parametrize(("name", "old", "new", "found"), FAULTS)
def test_the_check_finds_what_a_user_may_get_wrong(tmp_path: Path, name: str, old: str, new: str, found: str) -> None:
    folder = tmp_path / "cluster"
    shutil.copytree(CLUSTER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    faults = list(check.find_faults(folder))
    assert any(re.search(found, fault) for fault in faults), faults


def test_a_missing_file_is_a_fault_and_the_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CLUSTER, tmp_path / "cluster", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (tmp_path / "cluster" / "hosts" / "cluster.yaml").unlink()
    monkeypatch.setattr(check, "CLUSTER", tmp_path / "cluster")
    monkeypatch.setattr(check, "REPOSITORY", tmp_path)
    assert check.main([]) == 1
    told = "cluster/hosts/cluster.yaml: does not match cluster/values/hosts.yaml; run `make cluster`\nfaults: 1\n"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_training_configs_fit_every_cluster(kind: str) -> None:
    values: Any = read_values(kind)
    for path in (REPOSITORY / "trainer" / "configs").glob("*.yaml"):
        config = load_settings(TrainerConfig, file=path)
        assert config.workers <= values.gpu.gpus * values.gpu.max_nodes
        assert config.start_timeout_s > values.boot_timeout_s


def test_a_command_keeps_its_quotes_in_a_batch_script() -> None:
    values = read_values("slurm").model_copy(update={"command": "echo 'a  b' \"$((1 + 1))\""})
    line = next(
        line for line in render.render("slurm", values)["slurm/train.sbatch"].splitlines() if "exec echo" in line
    )
    script = line.replace('"$driver" "$head:$port" &', "/dev/null address")
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "a  b 2\n"
