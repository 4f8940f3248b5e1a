"""Files in FOLDER/lease that no command wrote: damaged, or from somebody who wants to mislead."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.signals import StopRequest
from pipeline.storage import LeaseError, held, hold, lease, refuse_if_alive


def claim_tree(**changes: Any) -> dict[str, Any]:
    holder = {
        "host": "elsewhere", "boot": "", "pid_namespace": "", "pid": 1, "started": 1, "token": "f" * 32,
        "since": "now", "timeout_s": 5,
    }  # fmt: skip
    tree = {"number": 1, "beat": 0, "holds": True, "holder": {**holder, **changes.pop("holder", {})}}
    return {**tree, **changes}


NO_CLAIMS: dict[str, str] = {
    "too deep": "[" * 100_000,
    "too long": json.dumps(claim_tree()) + " " * 100_000,
    "too deep and short": "[" * 60_000,
    "a list": "[]",
    "a number": "5",
    "a text as number": json.dumps(claim_tree(number="1")),
    "a truth value as number": json.dumps(claim_tree(number=True)),
    "a number as truth value": json.dumps(claim_tree(holds=1)),
    "a list as token": json.dumps(claim_tree(holder={"token": []})),
    "a text as time-out": json.dumps(claim_tree(holder={"timeout_s": "5"})),
    "a time-out of years": json.dumps(claim_tree(holder={"timeout_s": 10**9})),
    "a time-out in the past": json.dumps(claim_tree(holder={"timeout_s": -5})),
    "half a character as host": json.dumps(claim_tree(holder={"host": "a\ud800"})),
    "two lines as time": json.dumps(claim_tree(holder={"since": "now\nerror: all is lost"})),
    "a float as process": json.dumps(claim_tree(holder={"pid": 1.5})),
    "a list as host": json.dumps(claim_tree(holder={"host": [1]})),
    "another name": json.dumps(claim_tree(number=2)),
    "a token that leads elsewhere": json.dumps(claim_tree(holder={"token": "/../../../precious"})),
    "a holder that is none": json.dumps(claim_tree() | {"holder": 5}),
}


@pytest.mark.parametrize("kind", NO_CLAIMS)
def test_a_file_that_is_no_claim_stops_nobody(kind: str, tmp_path: Path) -> None:
    """Of any type and depth; no file elsewhere is removed because of it."""
    (tmp_path / "out" / "lease").mkdir(parents=True)
    name = f"00000001-{'f' * 32}.json"
    (tmp_path / "out" / "lease" / name).write_text(NO_CLAIMS[kind])
    (tmp_path / "precious.json").write_text("mine")
    said: list[str] = []
    with hold(tmp_path / "out", timeout_s=5, say=said.append) as token, held(tmp_path / "out", token=token):
        refuse_if_alive(tmp_path / "elsewhere")
    assert said == []
    assert (tmp_path / "precious.json").read_text() == "mine"


def test_a_claim_of_another_machine_is_read(tmp_path: Path) -> None:
    """The claim that those above are variants of."""
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / f"00000001-{'f' * 32}.json").write_text(json.dumps(claim_tree()))
    (claim,) = lease._look(tmp_path)
    assert (claim.number, claim.holder.host, claim.holder.timeout_s) == (1, "elsewhere", 5)


@pytest.mark.parametrize("part", [".", "lease"])
def test_a_folder_that_was_deleted_under_its_command_is_said(part: str, tmp_path: Path) -> None:
    said: list[str] = []
    stop, lost = StopRequest(), threading.Event()
    folder = tmp_path / "out"
    with hold(folder, timeout_s=1, say=said.append, stop=stop, note_loss=lost.set) as token:
        shutil.rmtree(folder / part)
        with pytest.raises(LeaseError, match="or the folder was deleted or moved"), held(folder, token=token):
            raise AssertionError("the block was entered")
        assert lost.wait(60)
    assert said == [f"output={folder}: the folder was deleted or moved; this one stops"]
    assert stop
