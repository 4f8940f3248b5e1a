"""Turns the links [[...]] and [http://...] into their visible text. Pure."""

from __future__ import annotations

import re

from pipeline.wikitext.citations import without_button
from pipeline.wikitext.names import PROJECT_PREFIXES, WikiNames, fold_name
from pipeline.wikitext.quotes import remove_quotes
from pipeline.wikitext.tags import EMPTY, PIPE

_PARENTHESES = re.compile(r"\s*[(\uff08][^()\uff08\uff09]*[)\uff09]\s*$")
_EXTERNAL = re.compile(
    r"\[(?:(?:https?|s?ftps?|ircs?|news|gopher|telnet|nntp|svn|git|ssh|sips?|mms|matrix|redis|xmpp|bitcoin|magnet|geo|urn|worldwind)"
    r":(?://)?|mailto:|tel:|sms:|//)(?:[^\s\[\]<>\"']|'(?!'))*+[ \t]*+((?:[^\[\]\n]++|\[[^\[\]\n]*+\])*+)\]",
    re.I,
)


_ADDRESS = re.compile(r"\s*(?:https?:|ftp:)?//", re.I)


def quote_free(text: str, *, is_label: bool) -> str:
    """Return the visible text of a link, changed so that its quotes ('') cannot pair up with quotes outside the link.
    In a label, '' marks bold or italic text and is removed, like in MediaWiki. In a target, '' is plain text. So it is
    kept, but written as character references."""
    if is_label and "''" in text:
        text = remove_quotes(text)
    return text.replace("'", "&#39;") if "''" in text or text[:1] == "'" or text[-1:] == "'" else text


def resolve_link(content: str, *, names: WikiNames) -> str:
    """Return the visible text of `[[content]]`, without bold and italic marks."""
    if PIPE in content.partition("|")[0]:
        content = content.replace(PIPE, "|", 1)  # {{!}}
    if _ADDRESS.match(content):
        return f"[{content.strip().replace('|', ' ', 1)}]"  # an external link in one pair of brackets too many
    shown = _resolve_link(content, names=names)
    return quote_free(shown, is_label="|" in content) if "'" in shown else shown


def _resolve_link(content: str, *, names: WikiNames) -> str:
    """Return the visible text of `[[content]]`: the label, or else the target. Return "" for links to files, categories
    and other languages. A link to a sound shows its label, unless that is only a button."""
    target, bar, label = content.partition("|")
    visible_prefix = target.lstrip().startswith(":")
    name = target.strip().lstrip(":").strip()
    prefix, colon, rest = name.partition(":")
    if colon:
        folded = fold_name(prefix)
        if not visible_prefix:
            if folded in names.invisible or folded in names.language_codes:
                return ""
            if folded in names.media:
                return without_button(label) if bar else rest.strip()
        elif not bar and folded in names.invisible:
            return rest.strip()
        if not bar and (folded in PROJECT_PREFIXES or folded in names.language_codes):
            name = rest.partition(":")[2] if fold_name(rest.partition(":")[0]) in names.language_codes else rest
    if "\n" in target:
        return content.replace("|", " ")
    if not bar:
        return name.replace("_", " ")
    if label.strip():
        return label
    # The pipe trick: [[Help:Mercury (planet)|]] reads "Mercury".
    bare = _PARENTHESES.sub("", rest if colon else name)
    return bare.partition(",")[0] if bare == name else bare


def resolve_external_links(text: str) -> str:
    """Return `text` with [http://x label] replaced by "label" and [http://x] by nothing; a bare address stays."""
    return _EXTERNAL.sub(lambda found: found.group(1) or EMPTY, text) if "[" in text else text
