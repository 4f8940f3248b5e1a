"""A repository of the Hugging Face Hub: what is there, who wrote it, and atomic commits. Every error names it.

Nothing here changes the hub except `create` and `commit`. Content is sent before the commit that names it, and content
that the hub has is not sent again: so a killed push continues.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from huggingface_hub import CommitOperationDelete, HfApi, RepoFile, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from pipeline.hub.files import PushFile
from pipeline.signals import raise_caught

RepositoryKind: TypeAlias = Literal["model", "dataset"]
MAIN = "main"
TITLE_START = "Cloze: "
"""Begins the title of each of our commits, so that later pushes know what we wrote."""
HUB_FILES = (".gitattributes",)
"""Files of the hub itself, which stay as they are."""
_OTHER: dict[RepositoryKind, RepositoryKind] = {"model": "dataset", "dataset": "model"}
_COMMANDS = {"model": "python -m trainer.push", "dataset": "python -m pipeline.push"}
_TIMEOUT_S = 30.0
"""Longest wait for the first answer."""
_TOGETHER = 32
"""Files whose content is sent in one call. After a stop, what whole calls have sent is not sent again."""
_CHUNK = 50
"""Files about whose last commit the hub answers at a time."""
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class PushError(ValueError):
    """A push that cannot be done. The message names the repository and a remedy."""


class UnreachableError(PushError):
    """The hub does not answer at all."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a push changes in one revision."""

    revision: str
    head: str | None
    """The commit that the change is based on, or None if the revision does not exist."""
    sent: tuple[PushFile, ...]
    """Files that the revision lacks or has with other content."""
    same: tuple[PushFile, ...]
    deleted: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.sent or self.deleted)


