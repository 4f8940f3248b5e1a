"""kind: books, from archives: members shared by workers, hostile names, bombs, damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zipfile
from itertools import islice
from pathlib import Path

import pytest

from book_items import documents, read
from pipeline.config.schema import SourceConfig
from pipeline.documents import Document, Drop
from pipeline.sources import archives
from pipeline.sources.splits import list_splits, read_documents
from source_items import read_source


def pack(path: Path, members: dict[str, bytes]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return
    with tarfile.open(path, f"w:{path.suffix[1:]}" if path.suffix != ".tar" else "w") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.xz", "a.tar.gz", "a.tar.bz2"])
def test_members_of_archives_are_books(tmp_path: Path, name: str) -> None:
    members = {"x/1.txt": b"One book.", "x/2.TXT": b"Two books.", "x/cover.jpg": b"\xff\xd8", "x/.hidden": b"h"}
    pack(tmp_path / name, members)
    items = read(tmp_path)
    assert documents(items) == {f"{name}!x/1.txt": ("One book.",), f"{name}!x/2.TXT": ("Two books.",)}
    assert [item for item in items if isinstance(item, Drop)] == [Drop("not_a_text_file", f"{name}!x/cover.jpg")]


def test_a_large_zip_is_split_by_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "a.zip", {f"{i}.txt": f"Book number {i}.".encode() for i in range(10)})
    monkeypatch.setattr(archives, "SPLIT_TEXT_BYTES", 30)
    source = SourceConfig(kind="books", path=str(tmp_path))
    splits = sorted(list_splits([source]), key=lambda split: split.start)
    assert len(splits) > 3
    items = [item for split in splits for item in read_documents(split, source)]
    assert list(documents(items)) == [f"a.zip!{i}.txt" for i in range(10)]


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.xz", "a.tar.gz"])
def test_several_workers_share_one_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The parts together give every member once, whatever there is beside books."""
    members = {f"dir/{i}.txt": f"Book number {i}, {'and more ' * i}.".encode() for i in range(20)}
    pack(tmp_path / name, {**members, "x" * 150 + ".txt": b"A long name.", "dir/.DS_Store": b"", "p.jpg": b"\xff"})
    source = SourceConfig(kind="books", path=str(tmp_path))
    whole = read_source(source)
    monkeypatch.setattr(archives, "SPLIT_TEXT_BYTES", 200)
    splits = list_splits([source])
    assert len(splits) >= 3
    parts = [item for split in splits for item in read_documents(split, source)]
    assert sorted(parts, key=str) == sorted(whole, key=str)
    assert len(documents(parts)) == 21


def test_hostile_names_are_counted_and_never_reach_the_disk(tmp_path: Path) -> None:
    bad = [
        "../up.txt",
        "a/../../up.txt",
        "/etc/passwd.txt",
        "C:\\x.txt",
        "..\\up.txt",
        "bell\x07.txt",
        "\x1b[31mred.txt",
    ]
    for name in ("a.zip", "a.tar.gz"):
        folder = tmp_path / name
        folder.mkdir()
        pack(folder / name, dict.fromkeys([*bad, "good.txt", "./dot.txt", "odd\u202ename.txt"], b"A book."))
        items = read(folder)
        assert len(documents(items)) == 3
        drops = [item for item in items if isinstance(item, Drop)]
        assert [drop.reason for drop in drops] == ["unsafe_name"] * len(bad)
        assert all(item.name.isprintable() for item in items)
        assert [path.name for path in folder.iterdir()] == [name]


