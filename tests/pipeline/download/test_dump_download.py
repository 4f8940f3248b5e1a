"""Dumps from a mirror: continued after every break, verified, never under their name before."""

from __future__ import annotations

import hashlib
import re
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dump_mirror import Mirror, serve_mirror
from pipeline.config.schema import PipelineConfig
from pipeline.download import dump
from pipeline.download.__main__ import main
from pipeline.download.dump import RemoteFile, fetch_dump, list_dump
from pipeline.settings import validate

DUMP = bytes(range(256)) * 4_000
INDEX = b"index" * 100
NAME = "kowiki-20261101-pages-articles-multistream.xml.bz2"
WEB = "https:// or http://"
INDEX_NAME = "kowiki-20261101-pages-articles-multistream-index.txt.bz2"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve_mirror() as mirror:
        mirror.add(NAME, DUMP)
        mirror.add(INDEX_NAME, INDEX)
        mirror.add("kowiki-20261101-pages-meta-history.xml.7z", b"not wanted")
        yield mirror


def fetch(mirror: Mirror, folder: Path) -> int:
    files = list_dump(mirror=mirror.url, language="ko", date="20261101")
    return fetch_dump(folder, files, say=lambda line: None, pause_s=0)


def arguments(mirror: Mirror, folder: Path) -> list[str]:
    return ["wikipedia", "--language", "ko", "--date", "20261101", "--mirror", mirror.url, str(folder)]