class Repository:
    """A repository `name` (OWNER/NAME) on the hub at HF_ENDPOINT, or huggingface.co."""

    def __init__(self, name: str, *, kind: RepositoryKind) -> None:
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            raise PushError(f"{name}: no name of a repository ({error}); give OWNER/NAME, such as me/bert") from error
        if name.count("/") != 1:
            raise PushError(f"{name}: names no owner; give OWNER/NAME, such as me/{name}")
        self.name, self.kind = name, kind
        self._api = HfApi()
        self.has_token = get_token() is not None

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self._api.endpoint}/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"

    def check_token(self) -> None:
        """Raise PushError if the hub refuses the token."""
        with self._named():
            self._api.whoami()

    def find_visibility(self) -> Literal["private", "public"] | None:
        """Return whether the repository is private or public, or None if it does not exist (or hides from this token).
        Raises PushError if there is no token, or if the name belongs to a repository of the other kind."""
        if not self.has_token:
            raise PushError(f"{self.name}: no token for the hub; {LOG_IN}")
        with self._named():
            try:
                found = self._api.repo_info(self.name, repo_type=self.kind, timeout=_TIMEOUT_S)
            except RepositoryNotFoundError:
                found = None
            if found is not None:
                return "private" if found.private else "public"
            other = _OTHER[self.kind]
            try:
                self._api.repo_info(self.name, repo_type=other, timeout=_TIMEOUT_S)
            except RepositoryNotFoundError:
                return None
        raise PushError(
            f"{self.name}: is a {other} repository, and this is a {self.kind}; choose another name ({_COMMANDS[other]} "
            f"writes a {other})"
        )

    def create(self, *, public: bool) -> None:
        """Create the repository if it does not exist."""
        with self._named():
            self._api.create_repo(self.name, repo_type=self.kind, private=not public, exist_ok=True)

    def compare(self, revision: str, *, files: Sequence[PushFile]) -> Change:
        """Return what would make the branch `revision` hold `files` and nothing else, except HUB_FILES. A branch or
        repository that does not exist holds nothing."""
        with self._named():
            head = self._find_heads().get(revision)
            stored = self._list_files(revision) if head is not None else {}
        same = tuple(file for file in files if file.name in stored and file.is_at(stored[file.name]))
        unchanged, names = {file.name for file in same}, {file.name for file in files}
        sent = tuple(file for file in files if file.name not in unchanged)
        deleted = tuple(name for name in sorted(stored) if name not in names and name not in HUB_FILES)
        return Change(revision, head, sent, same, deleted)

    def refuse_foreign(self, change: Change) -> None:
        """Raise PushError if a file that `change` would replace or delete was last written by another than us."""
        lost = [*(file.name for file in change.sent), *change.deleted] if change.head is not None else []
        with self._named():
            for start in range(0, len(lost), _CHUNK):
                found = self._api.get_paths_info(
                    self.name, lost[start : start + _CHUNK], expand=True, revision=change.head, repo_type=self.kind
                )
                for entry in found:
                    title = entry.last_commit.title if entry.last_commit is not None else ""
                    if not title.startswith(TITLE_START):
                        raise PushError(
                            f"{self.name}: {entry.path} in {change.revision} was not written by this command, but by "
                            f"the commit {title!r}, and would be lost; choose another repository, or give --replace"
                        )

    def commit(self, change: Change, *, title: str) -> str:
        """Make `change` as one commit, and return its address. Creates the branch if it does not exist. Raises
        PushError, which changes nothing that is seen, if the branch has changed since it was compared."""
        with self._named(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata that the hub would like
            head = change.head if change.head is not None else self._start(change.revision)
            where: dict[str, Any] = {"repo_id": self.name, "repo_type": self.kind, "revision": change.revision}
            additions = [file.addition() for file in change.sent]
            for start in range(0, len(additions), _TOGETHER):
                self._api.preupload_lfs_files(
                    additions=additions[start : start + _TOGETHER], free_memory=False, **where
                )
            deletions = [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in change.deleted]
            done = self._api.create_commit(
                operations=[*additions, *deletions], commit_message=f"{TITLE_START}{title}", parent_commit=head, **where
            )
        return str(done.commit_url)

    def _start(self, revision: str) -> str | None:
        """Create a branch at the repository's first commit, which holds HUB_FILES alone, and return this commit."""
        if revision == MAIN:
            return self._find_heads().get(MAIN)
        first = str(self._api.list_repo_commits(self.name, repo_type=self.kind)[-1].commit_id)
        self._api.create_branch(self.name, branch=revision, revision=first, repo_type=self.kind)
        return first

    def _find_heads(self) -> dict[str, str]:
        try:
            refs = self._api.list_repo_refs(self.name, repo_type=self.kind)
        except RepositoryNotFoundError:
            return {}
        return {branch.name: branch.target_commit for branch in refs.branches}

    def _list_files(self, revision: str) -> dict[str, RepoFile]:
        try:
            tree = self._api.list_repo_tree(self.name, recursive=True, revision=revision, repo_type=self.kind)
            return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        except (RevisionNotFoundError, EntryNotFoundError):
            return {}

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn the errors of huggingface_hub into PushError."""
        try:
            yield
        except PushError:
            raise
        except (HTTPError, OSError, RuntimeError, ValueError) as error:
            raise_caught()
            raise self._explain(error) from error

    def _explain(self, error: BaseException) -> PushError:
        while isinstance(error, RuntimeError) and error.__cause__ is not None:  # of an upload in a thread
            error = error.__cause__
        said = " ".join(str(error).split())
        if isinstance(error, HfHubHTTPError):
            return PushError(f"{self.name}: {self._explain_status(error, said=said)}")
        if isinstance(error, (HTTPError, OfflineModeIsEnabled)):
            return UnreachableError(
                f"{self.name}: the hub at {self._api.endpoint} cannot be reached ({said or type(error).__name__}); "
                f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE"
            )
        if isinstance(error, ValueError) and "README.md" in said:
            return PushError(f"{self.name}: the hub refuses the card: {said}; correct the front matter of README.md")
        return PushError(f"{self.name}: the upload failed ({said}); the same command continues")

    def _explain_status(self, error: HfHubHTTPError, *, said: str) -> str:
        status = error.response.status_code
        what = error.server_message or said
        if status == 401 and not isinstance(error, RepositoryNotFoundError):
            return f"the hub refuses the token (401: {what}); {LOG_IN}"
        if status == 403:
            return (
                f"this token may not write there (403: {what}); use a token with the right to write, or a repository "
                f"of yours"
            )
        if isinstance(error, RepositoryNotFoundError) or status == 404:
            return f"not found ({status}: {what}); correct the name, or use a token that may see it"
        if status in (409, 412):
            return f"was changed by another while this was pushed ({status}: {what}); run the same command again"
        if status == 429:
            return f"too many requests (429: {what}); wait, then run the same command again"
        if status >= 500:
            return f"the hub failed ({status}: {what}); run the same command again: what it has is not sent again"
        return f"the hub refuses this ({status}: {what}); correct what it names"
