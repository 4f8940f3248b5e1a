"""Writes the texts of Korean tasks as JSON lines, to pretrain on: `python -m bench.korean_texts DATA OUT`.

DATA holds korquad/, nsmc/ and ud/, with the files' published names (KorQuAD_v1.0_dev.json, a tar of NSMC's raw
reviews, *.conllu), also compressed with xz. Only texts are taken, no questions, answers or labels.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

UD_SENTENCES = 50
"""Sentences of a treebank that make a document: the files do not say where one ends."""


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed with xz."""
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")


def read_korquad(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of each article."""
    for path in sorted(folder.glob("*.json*")):
        for article in json.loads(read_text(path))["data"]:
            yield "\n".join(paragraph["context"] for paragraph in article["paragraphs"])


def read_nsmc(folder: Path) -> Iterator[str]:
    """Yield the reviews of each film, a line each."""
    for path in sorted(folder.glob("*.tar*")):
        with tarfile.open(path) as archive:
            for member in sorted(archive.getnames()):
                file = archive.extractfile(member)
                if file is not None and member.endswith(".json"):
                    yield "\n".join(review["review"] for review in json.load(file))


def read_ud(folder: Path) -> Iterator[str]:
    """Yield runs of UD_SENTENCES sentences."""
    for path in sorted(folder.glob("*.conllu*")):
        mark = "# text = "
        lines = [line.removeprefix(mark) for line in read_text(path).splitlines() if line.startswith(mark)]
        for start in range(0, len(lines), UD_SENTENCES):
            yield "\n".join(lines[start : start + UD_SENTENCES])


READERS = {"korquad": read_korquad, "nsmc": read_nsmc, "ud": read_ud}


def main(arguments: Sequence[str]) -> None:
    """Write OUT/NAME.jsonl for each reader."""
    parser = argparse.ArgumentParser(prog="python -m bench.korean_texts", description=__doc__)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("out", metavar="OUT")
    options = parser.parse_args(arguments)
    data, out = options.data, options.out
    Path(out).mkdir(parents=True, exist_ok=True)
    for name, read in READERS.items():
        texts = list(read(Path(data, name)))
        with open(Path(out, f"{name}.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        print(f"{out}/{name}.jsonl: {len(texts)} documents, {sum(map(len, texts)):,} characters")


if __name__ == "__main__":
    main(sys.argv[1:])