def test_the_articles_and_their_index_are_fetched_once(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "ko"
    assert main(arguments(mirror, folder)) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {NAME: DUMP, INDEX_NAME: INDEX}
    assert "ready. The texts of Wikipedia are licensed CC BY-SA" in capsys.readouterr().out
    num_requests = len(mirror.requests)
    assert main(arguments(mirror, folder)) == 0
    assert "complete, nothing to do" in capsys.readouterr().out
    assert len(mirror.requests) == num_requests + 1


def test_breaks_are_continued_by_range(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks = [300_000, 0, 1, 100_000]
    assert fetch(mirror, tmp_path) == 2
    assert (tmp_path / NAME).read_bytes() == DUMP
    ranges = [wanted for name, wanted in mirror.requests if name == NAME]
    assert ranges == [None, *(f"bytes={have}-" for have in (300_000, 300_000, 300_001, 400_001))]


def test_a_broken_encryption_is_a_break(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, broken = shutil.copyfileobj, [ssl.SSLError(1, "bad record mac")]

    def copy(source: Any, target: Any, length: int) -> None:
        if broken:
            target.write(source.read(1_000))
            raise broken.pop()
        original(source, target, length)

    monkeypatch.setattr(shutil, "copyfileobj", copy)
    assert fetch(mirror, tmp_path) == 2
    assert (tmp_path / NAME).read_bytes() == DUMP
    assert [wanted for name, wanted in mirror.requests if name == NAME] == [None, "bytes=1000-"]


def test_a_later_run_continues_and_a_whole_part_needs_no_byte(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks = [400_000, 0, 0, 0, 0]
    with pytest.raises(
        ValueError, match=r"broke off after 400,000 of 1,024,000 bytes, 5 times in a row; .*run this again"
    ):
        fetch(mirror, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.part"]
    assert fetch(mirror, tmp_path) == 2
    assert mirror.requests[-2] == (NAME, "bytes=400000-")
    (tmp_path / NAME).rename(tmp_path / f"{NAME}.part")
    assert fetch(mirror, tmp_path) == 1
    assert (tmp_path / NAME).read_bytes() == DUMP


def test_a_server_without_ranges_and_a_foreign_part_start_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.ranges = False
    mirror.breaks = [1_000]
    fetch(mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == DUMP
    mirror.ranges = True
    (tmp_path / NAME).unlink()
    (tmp_path / f"{NAME}.part").write_bytes(DUMP + b"more")
    fetch(mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == DUMP


def test_a_busy_mirror_is_asked_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.statuses = [503, 429]
    assert fetch(mirror, tmp_path) == 2
    mirror.statuses = [500] * 5
    (tmp_path / NAME).unlink()
    with pytest.raises(ValueError, match=r"answered 500 .*, 5 times in a row"):
        fetch(mirror, tmp_path)
    mirror.statuses = [403]
    with pytest.raises(ValueError, match=r"answered 403 Forbidden; check --language, --date, --mirror"):
        fetch(mirror, tmp_path)


def test_other_bytes_than_the_checksum_says_are_removed(mirror: Mirror, tmp_path: Path) -> None:
    path = f"/kowiki/20261101/{NAME}"
    mirror.files[path] = b"x" + DUMP[1:]
    with pytest.raises(ValueError, match=rf"SHA-1 \w+, not {hashlib.sha1(DUMP).hexdigest()} as .*were removed"):
        fetch(mirror, tmp_path)
    assert list(tmp_path.iterdir()) == []
    mirror.files[path] = DUMP
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(ValueError, match=rf"{NAME}: its SHA-1 is not .*remove it, then run this again"):
        fetch(mirror, tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"


def test_parts_are_taken_where_there_is_no_whole_file(mirror: Mirror) -> None:
    mirror.files.clear()
    parts = [f"kowiki-20261101-pages-articles-multistream{n}.xml-p{n}p{n}9.bz2" for n in (1, 2)]
    for name in [*parts, "kowiki-20261101-pages-articles1.xml-p1p19.bz2"]:
        mirror.add(name, b"x")
    files = list_dump(mirror=mirror.url + "/", language="ko", date="20261101")
    folder = f"{mirror.url}/kowiki/20261101/"
    assert files == [RemoteFile(folder + name, name, hashlib.sha1(b"x").hexdigest()) for name in parts]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--date": "20261102"}, r"answered 404 Not Found; http.*/kowiki/ lists the existing dates"),
        ({"--date": "latest"}, r"--date latest: give the date of the dump as eight digits"),
        ({"--language": "../x"}, r"--language \.\./x: give a language code"),
        ({"--mirror": "file:///etc"}, r"--mirror file:///etc: give an address that begins with https://"),
        ({"--mirror": "http://127.0.0.1:9"}, r"cannot be reached \(.*\); check the network"),
        ({"--dat": "1"}, r"unrecognized arguments: --dat"),
        ({"--language": None}, r"required: --language\nusage: python -m pipeline.download wikipedia"),
    ],
)
def test_what_is_wrong_is_named(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str | None], message: str
) -> None:
    options = {"--language": "ko", "--date": "20261101", "--mirror": mirror.url, **change}
    words = [word for key, value in options.items() if value is not None for word in (key, value)]
    assert main(["wikipedia", *words, str(tmp_path / "x")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "x").exists()


def test_the_mirror_of_the_config_is_taken_unless_another_is_named(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "ko.yaml"
    sources = "sources: [{kind: wikipedia, path: dumps/ko, language: ko}]\noutput: sets/ko\n"
    config.write_text(f"{sources}download:\n  mirror: {mirror.url}\n")
    words = ["wikipedia", "--language", "ko", "--date", "20261101", "--config", str(config)]
    assert main([*words, str(tmp_path / "ko")]) == 0
    assert {path.name for path in (tmp_path / "ko").iterdir()} == {NAME, INDEX_NAME}
    num_requests = len(mirror.requests)
    assert main([*words, "--mirror", "http://127.0.0.1:9", str(tmp_path / "other")]) == 2
    assert "http://127.0.0.1:9/kowiki/20261101/kowiki-20261101-sha1sums.txt: cannot be" in capsys.readouterr().err
    assert len(mirror.requests) == num_requests

    for address in ("file:///etc", "dumps.example.org", "https://", "http://[x"):
        config.write_text(f"{sources}download:\n  mirror: '{address}'\n")
        assert main([*words, str(tmp_path / "other")]) == 2
        error = capsys.readouterr().err
        assert error == f"error: {config}: download: mirror={address}: give an address that begins with {WEB}\n"
    assert main([*words[:-1], str(tmp_path / "none.yaml"), str(tmp_path / "other")]) == 2
    assert "none.yaml: no such config file" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_the_mirror_is_the_official_host_by_default_and_no_part_of_the_data() -> None:
    sources = ({"kind": "wikipedia", "path": "x"},)
    official = validate(PipelineConfig, {"sources": sources, "output": "x"}, origin="x")
    assert official.download.mirror == "https://dumps.wikimedia.org"
    tree = {"sources": sources, "output": "x", "download": {"mirror": "https://mirror.example.org/wiki"}}
    assert validate(PipelineConfig, tree, origin="x").data_tree() == official.data_tree()


def test_an_unfinished_dump_is_refused(mirror: Mirror) -> None:
    mirror.files.clear()
    mirror.add("kowiki-20261101-site_stats.sql.gz", b"x")
    with pytest.raises(ValueError, match=r"sha1sums\.txt: lists no kowiki-.*; the dump may not be finished"):
        list_dump(mirror=mirror.url, language="ko", date="20261101")


def test_names_of_databases() -> None:
    assert [dump.database_of(code) for code in ("en", "zh-yue", "simple")] == ["enwiki", "zh_yuewiki", "simplewiki"]
