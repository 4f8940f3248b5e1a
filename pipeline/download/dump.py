"""Fetches a Wikipedia dump from a mirror: `python -m pipeline.download wikipedia --language ko --date 20261101 DIR`.

The mirror has the layout of dumps.wikimedia.org. Only the multistream dump of the articles is fetched: one file and its
index, or the numbered parts if there is no whole file. An incomplete file is called NAME.part, and the next attempt
continues it by an HTTP range request. It is renamed to NAME once its SHA-1 is the one that the mirror states. If a
config names the dump, a list of the dump's files and their sizes is written once all files are there. While the files
match this list, the mirror is not asked again.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pipeline import storage
from pipeline.config import FLAGS, KEYS, DownloadConfig, PipelineConfig, is_web_address
from pipeline.console import Say
from pipeline.settings import load_settings, refuse_flags, split_arguments
from pipeline.sources import check_brought

USAGE = (
    "usage: python -m pipeline.download wikipedia --language CODE --date YYYYMMDD [--config FILE | --mirror URL] DIR\n"
    "       fetch the articles of a Wikipedia into DIR, or continue; files are verified by the mirror's SHA-1.\n"
    "       The mirror is URL, else download.mirror of the config FILE, else dumps.wikimedia.org\n"
    "usage: python -m pipeline.download config --config FILE [key.sub=value ...]\n"
    "       fetch the dumps that download.wikipedia of FILE names; complete ones are skipped"
)
_BLOCK_BYTES = 1 << 20
_TIMEOUT_S = 60.0
_MOST_LIST_BYTES = 16 << 20
_TRIES_WITHOUT_PROGRESS = 5
_LONGEST_PAUSE_S = 60.0
_LICENCE = (
    "The texts of Wikipedia are licensed CC BY-SA 4.0; if you share them, name their authors (the history of each "
    "article)"
)
_BROKEN = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError)
_LINE = re.compile(r"([0-9a-f]{40})\s+\*?([\w.-]+)")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dump on the mirror: its address, its name and its SHA-1 in hexadecimal."""

    url: str
    name: str
    sha1: str


class _InterruptedError(Exception):
    """The mirror broke off a download or could not be reached. The download can be continued."""


def database_of(language: str) -> str:
    """Return the name of a Wikipedia's database, such as kowiki for ko and zh_yuewiki for zh-yue."""
    if not re.fullmatch(r"[a-z][a-z0-9-]{1,30}", language):
        raise ValueError(f"--language {language}: give a language code as in Wikipedia's addresses, such as en or ko")
    return language.replace("-", "_") + "wiki"


def list_dump(*, mirror: str, language: str, date: str) -> list[RemoteFile]:
    """Return the files of a dump that must be fetched. They are listed in the dump's checksum file on the mirror.

    `date` is eight digits, such as 20261101. Raises ValueError if an argument is malformed, if the mirror cannot be
    reached, or if it has no such dump.
    """
    if not re.fullmatch(r"\d{8}", date):
        raise ValueError(f"--date {date}: give the date of the dump as eight digits, such as 20261101")
    if not is_web_address(mirror):
        raise ValueError(f"--mirror {mirror}: give an address that begins with https:// or http://")
    database = database_of(language)
    folder = f"{mirror.rstrip('/')}/{database}/{date}/"
    sums = f"{folder}{database}-{date}-sha1sums.txt"
    lines = _fetch_list(sums, folder=f"{mirror.rstrip('/')}/{database}/").splitlines()
    checksums = {found[2]: found[1] for line in lines if (found := _LINE.fullmatch(line.strip()))}
    stem = re.escape(f"{database}-{date}-pages-articles-multistream")
    whole = [f"{database}-{date}-pages-articles-multistream{end}" for end in (".xml.bz2", "-index.txt.bz2")]
    parts = sorted(name for name in checksums if re.fullmatch(stem + r"\d+\.xml-p\d+p\d+\.bz2", name))
    names = [name for name in whole if name in checksums] if whole[0] in checksums else parts
    if not names:
        raise ValueError(
            f"{sums}: lists no {database}-{date}-pages-articles-multistream.xml.bz2 and no parts of it; the dump may "
            f"not be finished, choose an earlier date"
        )
    return [RemoteFile(folder + name, name, checksums[name]) for name in names]


