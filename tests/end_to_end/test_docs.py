"""The pages: every link between them leads somewhere, and the Korean pages say the commands of the English ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.tokenizer.tokenizer import WordTokenizer
from task_models import SPECIAL, write_model

PAGES = ("README*.md", "CONTRIBUTING.md", "docs/**/*.md", "cluster/README.md")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages_of(repository: Path) -> list[Path]:
    return sorted(page for pattern in PAGES for page in repository.glob(pattern))


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings: in lower case, spaces as hyphens, without punctuation."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def blocks_of(page: Path) -> list[list[str]]:
    """The fenced blocks, line by line, without comments."""
    blocks = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [[re.sub(r"\s+# .*| *# korean.yaml", "", line).rstrip() for line in block.splitlines()] for block in blocks]


def test_every_link_between_pages_leads_to_a_page_and_a_heading(repository: Path) -> None:
    broken = []
    for page in pages_of(repository):
        for target, anchor in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors_of(path)):
                broken.append(f"{page.relative_to(repository)}: {target}#{anchor}")
    assert not broken


def test_every_target_of_make_on_a_page_exists(repository: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        (page.relative_to(repository), target)
        for page in pages_of(repository)
        for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert not [(str(page), target) for page, target in named if target not in targets]


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/own-language.md"])
def test_a_korean_page_has_the_commands_sections_and_links_of_the_english_one(repository: Path, name: str) -> None:
    english = repository / name
    korean = english.with_suffix(".ko.md")
    assert blocks_of(korean) == blocks_of(english)
    texts = [page.read_text(encoding="utf-8") for page in (english, korean)]
    for pattern in (r"^#+ ", r"^\|", r"^- ", r"^!\["):
        one, other = (len(re.findall(pattern, _FENCE.sub("", text), re.MULTILINE)) for text in texts)
        assert one == other, pattern
    code = [set(re.findall(r"`([^`\n\uac00-\ud7a3]+)`", _FENCE.sub("", text))) for text in texts]
    assert code[0] == code[1]
    assert f"]({english.name})" in texts[1]
    assert f"]({korean.name})" in texts[0]


def test_added_words_stand_behind_the_models_own_and_leave_its_rows_alone(repository: Path, tmp_path: Path) -> None:
    """The command and the check of docs/how-to/add-words.md, with its paths."""
    page = repository / "docs" / "how-to" / "add-words.md"
    (command,) = [line for block in blocks_of(page) for line in block if line.startswith("(cat ")]
    model = write_model(tmp_path / "models/bert")
    own = (model / "vocab.txt").read_text().split()
    (tmp_path / "words.txt").write_text(
        "\n".join([*SPECIAL, "the", "heartless", "##them", ".", "\ubc30"]) + "\n", "utf-8"
    )
    command = command.replace("/corpora/mine-words.txt", "words.txt")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    both = tmp_path / "both.txt"
    assert both.read_text("utf-8").split() == [*own, "heartless", "##them", "\ubc30"]

    (check,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    WordTokenizer.from_path(both, lowercase=True).save(tmp_path / "tokenizer")
    check = check.replace("models/bert", str(model)).replace("/datasets/mine/tokenizer", str(tmp_path / "tokenizer"))
    done = subprocess.run([sys.executable, "-c", check], cwd=repository, check=True, capture_output=True, text=True)
    assert done.stdout == f"word table: {len(own)} rows by token text, 2 means of pieces, 1 drawn\n"