def test_links_devices_and_sparse_files_are_no_books(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in (("l.txt", tarfile.SYMTYPE), ("h.txt", tarfile.LNKTYPE), ("d.txt", tarfile.CHRTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            tar.addfile(entry)
        entry = tarfile.TarInfo("b.txt")
        entry.size = 7
        tar.addfile(entry, io.BytesIO(b"A book."))
    items = read(tmp_path)
    assert documents(items) == {"a.tar!b.txt": ("A book.",)}
    assert {item.detail for item in items if isinstance(item, Drop)} == {"a link, a device or a sparse file"}


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = tmp_path / "zeros.tar.xz"
    with lzma.open(zeros, "wb", preset=0) as stream:
        header = tarfile.TarInfo("a.txt")
        header.size = 1 << 33
        stream.write(header.tobuf())
        for _ in range(160):
            stream.write(bytes(1 << 20))
    with pytest.raises(ValueError, match=r"zeros\.tar\.xz: .*more than 1000 times"):
        read(zeros)
    monkeypatch.setattr(archives, "_FREE_BYTES", 1 << 20)
    pack(tmp_path / "a.zip", {f"{i}.txt": bytes(1 << 20) for i in range(3)})
    monkeypatch.setattr(archives, "MOST_EXPANSION", 100)
    with pytest.raises(ValueError, match=r"a\.zip: its 3 members expand to 3145728 bytes, more than 100 times"):
        read(tmp_path / "a.zip")


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 34
    for name in ("a.tar", "b.tar.xz"):
        data = header.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
        (tmp_path / name).write_bytes(data if name == "a.tar" else lzma.compress(data))
        with pytest.raises(ValueError, match=rf"{name}: .*a header of 17179869184 bytes"):
            read(tmp_path / name)


def test_a_tar_that_ends_between_members_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"1.txt": b"x" * 512, "2.txt": b"y" * 512})
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:2048])
    with pytest.raises(ValueError, match=r"a\.tar: ends at byte 2048 of its content without a tar end mark"):
        read(tmp_path)
    pack(tmp_path / "a.tar", {})
    with pytest.raises(ValueError, match=r"a\.tar: the archive has no members"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize(
    ("cut", "fault"),
    [
        (1024, r"ends at byte 1024 of its content without a tar end mark"),
        (1124, r"corrupt at byte 1024 of its content: truncated header"),
        (1536, r"ends inside member 2\.txt|corrupt at byte 2048 of its content: unexpected end of data"),
    ],
)
def test_a_tar_cut_off_before_it_was_packed_is_refused(tmp_path: Path, name: str, cut: int, fault: str) -> None:
    """tarfile takes the first two for the end, and passes on its own error for the third."""
    pack(tmp_path / "a.tar", {"1.txt": b"x" * 512, "2.txt": b"y" * 512})
    data = (tmp_path / "a.tar").read_bytes()[:cut]
    (tmp_path / "a.tar").unlink()
    (tmp_path / name).write_bytes(gzip.compress(data) if name == "a.tar.gz" else data)
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: .*({fault})"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_a_tar_with_a_damaged_header_is_refused(tmp_path: Path, name: str) -> None:
    """tarfile takes it for the end: the books after it would be lost."""
    pack(tmp_path / "a.tar", {"1.txt": b"x" * 512, "2.txt": b"y" * 512})
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[1024 + 100] ^= 1
    (tmp_path / "a.tar").unlink()
    (tmp_path / name).write_bytes(gzip.compress(data) if name == "a.tar.gz" else data)
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: .* at byte 1024 of its content: bad checksum"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_archives_joined_by_cat_are_refused(tmp_path: Path, name: str) -> None:
    """Of a zip the last is read, of a tar the first."""
    pack(tmp_path / name, {"1.txt": b"One book."})
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data + data)
    with pytest.raises(
        ValueError, match=rf"{re.escape(name)}: another (zip|tar) archive .*; give each archive as a separate file"
    ):
        read(tmp_path)
    (tmp_path / name).write_bytes(b"#!/bin/sh\n" + data if name == "a.zip" else data)
    assert documents(read(tmp_path)) == {f"{name}!1.txt": ("One book.",)}


@pytest.mark.parametrize("name", ["a.zip", "a.tar.xz", "a.tar.gz"])
def test_damaged_archives_are_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / name, {f"{i}.txt": bytes(range(256)) * 40 for i in range(5)})
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=rf"{name}: .*fetch it again"):
        read(tmp_path)


def test_a_damaged_member_and_an_empty_archive_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    pack(path, {"1.txt": b"One book. " * 50})
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.zip: member 1\.txt \(byte 0\) cannot be read"):
        read(tmp_path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("1.txt", bytes(range(256)))
    data = bytearray(path.read_bytes())
    data[60:100] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.zip: member 1\.txt \(byte 0\) cannot be read"):
        read(tmp_path)
    pack(path, {"\u00e9.txt": b"One book."})
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff\xff"))
    with pytest.raises(ValueError, match=r"a\.zip: not a complete zip archive: 'utf-8' codec can't decode byte 0xff"):
        read(tmp_path)
    pack(path, {f"{i}.txt": b"One book." for i in range(3)})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 32] = 46 + 5  # a comment as long as the next entry
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.zip: its index lists 2 of 3 members: it is damaged"):
        read(tmp_path)
    pack(path, {})
    with pytest.raises(ValueError, match=r"a\.zip: the archive has no members"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.xz", "a.txt", "a.txt.xz"])
def test_books_over_budget_are_counted_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBER_BYTES", 1_000_000)
    data = b"word " * 400_000
    path = tmp_path / name
    if name == "a.txt.xz":
        path.write_bytes(lzma.compress(data))
    elif name == "a.txt":
        path.write_bytes(data)
    else:
        pack(path, {"1.txt": data})
    (drop,) = read(tmp_path)
    assert isinstance(drop, Drop)
    assert (drop.reason, drop.detail) == ("book_over_budget", "more than 1000000 bytes")


def test_binary_files_named_txt_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"PK\0\0\0")
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"A real book."))
    items = read(tmp_path)
    assert Drop("not_a_text_file", "a.txt", "holds NUL bytes") in items
    assert documents(items) == {"b.txt.bz2": ("A real book.",)}


def test_novels_are_streamed_from_their_archive(shared_data: Path) -> None:
    source = SourceConfig(kind="books", path=str(shared_data / "books/litbank-100-novels.tar.xz"))
    split, *_ = list_splits([source])
    first = list(islice((item for item in read_documents(split, source) if isinstance(item, Document)), 12))
    assert len({item.id for item in first}) == 12
    for item in first:
        assert len(item.sentences) > 100
        assert not [sentence for sentence in item.sentences if "Gutenberg" in sentence]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("size", ["99999999999999999999", "9223372036854775807", str(1 << 45)])
def test_a_member_larger_than_any_file_is_refused_by_the_files_name(size: str, name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("a.txt")
        entry.pax_headers = {"size": size}
        tar.addfile(entry)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))}: "):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_long_names_in_a_row_are_refused_by_the_files_name(name: str, tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 10
    data = (header.tobuf() + b"n" * 10 + bytes(502)) * 3000 + tarfile.TarInfo("a.txt").tobuf() + bytes(1024)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))}: "):
        read(tmp_path / name)
