"""Clients for object stores (s3://, gs://), and errors that say what a failure of a store means.

Each process creates its own clients, because a forked process would otherwise use its parent's connections. Credentials
come only from the environment, a profile or the machine's role, and no message shows them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

CONNECT_TIMEOUT_S = 10.0
"""Seconds after which a connection that has not opened is tried again."""
STALL_TIMEOUT_S = 30.0
"""Seconds without a byte after which a connection is dropped and tried again (s3://)."""
MAX_ATTEMPTS = 11
"""Attempts for each request to s3://. The pauses between attempts double from 25 ms: half a minute in all, more if
connections stall. HTTP 500, 503 and 429 are retried, as are refused, stalled and cut connections."""
RETRY_TIME_S = 60
"""Seconds for which a request to gs:// is retried. The library of gs:// counts time instead of attempts."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
StrPath = str | os.PathLike[str]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_FLATTENED = re.compile(r"(s3|gs|file):/[^/]")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_STORES_OWN = re.compile(r"AWS Error|google::cloud|curlCode|HTTP status")
_DENIALS = (
    "ACCESS_DENIED",
    "FORBIDDEN",
    "HTTP status 401",
    "HTTP status 403",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "INVALID_ACCESS_KEY",
    "INVALID_CLIENT_TOKEN",
    "EXPIRED_TOKEN",
    "SIGNATURE_DOES_NOT_MATCH",
    "CREDENTIALS",
)
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_S3_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_GS_ENDPOINTS = ("STORAGE_EMULATOR_HOST",)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile of ~/.aws, or the role of the machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or the service account of the machine",
}


class StorageError(OSError):
    """A request to a store failed; the message names URL, cause and remedy."""


class AbsentError(StorageError, FileNotFoundError):
    """The object, or the store's bucket, does not exist."""


class DeniedError(StorageError, PermissionError):
    """Access denied: credentials are missing, unknown or insufficient."""


def is_url(path: StrPath) -> bool:
    """Return whether a path is the URL of an object store. A file:// URL is a local path."""
    found = _URL.match(os.fspath(path))
    return found is not None and found[1].lower() != "file"


def local_path(path: StrPath) -> Path:
    """Return a local path or file:// URL as a Path. Raises ValueError for a URL that has lost a slash (s3:/bucket)
    because it was turned into a Path."""
    text = os.fspath(path)
    if _FLATTENED.match(text):
        raise ValueError(f"{text}: a URL has two slashes after its scheme, as in s3://bucket/folder")
    found = _URL.match(text)
    return Path(text) if found is None else Path(unquote(urlsplit(text).path))


def check_url(url: StrPath) -> tuple[str, str, str]:
    """Return (scheme, bucket, key) of the URL of an object on a store, without any request. The key has no slash at its
    end. Raises ValueError if the URL has no valid bucket name, or if its scheme is not supported."""
    text = os.fspath(url)
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme not in _CREDENTIALS:
        raise ValueError(f"{scheme}://...: this kind of store is not supported; give s3://, gs:// or a local path")
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"{scheme}://...: no valid bucket name before the first slash (a URL must not contain credentials: they "
            f"come from {_CREDENTIALS[scheme]}); write {scheme}://bucket/folder"
        )
    return scheme, bucket, key.rstrip("/")


def open_filesystem(url: StrPath) -> tuple[Any, str]:
    """Return (pyarrow FileSystem, path in that file system) for a URL or local path. Each process creates its clients
    on first use.

    Raises ValueError for an invalid URL or an unsupported scheme.
    """
    if not is_url(url):
        return fs.LocalFileSystem(), str(local_path(url))
    scheme, bucket, key = check_url(url)
    path = f"{bucket}/{key}" if key else bucket
    if scheme == "s3":
        return _open_s3(os.getpid(), _settings("s3"), CONNECT_TIMEOUT_S, STALL_TIMEOUT_S, MAX_ATTEMPTS), path
    return _open_gs(os.getpid(), _settings("gs"), RETRY_TIME_S), path


@contextmanager
def name_errors(url: StrPath, *, of_content: bool = False) -> Iterator[None]:
    """If pyarrow raises an error about a store in the block, raise a StorageError instead that names `url`, cause and
    remedy.

    Set `of_content` if the block also parses what it reads. OSErrors that do not come from the store are then left as
    they are.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if not is_url(url) or (of_content and not _STORES_OWN.search(str(error))):
            raise
        raise _explain(error, url=os.fspath(url)) from None


@contextmanager
def name_full_disk(folder: StrPath) -> Iterator[None]:
    """If the block raises a "disk full" error that names no file, add to the error's message the name of `folder`,
    where the local temporary files are."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK or error.filename is not None:
            raise
        said = f"{os.strerror(error.errno)}, for temporary files; free space there, or set TMPDIR to another folder"
        raise OSError(error.errno, said, os.fspath(folder)) from error


def raise_outage(error: Exception, *, url: StrPath) -> None:
    """Raise StorageError if `error` is a failure of the store. Do nothing if `error` means that the stored data are
    gone, damaged or changed, or if `url` is a local path."""
    if not isinstance(error, OSError):
        return
    try:
        with name_errors(url, of_content=True):
            raise error
    except OSError as found:
        if isinstance(found, StorageError) and not isinstance(found, AbsentError):
            raise


