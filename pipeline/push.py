"""`python -m pipeline.push SET OWNER/NAME [--dry-run] [--public]`: publishes a data set on the Hugging Face Hub.

The set is verified byte for byte first. One commit makes it seen, so a reader of the hub never meets half of a set.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pipeline import storage
from pipeline.console import command, exit_with, say_at_once
from pipeline.dataset import MANIFEST_NAME, DataSetError, Manifest, open_data_set, resolve_inside
from pipeline.front_matter import render_front_matter, split_front_matter
from pipeline.hub import PushFile, Repository, Revision, push
from pipeline.output import CARD_NAME, REPORT_NAME, SUMMARY_NAME
from pipeline.settings import ConfigError
from pipeline.storage import expand_path


@command(goes_on_from="what the hub has received")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if the hub has the set, 2 if the request was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.push", description="Publish a data set on the Hugging Face Hub."
    )
    parser.add_argument("set", help="folder of a finished data set")
    parser.add_argument("repository", help="dataset repository, OWNER/NAME; made if it does not exist")
    parser.add_argument("--dry-run", action="store_true", help="show what would be sent, and send nothing")
    parser.add_argument("--public", action="store_true", help="a new repository is public (default: private)")
    parser.add_argument("--replace", action="store_true", help="replace files there that others wrote")
    parser.add_argument("--license", help="licence of the texts for the card, as the hub names it: cc-by-sa-4.0")
    options = parser.parse_args(arguments)
    repository = Repository(options.repository, kind="dataset")
    push(
        repository,
        _list_revisions(options.set, licence=options.license),
        public=options.public,
        replace=options.replace,
        dry_run=options.dry_run,
        say=say_at_once,
    )
    return 0


def _list_revisions(root: str, *, licence: str | None) -> Iterator[Revision]:
    root = expand_path(root, key="SET")
    if storage.is_url(root):
        raise ConfigError(f"{root}: is on an object store; copy the set to a disk, and give that folder")
    say_at_once(f"{root}: verifying every byte")
    manifest = open_data_set(root, full=True)
    card = make_card(root, manifest=manifest, licence=licence)
    files = [
        *(PushFile(shard.path, Path(resolve_inside(root, shard.path)), shard.sha256) for shard in manifest.shards),
        *(PushFile(name, Path(resolve_inside(root, name)), sha256) for name, sha256 in manifest.files.items()),
        *(PushFile(name, Path(root, name)) for name in (REPORT_NAME, SUMMARY_NAME) if Path(root, name).is_file()),
        PushFile(CARD_NAME, card.encode("utf-8")),
        PushFile(MANIFEST_NAME, Path(root, MANIFEST_NAME)),
    ]
    yield Revision("main", f"data set {manifest.hash[:16]}", tuple(files))


def make_card(root: str, *, manifest: Manifest, licence: str | None) -> str:
    """Return the set's README.md with `licence` in its front matter, if one is given. Raises DataSetError if the card
    is missing, or if its front matter does not lead `datasets` to every shard."""
    path = Path(root, CARD_NAME)
    try:
        card = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataSetError(f"{path}: is missing; restore it or build the set again") from error
    except UnicodeDecodeError as error:
        raise DataSetError(f"{path}: byte {error.start} is not UTF-8; restore it or build the set again") from error
    front, rest = split_front_matter(card, origin=str(path))
    for split in sorted({shard.split for shard in manifest.shards}):
        patterns = _find_patterns(front, split=split)
        for shard in manifest.shards_of(split):
            if not any(fnmatch(shard.path, pattern) for pattern in patterns):
                raise DataSetError(
                    f"{path}: configs in its front matter has no data_files of split {split} that name {shard.path}, "
                    f"so nobody could load it; restore the card or build the set again"
                )
    if licence is not None:
        return render_front_matter({**front, "license": licence}) + rest
    return card


def _find_patterns(front: dict[str, Any], *, split: str) -> list[str]:
    found = []
    configs = front.get("configs")
    for config in configs if isinstance(configs, list) else ():
        entries = config.get("data_files") if isinstance(config, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("split") == split:
                paths = entry.get("path")
                found += [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    return found


if __name__ == "__main__":
    exit_with(main())
