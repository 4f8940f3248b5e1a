"""Writes the Korean sample, the constitution and ten bills, out of the wheel of konlpy.

The wheel holds text that was copied out of documents of Hangul (hwp): lines of a bill are cut at a fixed width, also
within words. A space at the end of a line says that a word ends there.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

FOLDER = "konlpy/data/corpus/"
CONSTITUTION = FOLDER + "kolaw/constitution.txt"
BILLS = FOLDER + "kobill/"
ATTRIBUTION = """# Where the Korean sample comes from

Copied out of {wheel}, a wheel of the Python Package Index, which is not installed.

| folder | what | licence | source |
|---|---|---|---|
| constitution/ | Constitution of the Republic of Korea, 1987: a file for the preamble and for each article | not \
protected: Copyright Act of the Republic of Korea, article 7, number 1 (constitution, statutes) | {constitution} |
| bills/ | reasons and text of ten bills and motions of the National Assembly, 2010; without tables, estimates of \
costs and page numbers; words that were cut at line ends are whole again \
| not protected, by our reading of article 7 | \
{bills} |

The package konlpy itself is GPL-3.0-or-later. Nothing of it is taken but these texts of the state.
"""

_HEADING = re.compile(" *\uc81c\\d+(?:\uc7a5|\uc808|\uad00)(?: |$)|.*\ubd80\uce59 <")
"""A line that names a chapter (jang), section (jeol), subsection (gwan) or the addenda (buchik)."""
_ARTICLE = re.compile(" *\uc81c(\\d+)\uc870")
_ADDENDA = re.compile(".*\ubd80\uce59 <")
_REASONS = re.compile("\uc81c\uc548\uc774\uc720")
_ANNEX = re.compile(
    "\uc2e0 *[\u00b7\u318d] *\uad6c *\uc870\ubb38 *\ub300\ube44\ud45c|\ud604 +\ud589$"
    "|.*\ube44\uc6a9\ucd94\uacc4\uc11c *$|1\\. +\uad6d\uad70\ubd80\ub300 +\ud30c\uacac +\ubaa9\uc801"
)
"""The first line after the prose: a table that compares old and new articles, an estimate of costs, or a plan in note
form."""
_PAGE = re.compile(r"- ?\d+ ?-")
_NUMBER_TO_COME = re.compile("\ubc95\ub960 +\uc81c +\ud638")
"""`Act No. ...`, which a bill does not have yet."""
_TITLE = re.compile(
    "\ubd80 +\uce59|.*\ubc95\ub960\uc548|.*\ub3d9\uc758\uc548|\uc81c\uc548\uc774\uc720.*"
    "|\uc8fc\uc694\ub0b4\uc6a9|\ucc38\uace0\uc0ac\ud56d"
)
"""A line that stands alone: the name of a bill or of a part of it."""
_BEGINS = re.compile(
    " {2}|\uc81c\\d+\uc870(?:\uc758\\d+)?(?:\uc81c|\uc911|\\(|\ub97c|\ubd80\ud130| )|[\u2460-\u2473]"
    "|\\d+(?:\uc758\\d+)?\\. |[\uac00-\ud558]\\. "
)
"""How a paragraph of a bill begins: indented, or with the number of an article, paragraph, item or part."""
_ENDS = re.compile("[\uac00-\ud7a3)]\\.$")


def write_law(wheel: Path, folder: Path) -> None:
    """Write the constitution (a file for the preamble and for each article) and the bills (a file each) of the wheel
    into `folder`."""
    (folder / "constitution").mkdir(parents=True)
    (folder / "bills").mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name, text in divide_constitution(archive.read(CONSTITUTION).decode("utf-8")).items():
            (folder / "constitution" / f"{name}.txt").write_text(text, encoding="utf-8")
        for member in sorted(archive.namelist()):
            if member.startswith(BILLS) and member.endswith(".txt"):
                text = "\n".join(restore_bill(archive.read(member).decode("utf-8"))) + "\n"
                (folder / "bills" / Path(member).name).write_text(text, encoding="utf-8")


def divide_constitution(text: str) -> dict[str, str]:
    """Return the texts of the preamble, the articles and the addenda's articles by the names of their files. Titles and
    headings are left out, because they are no sentences."""
    parts: dict[str, list[str]] = {}
    name, folder = "000-preamble", ""
    for line in text.splitlines()[1:]:  # the first line is the title
        article = _ARTICLE.match(line)
        if _ADDENDA.match(line):
            folder = "addenda-"
        if article:
            name = f"{folder}{int(article[1]):03d}"
        if line.strip() and not _HEADING.match(line):
            parts.setdefault(name, []).append(line.strip())
    return {name: "\n".join(lines) + "\n" for name, lines in parts.items()}


def restore_bill(text: str) -> list[str]:
    """Return the paragraphs of a bill's reasons and text, with the words whole that were cut at line ends."""
    paragraphs: list[str] = []
    lines = [line for line in text.splitlines() if line.strip() and not _PAGE.fullmatch(line.strip())]
    start = next((number for number, line in enumerate(lines) if _REASONS.match(line.strip())), 0)
    begins = True
    for line in lines[start:]:
        words = line.strip()
        if _ANNEX.match(words):
            break
        if _NUMBER_TO_COME.fullmatch(words):
            continue
        is_title = _TITLE.fullmatch(words) is not None
        if begins or is_title or _BEGINS.match(line):
            paragraphs.append("")
        paragraphs[-1] += line
        begins = is_title or _ENDS.search(words) is not None
    return [" ".join(paragraph.split()) for paragraph in paragraphs]
