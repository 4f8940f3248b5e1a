"""What a user fills in is all named in the README; costs are what the values give; images install what is pinned."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster import REPOSITORY, costs, render, try_images
from cluster.render import KINDS, VALUES, __main__, read_values
from pipeline.settings import ConfigError, load_settings

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


def test_render_says_what_is_missing_and_what_is_out_of_date(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert __main__.main(["slrm"]) == 2
    assert "no such kind of cluster: slrm; known: aws, gcp" in capsys.readouterr().err
    assert __main__.main(["--check"]) == 0
    assert __main__.main(["--help"]) == 0
    assert "efa_interfaces (int, default 32): EFA network cards" in capsys.readouterr().out
    __main__.write("slurm", folder=tmp_path)
    assert "still to be given in cluster/values/slurm.yaml: account, partition" in capsys.readouterr().out
    script = tmp_path / "slurm" / "train.sbatch"
    assert script.stat().st_mode & 0o111
    assert render.list_outdated("slurm", values=read_values("slurm"), folder=tmp_path) == []
    script.write_text(script.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert render.list_outdated("slurm", values=read_values("slurm"), folder=tmp_path) == ["slurm/train.sbatch"]
    monkeypatch.setattr(__main__, "list_outdated", lambda kind, values: [f"{kind}/x.yaml"])
    assert __main__.main(["aws", "--check"]) == 1
    assert "cluster/aws/x.yaml: not what its values give; run `make cluster`" in capsys.readouterr().err


def test_without_optional_parts_files_are_still_whole() -> None:
    aws, gcp, hosts = read_values("aws"), read_values("gcp"), read_values("hosts")
    plain = aws.model_copy(update={"fsx": None, "efa_interfaces": 0, "capacity_reservation": "cr-1"})
    made = yaml.safe_load(render.render("aws", plain)["aws/on-demand.yaml"])
    node = made["available_node_types"]["gpu"]["node_config"]
    assert "NetworkInterfaces" not in node
    assert node["CapacityReservationSpecification"]["CapacityReservationTarget"] == {"CapacityReservationId": "cr-1"}
    assert not any("lustre" in command for command in made["initialization_commands"])
    assert "/shared:/shared" not in made["docker"]["run_options"]
    bucket = gcp.model_copy(update={"filestore": None, "data_networks": ()})
    made = yaml.safe_load(render.render("gcp", bucket)["gcp/spot.yaml"])
    assert len(made["available_node_types"]["gpu"]["node_config"]["networkInterfaces"]) == 1
    alone = hosts.model_copy(update={"cpu_hosts": ()})
    made = yaml.safe_load(render.render("hosts", alone)["hosts/cluster.yaml"])
    assert "/dev/nvidia0" not in made["worker_start_ray_commands"][-1]
    assert '{"preprocessing":64}' in made["worker_start_ray_commands"][-1]


def test_values_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "slurm.yaml").write_text("name: cloze\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'account' is required"):
        read_values("slurm", folder=tmp_path)
    for override, message in [
        ("gpu.gpus=0", r"gpu\.gpus=0: give those of a node"),
        ("cpu.gpus=1", r"cpu\.gpus=1: machines with GPUs belong to the group gpu alone"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_settings(KINDS["gcp"], file=VALUES / "gcp.yaml", overrides=[override])
    for override in ("account='a b'", "partition='$(x)'", "network_interface=a;b", 'repository="a\\nb"', "command=''"):
        with pytest.raises(ConfigError, match=f"{override.partition('=')[0]}=.*: String should match pattern"):
            load_settings(KINDS["slurm"], file=VALUES / "slurm.yaml", overrides=[override])


def test_a_command_keeps_its_quotes_in_a_batch_script() -> None:
    values = read_values("slurm").model_copy(update={"command": "echo 'a  b' \"$((1 + 1))\""})
    line = next(
        line for line in render.render("slurm", values)["slurm/train.sbatch"].splitlines() if "exec echo" in line
    )
    script = line.replace('"$driver" "$head:$port" &', "/dev/null address")
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "a  b 2\n"


@pytest.mark.parametrize("image", try_images.TRIALS)
def test_all_that_an_image_installs_is_pinned_to_what_the_tests_run_with(image: str, repository: Path) -> None:
    """Walks the requirements of the installed packages from the image's extras: each is in constraints.txt."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    extras = try_images.list_extras(image).split(",")
    wanted = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    open_ends = [Requirement(each) for each in wanted]
    seen: set[tuple[str, str]] = set()
    for_linux = {"platform_system": "Linux", "sys_platform": "linux", "python_version": "3.12", "extra": ""}
    while open_ends:
        requirement = open_ends.pop()
        name = canonicalize_name(requirement.name)
        try:
            installed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            installed = []  # in the images alone (GPU libraries that torch pins itself, boto3): its pin is enough
        if name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        assert name in pins, f"{image}: {requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pins[name], prereleases=True), f"{image}: {requirement}, {pins[name]}"
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in installed:
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({**for_linux, "extra": extra}):
                    open_ends.append(inner)
    assert len(seen) > 50