# ---- clients ----


@cache
def _open_s3(pid: int, settings: tuple[str, ...], connect_s: float, stall_s: float, attempts: int) -> Any:
    """Return the client of process `pid`. The first call creates it. `settings` is what _settings returns.

    A client made before a fork would share the parent's connections. Because `pid` is a part of the cache key, the
    child gets a client of its own. The parent's client stays unused in the child's cache.
    """
    scheme, endpoint, region = settings
    return fs.S3FileSystem(
        region=region or None,
        scheme=scheme,
        endpoint_override=endpoint or None,
        allow_delayed_open=True,  # a small file needs only one request
        connect_timeout=connect_s,
        request_timeout=stall_s,
        # The standard strategy would not do: all requests share its retry budget, which runs out on a busy store.
        retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=attempts - 1),
    )


@cache
def _open_gs(pid: int, settings: tuple[str, ...], retry_s: int) -> Any:
    scheme, endpoint, _ = settings
    return fs.GcsFileSystem(
        anonymous=bool(endpoint),  # an emulator has no accounts
        scheme=scheme,
        endpoint_override=endpoint or None,
        retry_time_limit=timedelta(seconds=retry_s),
    )


def _settings(scheme: str) -> tuple[str, str, str]:
    """Return (protocol, endpoint, region) of a store, as the environment sets them. The protocol is http or https, the
    endpoint is host:port or "", and the region may be "". Raises ValueError if the endpoint's address is invalid."""
    variables, regions = (_S3_ENDPOINTS, _S3_REGIONS) if scheme == "s3" else (_GS_ENDPOINTS, ())
    name = next((name for name in variables if os.environ.get(name)), None)
    region = next((os.environ[name] for name in regions if os.environ.get(name)), "")
    if name is None:
        return "https", "", region
    given = os.environ[name]
    parts = urlsplit(given if "://" in given else f"http://{given}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError(f"{name}: not the address of a store; write http(s)://host:port, without a user")
    return parts.scheme, parts.netloc + parts.path.rstrip("/"), region or "us-east-1"


# ---- errors ----


def _explain(error: OSError, *, url: str) -> StorageError:
    cause = _hide_secrets(" ".join(str(error).split()))
    scheme = url.partition("://")[0].lower()
    bucket = f"{scheme}://{url.partition('://')[2].partition('/')[0]}"
    name = next(iter(_S3_ENDPOINTS if scheme == "s3" else _GS_ENDPOINTS))

    said = re.sub(r"'[^']*'", "", cause)  # without quoted names, which may contain words of errors
    no_bucket = AbsentError(f"{url}: there is no bucket {bucket}; correct the name, or create the bucket")

    def has(*words: str) -> bool:
        return any(word in said for word in words)

    if has("NO_SUCH_BUCKET", "bucket does not exist"):
        return no_bucket
    if has(*_DENIALS):
        return DeniedError(
            f"{url}: the store denies access ({_shorten(cause)}); provide credentials that may read and write there: "
            f"{_CREDENTIALS[scheme]}"
        )
    if has("HTTP status 301", "PERMANENT_REDIRECT", "HTTP status 307"):
        return StorageError(f"{url}: the bucket is in another region ({_shorten(cause)}); set AWS_REGION to its region")
    if isinstance(error, FileNotFoundError) or has("NOT_FOUND", "NO_SUCH_KEY", "HTTP status 404", "No such directory"):
        with suppress(OSError):
            system, place = open_filesystem(url)
            if system.get_file_info(place.partition("/")[0]).type == fs.FileType.NotFound:
                return no_bucket
        return AbsentError(f"{url}: there is no such object; correct the URL, or upload it")
    if has("Failed to flush response stream"):  # the response, or its error message, is longer than the object was
        with suppress(OSError):
            system, place = open_filesystem(url)
            if system.get_file_info(place).type == fs.FileType.NotFound:
                return AbsentError(f"{url}: the object was removed while it was read; find out who writes there")
        return StorageError(f"{url}: the object was replaced while it was read; find out who did it, and run again")
    if has("HTTP status 503", "SLOW_DOWN", "THROTTLING", "SERVICE_UNAVAILABLE", "HTTP status 429", "HTTP status 500"):
        return StorageError(
            f"{url}: the store was still too busy after {MAX_ATTEMPTS} attempts ({_shorten(cause)}); run again, with "
            "fewer workers if this repeats"
        )
    if has("NETWORK_CONNECTION", "curlCode", "UNAVAILABLE", "Couldn't connect", "REQUEST_TIMEOUT"):
        return StorageError(
            f"{url}: the store cannot be reached, or drops connections, even after {MAX_ATTEMPTS} attempts "
            f"({_shorten(cause)}); check the network and {name}, and run again"
        )
    return StorageError(f"{url}: the store failed ({_shorten(cause)}); remove the cause that it reports, and run again")


def _hide_secrets(text: str) -> str:
    for name in _SECRETS:
        value = os.environ.get(name)
        if value:
            text = text.replace(value, "***")
    return text


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."