def fetch_dump(folder: Path, files: Sequence[RemoteFile], *, say: Say, pause_s: float = 1.0) -> int:
    """Verify each of `files` that `folder` already has, and fetch the other files. Return how many files were fetched.

    After an interruption, wait `pause_s` seconds, then continue. If nothing more arrives before the next interruption,
    the wait doubles. Raises ValueError if a file has another SHA-1 than expected, or if the mirror does not deliver it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fetched = 0
    for file in files:
        target = folder / file.name
        if target.exists():
            if _sha1(target) != file.sha1:
                raise ValueError(
                    f"{target}: its SHA-1 is not {file.sha1}, that of {file.url}; remove it, then run this again"
                )
            say(f"{target}: complete")
            continue
        _fetch(file, target=target, say=say, pause_s=pause_s)
        fetched += 1
    return fetched


def fetch_named(config: PipelineConfig, *, say: Say, only_look: bool = False) -> None:
    """Fetch the dumps that the setting `download` of `config` names, except those that are complete. If `only_look` is
    true, fetch nothing, and only report which dumps are incomplete.

    Raises ValueError if a dump cannot be fetched. It also raises ValueError, before any download, if a source that the
    user must provide is missing.
    """
    folders = [Path(dump.folder).absolute() for dump in config.download.wikipedia]
    check_brought(config, but=folders)
    for dump, folder in zip(config.download.wikipedia, folders, strict=True):
        listing = folder / f".{database_of(dump.language)}-{dump.date}.sha1"
        if _is_complete(listing):
            say(f"{folder}: complete, nothing to do")
            continue
        if only_look:
            say(f"{folder}: not complete; a dry run fetches nothing")
            continue
        files = list_dump(mirror=config.download.mirror, language=dump.language, date=dump.date)
        fetch_dump(folder, files, say=say)
        lines = [f"{file.sha1}  {(folder / file.name).stat().st_size}  {file.name}\n" for file in files]
        storage.write_bytes(listing, "".join(lines).encode("ascii"))
        say(f"{folder}: ready. {_LICENCE}")


def _is_complete(listing: Path) -> bool:
    """Whether a dump is complete: all its files have the sizes that the file `listing` states. `listing` is written
    after the download of a dump. If it does not exist, or has no sizes because an older release wrote it, the dump
    counts as incomplete."""
    if not listing.is_file():
        return False
    sizes = {path.name: path.stat().st_size for path in listing.parent.iterdir() if path.is_file()}
    lines = [line.split("  ") for line in listing.read_text(encoding="ascii").splitlines()]
    return all(len(line) == 3 and str(sizes.get(line[2])) == line[1] for line in lines)


def _fetch(file: RemoteFile, *, target: Path, say: Say, pause_s: float) -> None:
    part = target.with_name(target.name + ".part")
    failures, pause = 0, pause_s
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _continue(file.url, part=part)
            break
        except _InterruptedError as error:
            progressed = part.exists() and part.stat().st_size > before
            failures, pause = (1, pause_s) if progressed else (failures + 1, min(2 * pause, _LONGEST_PAUSE_S))
            if failures >= _TRIES_WITHOUT_PROGRESS:
                raise ValueError(
                    f"{file.url}: {error}, {failures} times in a row; run this again to continue {part.name}, or "
                    f"choose another --mirror"
                ) from error
            say(f"{file.url}: {error}; continuing in {pause:g} s")
            time.sleep(pause)
    digest = _sha1(part)
    if digest != file.sha1:
        part.unlink()
        raise ValueError(
            f"{file.url}: fetched data with SHA-1 {digest}, not {file.sha1} as in the mirror's checksum file; they "
            f"were removed, run this again or choose another --mirror"
        )
    storage.rename_file(part, final=target)
    say(f"{target}: {target.stat().st_size / 1e6:,.1f} MB, verified")


def _continue(url: str, *, part: Path) -> None:
    """Fetch from `url` the bytes that the incomplete file `part` lacks at its end, and append them. Raises
    _InterruptedError if another attempt may succeed, and ValueError if the mirror refuses."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            if have and answer.status != 206:
                have = 0  # a server without ranges sends the whole file
            elif have and not (answer.headers["Content-Range"] or "").startswith(f"bytes {have}-"):
                raise _InterruptedError(f"answered with the wrong range {answer.headers['Content-Range']}")
            expected = answer.headers["Content-Length"]
            with open(part, "r+b" if have else "wb") as out:
                out.seek(have)
                shutil.copyfileobj(answer, out, _BLOCK_BYTES)
                received = out.tell() - have
            if expected is not None and received < int(expected):
                raise _InterruptedError(f"broke off after {have + received:,} of {have + int(expected):,} bytes")
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing left to send: `part` is complete, or belongs to another file
            if (error.headers["Content-Range"] or "") not in (f"bytes */{have}", ""):
                part.unlink()
                raise _InterruptedError(f"is shorter than {part.name}, which was removed; starting again") from error
            return
        if error.code in (408, 429) or error.code >= 500:
            raise _InterruptedError(f"answered {error.code} {error.reason}") from error
        raise ValueError(f"{url}: answered {error.code} {error.reason}; check --language, --date, --mirror") from error
    except _BROKEN as error:
        raise _InterruptedError(
            f"broke off ({getattr(error, 'reason', None) or error or type(error).__name__})"
        ) from error


