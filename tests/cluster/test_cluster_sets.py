"""Sets of values in a folder: each is rendered and checked alone. What a cluster may cost is shown and bounded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from cluster import REPOSITORY, check, costs
from cluster.render import (
    KINDS,
    CloudValues,
    __main__,
    choose_sets,
    greatest_prices,
    list_sets,
    read_set,
    render,
    sets,
    validate_values,
)
from filled_values import filled_text, filled_tree, write_set
from pipeline.settings import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes the place of clusters/."""
    for module in (check, __main__):
        monkeypatch.setattr(module, "SETS", tmp_path)
    return tmp_path


def test_two_clusters_of_one_provider_have_files_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    east, west = filled_text("aws"), filled_text("aws").replace("name: cloze", "name: west")
    write_set(folder, east)
    write_set(folder, west.replace("max_nodes: 4", "max_nodes: 2"), name="west")
    before = {path: path.read_bytes() for path in (REPOSITORY / "cluster").rglob("*.yaml")}
    assert __main__.main(["east", "west"]) == 0
    assert {path: path.read_bytes() for path in before} == before, "no tracked file changes"
    for name, nodes in (("east", 4), ("west", 2)):
        text = (folder / name / "spot.yaml").read_text(encoding="utf-8")
        assert text.startswith(
            f"# Made by `make cluster SET={name}` from {folder}/{name}.yaml: change that, not this.\n"
        )
        assert yaml.safe_load(text)["available_node_types"]["gpu"]["max_workers"] == nodes
    capsys.readouterr()
    assert check.main(["--ready"]) == 0
    assert capsys.readouterr().out.endswith("faults: 0\n")


def test_files_of_another_kind_are_left_over_in_a_set_that_changed(folder: Path) -> None:
    chosen = write_set(folder, filled_text("aws"))
    assert __main__.main(["east"]) == 0
    (chosen.folder / "mine.yaml").write_text("a: 1\n", encoding="ascii")
    write_set(folder, filled_text("slurm"))
    assert __main__.main(["east"]) == 0
    assert list(check.find_faults([chosen])) == [
        f"{chosen.folder}/{name}.yaml: left over, {chosen.file} is of kind slurm now; remove it"
        for name in ("on-demand", "spot")
    ]
    assert check.MADE in (chosen.folder / "train.sbatch").read_text(encoding="utf-8")


def test_a_fault_in_one_set_does_not_touch_the_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(folder, filled_text("slurm").replace("hours: 24", "hours: many"), name="broken")
    write_set(folder, filled_text("slurm"), name="right")
    assert __main__.main(["broken", "right"]) == 2
    done = capsys.readouterr()
    assert f"error: {folder}/broken.yaml: hours='many'" in done.err
    assert (folder / "right" / "train.sbatch").is_file()
    assert check.main(["right"]) == 0
    assert check.main(["broken"]) == 1
    assert check.main(["--ready"]) == 1
    assert "broken.yaml: hours='many'" in capsys.readouterr().out


def test_ready_refuses_what_is_still_to_fill_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = filled_text("slurm").replace("account: mine", "account: Fill_In")
    chosen = write_set(folder, text)
    __main__.write(chosen)
    assert f"fill in {folder}/east.yaml: account\n" in capsys.readouterr().out
    assert check.main(["east"]) == 0
    assert check.main(["--ready", "east"]) == 1
    assert f"{folder}/east.yaml: account=Fill_In: still says fill-in; give your value\n" in capsys.readouterr().out


def test_every_shipped_example_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        assert check.main(["--ready", kind]) == 1
        assert "still says fill-in; give your value" in capsys.readouterr().out


def test_ready_without_sets_asks_for_a_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--ready"]) == 2
    assert "--ready: name the kind or the set" in capsys.readouterr().err
    assert check.main(["esat"]) == 2
    assert check.main(["esat.yaml"]) == 2
    assert "esat.yaml: no such file of values; make it: cp cluster/values/KIND.yaml esat" in capsys.readouterr().err
    write_set(folder, filled_text("slurm"))
    assert check.main(["esat"]) == 2
    assert "no such set: esat; did you mean east?" in capsys.readouterr().err


def test_sets_are_found_by_name_and_by_path(folder: Path) -> None:
    chosen = write_set(folder, filled_text("slurm"))
    assert choose_sets(["east"], folder=folder) == [chosen]
    assert choose_sets([str(chosen.file)], folder=Path("nowhere")) == [chosen]
    assert [each.file.name for each in list_sets(folder)] == ["east.yaml"]
    (shipped,) = choose_sets([str(sets.VALUES / "aws.yaml")], folder=folder)
    assert shipped.shipped
    assert [each.file.stem for each in choose_sets([], folder=folder)] == [*KINDS, "east"]


