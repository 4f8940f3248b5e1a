"""A push: revisions one after another, each compared with the hub first, shown, and sent unless it is a dry run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from huggingface_hub.utils import disable_progress_bars

from pipeline.console import Say
from pipeline.front_matter import split_front_matter
from pipeline.hub.files import PushFile
from pipeline.hub.repository import MAIN, Change, PushError, Repository, UnreachableError
from pipeline.units import count_of, describe_bytes

CARD_NAME = "README.md"
NO_LICENCE = (
    "note: the card names no licence. Token ids can be turned back into text and models repeat what they read, so the "
    "licence of the texts applies (Wikipedia's is cc-by-sa-4.0); name it as `license: ...` in the front matter of the "
    "data set's README.md"
)


@dataclass(frozen=True, slots=True)
class Revision:
    """A branch, and the files that it shall hold."""

    name: str
    title: str
    """What the files are, such as `step 1,000`: the title of the commit."""
    files: tuple[PushFile, ...]


def push(
    repository: Repository,
    revisions: Iterable[Revision],
    *,
    public: bool = False,
    replace: bool = False,
    dry_run: bool = False,
    say: Say,
) -> None:
    """Make the branches of `repository` hold the files of `revisions`; leave alone those that do.

    The next revision is taken from `revisions` when the one before is done, so only one needs to be on the disk. A new
    repository is private unless `public`. `replace` gives up files that others wrote. A dry run sends nothing; what it
    cannot ask the hub, it says. Raises PushError.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    asked = not dry_run or repository.has_token
    found = None
    try:
        if asked:
            found = repository.find_visibility()
            repository.check_token()
        else:
            say("not asked: the hub (no token)")
    except UnreachableError as error:
        if not dry_run:
            raise
        asked = False
        say(f"not asked: {error}")
    if found == "public" and not public:
        raise PushError(
            f"{repository.name}: is public; give --public to push there, or make it private in its settings"
        )
    say(f"{repository.url}: {_describe_visibility(found, public=public, asked=asked)}")
    for revision in revisions:
        change = None
        if asked:
            change = repository.compare(revision.name, files=revision.files)
            if not replace:
                repository.refuse_foreign(change)
        for line in _describe(revision, change=change):
            say(line)
        if dry_run or not change:
            continue
        if found is None:
            repository.create(public=public)
            found = "public" if public else "private"
            change = repository.compare(revision.name, files=revision.files)
        say(f"{revision.name}: pushed as {repository.commit(change, title=revision.title)}")
    if dry_run:
        say("dry run: nothing was sent")


def _describe_visibility(found: str | None, *, public: bool, asked: bool) -> str:
    wanted = "public" if public else "private"
    if not asked:
        return f"{wanted} if it is new"
    if found is None:
        return f"new, {wanted}"
    stays = "; --public does not change that, its settings do" if found != wanted else ""
    return f"exists, {found}{stays}"


def _describe(revision: Revision, *, change: Change | None) -> Iterator[str]:
    size = sum(file.size for file in revision.files)
    head = f"{revision.name}: {revision.title}, {count_of(len(revision.files), 'file')}, {describe_bytes(size)}"
    if change is not None and not change:
        yield f"{head}; left alone, the hub has the same files"
        return
    yield head
    sent = {file.name for file in change.sent} if change is not None else set()
    for file in revision.files:
        state = "not asked" if change is None else "to send" if file.name in sent else "the same there"
        yield f"  {file.name}  {file.size:,} bytes  {state}"
    for name in change.deleted if change is not None else ():
        yield f"  {name}  to delete"
    card = next((file for file in revision.files if file.name == CARD_NAME and revision.name == MAIN), None)
    if card is not None and not split_front_matter(card.read_text(), origin=CARD_NAME)[0].get("license"):
        yield NO_LICENCE
