"""Manifests whose hash is right and whose values no data set has: refused in one line, whatever reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.dataset.manifest import MANIFEST_NAME, DataSetError, canonical_json, read_manifest
from synthetic import write_data_set
from trainer.run import main

VALUES: list[Any] = [-1, 0, 10**18, 2**63, 1.5, True, None, "x", "\x1b[31m\nhi", [], {}, [1, "a"], {"a": {"b": 1}}]
FREE = ("config", "drops", "versions", "statistics.sources", "statistics.text", "statistics.notes")
"""Keys whose values no reader of rows uses, or only shows."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    write_data_set(root, shards=1, row_groups=2, rows=20, max_seq_length=32, vocabulary_size=256)
    return root


def write_tree(root: Path, tree: dict[str, Any]) -> None:
    stated = hashlib.sha256(canonical_json(tree)).hexdigest()
    (root / MANIFEST_NAME).write_text(json.dumps({"hash": stated, "run": {}, **tree}))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node[:2]) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def changed(tree: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(tree))
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return dict(copy)


def test_no_value_of_a_manifest_ends_a_run_by_a_traceback(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every value replaced by others of any type and size: the run can begin, or one line says why not."""
    tree = json.loads((data / MANIFEST_NAME).read_text())
    del tree["hash"], tree["run"]
    (tmp_path / "c.yaml").write_text("max_steps: 5\n")
    words = [
        *("--config", str(tmp_path / "c.yaml"), f"data={data}", f"output={tmp_path / 'run'}", "batch.pairs=8"),
        *("batch.lanes=4", "model.size=tiny", "workers=1", "precision=fp32", "device=cpu", "launcher=processes"),
        "--dry-run",
    ]
    refused = 0
    try:
        for place in places(tree):
            if place and not ".".join(map(str, place)).startswith(FREE):
                for value in VALUES:
                    write_tree(data, changed(tree, place, value))
                    status = main(words)
                    said = capsys.readouterr().err
                    assert status in (0, 2), (place, value)
                    assert said.count("\n") == (status == 2), (place, value, said)
                    assert "\x1b" not in said
                    refused += status == 2
    finally:
        write_tree(data, tree)
    assert refused > 400
    assert main(words) == 0


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (("mask_sets",), 0, "mask_sets=0: not from 1 to 65535"),
        (("max_seq_length",), 0, "max_seq_length=0: not from 1 to"),
        (("vocabulary_size",), 2**40, "vocabulary_size=1099511627776: not from"),
        (("special", "mask"), 256, "special.mask=256: not one of the 256 token ids"),
        (("shards", 0, "row_group_rows", 0), 2**63, r"shards: 'data/.*': rows=40: not the sum of row_group_rows"),
        (("shards", 0, "row_group_tokens"), [], r"tokens=\d+: not the sum of row_group_tokens"),
        (("shards", 0, "max_masked"), -1, r"max_masked=-1.*: not possible"),
        (("shards", 0, "footer_sha256"), "\x1b[2J", "has characters that cannot be shown"),
        (("sources", 0), "a\nb", r"'a\\nb': has characters that cannot be shown"),
        (("statistics", "splits"), [], r"statistics\.splits: not a mapping"),
        (
            ("statistics", "splits", "train", "lengths"),
            "x",
            r"statistics\.splits\.train\.lengths: not a list of counts",
        ),
        (("statistics", "shortcuts"), {"a": "b"}, r"statistics\.shortcuts: not numbers"),
        (("seed",), "x", r"damaged manifest \(seed: Input should be a valid integer"),
    ],
)
def test_the_value_is_named(place: tuple[Any, ...], value: Any, fault: str, data: Path, tmp_path: Path) -> None:
    tree = json.loads((data / MANIFEST_NAME).read_text())
    del tree["hash"], tree["run"]
    write_tree(tmp_path, changed(tree, place, value))
    with pytest.raises(DataSetError, match=rf"^{tmp_path}/manifest\.json: .*{fault}") as found:
        read_manifest(tmp_path)
    assert "\n" not in str(found.value)