def test_two_sets_that_would_be_one_cluster_are_refused(folder: Path) -> None:
    """`ray up` finds a cluster's machines by its name within the region, and has no other mark of it."""
    one, two = write_set(folder, filled_text("aws")), write_set(folder, filled_text("aws"), name="two")
    other = write_set(folder, filled_text("aws").replace("name: cloze", "name: other"), name="other")
    for chosen in (one, two, other):
        __main__.write(chosen)
    place = f"name=cloze in us-east-1 is in {folder}/east.yaml too"
    told = f"{folder}/two.yaml: {place}; `ray up` takes both for one; rename it"
    assert list(check.find_faults([one, two, other])) == [told]
    hosts = [write_set(folder, filled_text("hosts").replace("head.mine", f"{name}.mine"), name=name) for name in "ab"]
    for chosen in hosts:
        __main__.write(chosen)
    assert "host cpu1.mine is in" in next(check.find_faults(hosts))
    examples = choose_sets(["aws"], folder=folder)
    assert list(check.find_faults([*examples, one])) == [], "an example that is not filled in takes no name"


def test_a_set_that_was_changed_or_not_rendered_is_told_with_its_command(folder: Path) -> None:
    chosen = write_set(folder, filled_text("hosts"))
    told = f"{folder}/east/cluster.yaml: does not match {folder}/east.yaml; run `make cluster SET=east`"
    assert list(check.find_faults([chosen])) == [told]
    __main__.write(chosen)
    assert list(check.find_faults([chosen])) == []
    write_set(folder, filled_text("hosts").replace("ssh_user: mine", "ssh_user: other"))
    assert list(check.find_faults([chosen])) == [told]


def test_a_secret_in_a_set_is_found_even_if_its_values_are_refused(folder: Path) -> None:
    text = filled_text("slurm").replace("hours: 24", f"hours: many  # token: {'x9' * 16}")
    faults = list(check.find_faults([write_set(folder, text)]))
    assert any("looks like a long secret; remove it, and revoke it" in fault for fault in faults)


def test_a_folder_that_cannot_be_written_is_an_error_of_the_user(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(folder, filled_text("hosts"))
    (folder / "east").write_text("in the way", encoding="ascii")
    assert __main__.main(["east"]) == 2
    assert f"error: {folder}/east/cluster.yaml: cannot be written" in capsys.readouterr().err


def test_git_ignores_the_sets_of_a_user() -> None:
    done = subprocess.run(["git", "check-ignore", "-q", "clusters/east.yaml"], cwd=REPOSITORY, check=False)
    assert done.returncode in (0, 128)  # 128: not a checkout
    assert "clusters" in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()


def aws(**changes: object) -> CloudValues:
    values = validate_values("aws", filled_tree("aws") | changes, origin="test")
    assert isinstance(values, CloudValues)
    return values


def test_the_greatest_price_is_that_of_all_nodes() -> None:
    """By hand: 0.40 + 4 x 55.04 + 8 x 3.23; with spot nodes 4 x 25."""
    totals = [sum(n * p for n, _, p in greatest_prices(aws(), spot=spot)) for spot in (False, True)]
    assert totals == pytest.approx([0.40 + 220.16 + 25.84, 0.40 + 100.0 + 25.84])


@pytest.mark.parametrize("name", ["spot", "on-demand"])
def test_the_price_bounds_every_cluster_that_the_file_allows(name: str) -> None:
    """No choice of nodes within the limits of the file costs more than the greatest price."""
    tree = yaml.safe_load(render("aws", aws())[f"aws/{name}.yaml"])
    types = tree["available_node_types"]
    prices = {price.name: price for price in greatest_prices(aws(), spot=False)}
    assert set(types) == set(prices)
    assert tree["max_workers"] == types["cpu"]["max_workers"] + types["gpu"]["max_workers"]
    for kind in ("cpu", "gpu"):
        assert types[kind]["max_workers"] == prices[kind].nodes


def test_a_cluster_that_may_cost_too_much_is_refused_before_a_file_is_made(folder: Path) -> None:
    chosen = write_set(folder, filled_text("aws").replace("max_price_per_hour: 250", "max_price_per_hour: 240"))
    with pytest.raises(ConfigError, match=r"cost up to \$246\.40 an hour \(1 head x .*lower max_nodes, or raise it"):
        __main__.write(chosen)
    assert not chosen.folder.exists()


def test_the_price_is_shown_where_files_are_made_and_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_set(folder, filled_text("aws"))
    line = "east.yaml: at most $246.40 an hour (1 head x $0.4 + 4 gpu x $55.04 + 8 cpu x $3.23), without work"
    assert __main__.main(["east"]) == 0
    assert line in capsys.readouterr().out
    assert check.main(["--ready", "east"]) == 0
    assert line in capsys.readouterr().out


def test_skypilot_itself_refuses_machines_above_the_limit() -> None:
    """SkyPilot's limit is that of one node (docs/source/reference/yaml-spec.rst, resources.max_hourly_cost)."""
    values = validate_values("skypilot", filled_tree("skypilot") | {"max_price_per_hour": 100.0}, origin="test")
    made = yaml.safe_load(render("skypilot", values)["skypilot/train.yaml"])
    assert made["resources"]["max_hourly_cost"] == 25.0
    assert list(costs.describe_costs(values)) == ["at most $100.00 an hour (4 nodes of up to $25.00)"]


def test_kinds_without_prices_say_nothing(folder: Path) -> None:
    assert list(costs.describe_costs(read_set(write_set(folder, filled_text("slurm")))[1])) == []
