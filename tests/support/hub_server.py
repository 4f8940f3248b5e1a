"""A Hugging Face Hub in a thread: repositories with branches and commits in memory, as huggingface_hub asks for them.

It follows the hub's HTTP interface as the client uses it: files ending in .safetensors or .parquet go through LFS, a
commit names its parent, and front matter is checked for what the hub refuses. Tests plant answers and stops.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

TOKEN = "hf_of_a_test"
OWNER = "me"
LARGE = (".safetensors", ".parquet")
LICENCES = ("apache-2.0", "cc-by-sa-4.0", "cc0-1.0", "mit", "other")
DATE = "2026-12-01T00:00:00.000Z"


@dataclass(frozen=True)
class Commit:
    """A state of a branch."""

    id: str
    title: str
    files: Mapping[str, bytes]
    written_by: Mapping[str, str]
    """The title of the commit that last wrote each file."""
    parent: str | None


@dataclass
class StoredRepository:
    """A model or a data set."""

    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def files(self, revision: str = "main") -> Mapping[str, bytes]:
        """What a branch or commit holds."""
        return self.commits[self.branches.get(revision, revision)].files

    def titles(self, revision: str = "main") -> list[str]:
        """Titles of a branch's commits, newest first."""
        found, place = [], self.branches.get(revision)
        while place is not None:
            found.append(self.commits[place].title)
            place = self.commits[place].parent
        return found

    def add(self, revision: str, *, title: str, changes: Mapping[str, bytes | None]) -> Commit:
        """A commit that writes and deletes (None) files."""
        parent = self.branches.get(revision)
        before = self.commits[parent] if parent is not None else Commit("", "", {}, {}, None)
        files, written_by = dict(before.files), dict(before.written_by)
        for name, content in changes.items():
            if content is None:
                del files[name]
                del written_by[name]
            else:
                files[name], written_by[name] = content, title
        digest = hashlib.sha1(f"{len(self.commits)} {revision} {title}".encode()).hexdigest()
        commit = Commit(digest, title, files, written_by, parent)
        self.commits[digest] = commit
        self.branches[revision] = digest
        return commit

    def write_to(self, folder: Path, revision: str = "main") -> Path:
        """Write the files of a branch to a folder."""
        for name, content in self.files(revision).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder


class Hub:
    """The server. `answers` maps a pattern of `METHOD /path` to the status that such requests get."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], StoredRepository] = {}
        """By kind (model, dataset) and name."""
        self.large: dict[str, bytes] = {}
        """What LFS holds, by sha256."""
        self.log: list[str] = []
        self.answers: dict[str, int] = {}
        self.before: Callable[[str], None] = lambda request: None
        """Called before each answer with `METHOD /path`."""
        self.url = ""

    def create(self, kind: str, name: str, *, private: bool = True) -> StoredRepository:
        """A new repository with the hub's first commit."""
        repository = StoredRepository(private)
        repository.add("main", title="initial commit", changes={".gitattributes": b"*.safetensors filter=lfs\n"})
        self.repositories[kind, name] = repository
        return repository

    def model(self, name: str = f"{OWNER}/bert") -> StoredRepository:
        """A model repository."""
        return self.repositories["model", name]

    def changes(self) -> list[str]:
        """Requests that may have changed something."""
        return [line for line in self.log if not line.startswith(("GET ", "HEAD ")) and "/paths-info/" not in line]


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub with no repository, on a free port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _RefusedError(Exception):
    def __init__(self, status: int, message: str, *, code: str = "", tree: Any = None) -> None:
        super().__init__(message)
        self.status, self.code, self.tree = status, code, tree


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""

    def answer(self) -> None:
        parts = urlsplit(self.path)
        request = f"{self.command} {parts.path}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        self.hub.log.append(request)
        self.hub.before(request)
        headers = {"Content-Type": "application/json"}
        try:
            planted = next(
                (status for pattern, status in self.hub.answers.items() if re.search(pattern, request)), None
            )
            if planted is not None:
                raise _RefusedError(planted, "planted by the test")
            status, tree = 200, self._route(parts.path, query=parse_qs(parts.query), body=body)
        except _RefusedError as refusal:
            status, tree = refusal.status, refusal.tree or {"error": str(refusal)}
            headers |= {"X-Error-Message": str(refusal), "X-Error-Code": refusal.code}
        content = json.dumps(tree).encode()
        with suppress(OSError):  # the client was killed
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer  # noqa: N815

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _route(self, path: str, *, query: dict[str, list[str]], body: bytes) -> Any:
        if path.startswith("/large/"):
            if hashlib.sha256(body).hexdigest() != path.rpartition("/")[2]:
                raise _RefusedError(400, "content does not have its hash")
            self.hub.large[path.rpartition("/")[2]] = body
            return {}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _RefusedError(401, "Invalid credentials in Authorization header")
        if path == "/api/whoami-v2":
            return {"name": OWNER, "type": "user", "orgs": []}
        if path == "/api/validate-yaml":
            return _check_card(json.loads(body)["content"])
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        large = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path)
        if large:
            self._find("dataset" if large[1] else "model", large[2])
            return self._batch(json.loads(body))
        match = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/([a-z-]+)(?:/(.+))?)?", path)
        if match is None:
            raise _RefusedError(404, f"no such address: {path}")
        repository = self._find(match[1], match[2])
        revision = unquote(match[4] or "main")
        if match[3] == "branch":
            return _branch(repository, revision=revision, start=json.loads(body).get("startingPoint", "main"))
        if match[3] in ("tree", "paths-info", "preupload", "commit", "commits") and revision not in (
            *repository.branches,
            *repository.commits,
        ):
            raise _RefusedError(404, "Revision not found", code="RevisionNotFound")
        if match[3] is None:
            head = repository.branches["main"]
            return {"id": match[2], "sha": head, "private": repository.private, "siblings": [], "tags": []}
        if match[3] == "refs":
            refs = repository.branches.items()
            branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit} for name, commit in refs]
            return {"branches": branches, "converts": [], "tags": []}
        if match[3] == "commits":
            return _list_commits(repository, revision=revision)
        if match[3] == "tree":
            return [_entry(repository, revision=revision, name=name) for name in repository.files(revision)]
        if match[3] == "paths-info":
            wanted = parse_qs(body.decode())["paths"]
            return [
                _entry(repository, revision=revision, name=name, last=True)
                for name in wanted
                if name in repository.files(revision)
            ]
        if match[3] == "preupload":
            return {"files": [_mode(repository, file, revision=revision) for file in json.loads(body)["files"]]}
        assert match[3] == "commit"
        done = self._commit(repository, revision=revision, lines=[json.loads(line) for line in body.splitlines()])
        address = f"{self.hub.url}/{'datasets/' if match[1] == 'dataset' else ''}{match[2]}/commit/{done.id}"
        return {"commitUrl": address, "commitOid": done.id}

    def _find(self, kind: str, name: str) -> StoredRepository:
        found = self.hub.repositories.get((kind, name))
        if found is None:
            raise _RefusedError(404, "Repository not found", code="RepoNotFound")
        return found

    def _create(self, tree: dict[str, Any]) -> Any:
        name, kind = f"{tree['organization'] or OWNER}/{tree['name']}", tree.get("type") or "model"
        if not name.startswith(f"{OWNER}/"):
            raise _RefusedError(403, f"You don't have the rights to create a {kind} under the namespace")
        address = f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        if (kind, name) in self.hub.repositories:
            raise _RefusedError(409, "You already created this repo", tree={"url": address})
        self.hub.create(kind, name, private=tree.get("visibility") == "private")
        return {"url": address}

    def _batch(self, tree: dict[str, Any]) -> Any:
        objects = []
        for each in tree["objects"]:
            action = {"upload": {"href": f"{self.hub.url}/large/{each['oid']}"}}
            objects.append({**each, **({} if each["oid"] in self.hub.large else {"actions": action})})
        return {"transfer": "basic", "objects": objects}

    def _commit(self, repository: StoredRepository, *, revision: str, lines: list[dict[str, Any]]) -> Commit:
        head = lines[0]["value"]
        if head.get("parentCommit") not in (None, repository.branches[revision]):
            raise _RefusedError(412, "A commit has happened since. Please refresh and try again.")
        changes: dict[str, bytes | None] = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.large:
                    raise _RefusedError(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
                changes[value["path"]] = self.hub.large[value["oid"]]
            else:
                assert line["key"] == "deletedFile"
                changes[value["path"]] = None
        return repository.add(revision, title=head["summary"], changes=changes)


def _branch(repository: StoredRepository, *, revision: str, start: str) -> Any:
    if revision in repository.branches:
        raise _RefusedError(409, "Reference already exists")
    repository.branches[revision] = repository.branches.get(start, start)
    return {}


def _list_commits(repository: StoredRepository, *, revision: str) -> list[dict[str, Any]]:
    found, place = [], repository.branches.get(revision)
    while place is not None:
        commit = repository.commits[place]
        author = {"user": OWNER}
        found.append({"id": place, "title": commit.title, "message": "", "date": DATE, "authors": [author]})
        place = commit.parent
    return found


def _entry(repository: StoredRepository, *, revision: str, name: str, last: bool = False) -> dict[str, Any]:
    commit = repository.commits[repository.branches.get(revision, revision)]
    content = commit.files[name]
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": _git_hash(content)}
    if name.endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        entry |= {"oid": "0" * 40, "lfs": {"oid": digest, "size": len(content), "pointerSize": 134}}
    if last:
        entry["lastCommit"] = {"id": commit.id, "title": commit.written_by[name], "date": DATE}
    return entry


def _mode(repository: StoredRepository, file: dict[str, Any], *, revision: str) -> dict[str, Any]:
    mode = "lfs" if file["path"].endswith(LARGE) else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _check_card(card: str) -> Any:
    front = yaml.safe_load(card.split("---\n", 2)[1])
    errors = []
    licences = front.get("license") or []
    for licence in licences if isinstance(licences, list) else [licences]:
        if licence not in LICENCES:
            errors.append(f'"license" must be one of [{", ".join(LICENCES)}]')
    for language in front.get("language") or []:
        if not re.fullmatch("[a-z]{2,3}", language):
            errors.append(f'"language" with value "{language}" is not valid')
    for model in front.get("model-index") or []:
        for result in model["results"]:
            if not (result["task"]["type"] and result["dataset"]["type"] and result["dataset"]["name"]):
                errors.append('"model-index" lacks a type or a name')
    if errors:
        raise _RefusedError(
            400, "invalid card", tree={"errors": [{"message": each} for each in errors], "warnings": []}
        )
    return {"errors": [], "warnings": []}


def refusal_of(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a push by `main` that is refused."""
    capsys.readouterr()
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said