def _fetch_list(url: str, *, folder: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(_MOST_LIST_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url}: answered {error.code} {error.reason}; {folder} lists the existing dates") from error
    except _BROKEN as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"{url}: cannot be reached ({reason}); check the network or choose another --mirror"
        ) from error


def _sha1(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}\n{USAGE}")


def main(arguments: Sequence[str], *, say: Say = print) -> None:
    """Run `python -m pipeline.download wikipedia`. `arguments` are the words of the command line after `wikipedia`.

    Raises ValueError for user errors.
    """
    parser = _Parser(prog="python -m pipeline.download wikipedia", add_help=False, allow_abbrev=False)
    parser.add_argument("--language", required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--mirror")
    parser.add_argument("folder", type=Path, metavar="DIR")
    given = parser.parse_args(list(arguments))
    settings = DownloadConfig() if given.config is None else load_settings(PipelineConfig, file=given.config).download
    mirror = settings.mirror if given.mirror is None else given.mirror
    files = list_dump(mirror=mirror, language=given.language, date=given.date)
    fetched = fetch_dump(given.folder, files, say=say)
    say(f"{given.folder}: {'ready' if fetched else 'complete, nothing to do'}. {_LICENCE}")


def main_config(arguments: Sequence[str], *, say: Say = print) -> None:
    """Run `python -m pipeline.download config`. `arguments` are the words of the command line after `config`.

    All arguments of a build are accepted, because make passes the same arguments to this command and to a build. Raises
    ValueError for user errors.
    """
    program = "python -m pipeline.download config"
    given = split_arguments(list(arguments), program=program, keys=KEYS)
    refuse_flags(given.flags, program=program, known=FLAGS)
    if "--help" in given.flags:
        say(USAGE)
        return
    if given.file is None:
        raise ValueError(f"{program}: --config FILE is missing\n{USAGE}")
    config = load_settings(PipelineConfig, file=given.file, overrides=given.overrides)
    fetch_named(config, say=say, only_look="--dry-run" in given.flags)
