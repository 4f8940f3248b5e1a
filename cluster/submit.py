"""Runs jobs on a Ray cluster: `python -m cluster.submit train|preprocess --config FILE key.sub=value ...`.

Uploads only our packages and the config. Data and run directories are not uploaded, so their paths must be the same on
all nodes. The environment variable RAY_ADDRESS gives the address of the cluster's dashboard (http://...). If it is not
set, jobs go to the local cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cluster import PREPROCESSING, REPOSITORY
from cluster.local import CPUS_PER_WORKER, LocalCluster, read
from pipeline.config import KEYS, PipelineConfig
from pipeline.console import command, exit_with, fail
from pipeline.settings import ConfigError, Settings, dump_yaml, load_settings, split_arguments, to_tree
from trainer.config import TrainerConfig
from trainer.launch import send_token

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

PROGRAM = "python -m cluster.submit"
SCRIPTS = {"train": "trainer/run.py", "preprocess": "pipeline/run.py"}
"""Maps each kind of job to the script that it runs, as a path in the repository."""
CONFIGS: dict[str, type[Settings]] = {"train": TrainerConfig, "preprocess": PipelineConfig}
PACKAGES = ("pipeline", "trainer", "cluster")
CONFIG_NAME = "job.yaml"
EXCLUDED = ("__pycache__", "*.pyc")
"""Patterns of names in the packages that are not uploaded."""
LIMIT_BYTES = 50_000_000
"""Largest upload in bytes. Ray's own limit is ten times this size, and Ray checks it only after the upload."""
PATHS = {
    "train": ("data", "output", "working_folder", "model.initialize_from", "resume_from", "phases.*.data"),
    "preprocess": (
        *("sources.*.path", "sources.*.clean_documents", "vocabulary.path", "output", "cleaning.keep_rejects"),
    ),
}
"""Maps each kind of job to the keys of its settings that name files or folders. `*` stands for every index of a
list."""
AGENT_TIMEOUT_S = 120.0
ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
LOG_IN_REASON = ", last available logs"
"""From here on, Ray's reason for a failed job repeats the end of the job's log (ray 2.60,
dashboard/modules/job/job_supervisor.py)."""


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Submit, show or stop jobs. Return the exit status: 0, or 1 if the job failed, or 2 for an error that the user can
    fix."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("action", choices=["train", "preprocess", "status", "logs", "stop", "list"])
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, help="job ID (status, logs, stop), or --config FILE key.sub=value ..."
    )
    parser.add_argument("--id", help="ID of the new job (default: made from the time)")
    parser.add_argument("--no-wait", action="store_true", help="return without waiting for the job")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.action in ("status", "logs", "stop") and len(parsed.words) != 1:
            raise ConfigError(f"{PROGRAM}: {parsed.action} needs the job's ID; `{PROGRAM} list` shows all IDs")
        for id in [*(parsed.words if parsed.action in ("status", "logs", "stop") else ()), parsed.id or "new"]:
            check_id(id)
        local = use_local_cluster()
        if parsed.action in SCRIPTS:
            return submit(parsed.action, parsed.words, id=parsed.id, wait=not parsed.no_wait, local=local)
        client = connect()
        if parsed.action == "list":
            for job in sorted(client.list_jobs(), key=lambda job: job.start_time or 0):
                print(f"{job.submission_id}  {job.status}  {job.entrypoint}")
            return 0
        return act_on_job(client, parsed.action, parsed.words[0])
    except RuntimeError as error:  # Ray's client does not know the job, or got an unexpected answer
        return fail(error)


def use_local_cluster() -> LocalCluster | None:
    """Return the running local cluster and put its address and token into this process's environment. Return None if
    there is none, or if the environment names another cluster."""
    if os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS"):
        return None
    local = read()
    if local is not None:
        os.environ.update(local.environment)
    return local


def connect() -> JobSubmissionClient:
    """Return a client for jobs on the cluster that RAY_ADDRESS names. Raises ConfigError if it names no cluster, or if
    the cluster does not answer."""
    address = (os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "").strip()
    shown = re.sub(r"//[^/]*@", "//...@", address)
    if not _is_address(address):
        raise ConfigError(
            f"RAY_ADDRESS={shown}: give the address of the cluster's dashboard, such as http://127.0.0.1:8265 "
            f"(see cluster/README.md), or start a cluster on this machine with `make local-cluster`"
        )
    send_token()
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except AuthenticationError as error:
        raise ConfigError(
            f"RAY_ADDRESS={shown}: the cluster refuses the token, or got none; put the cluster's token into "
            f"RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from error
    except (RuntimeError, OSError, ValueError, TypeError, KeyError) as error:  # of requests, or of a foreign answer
        said = " ".join(str(error).replace(address, shown).split()).rstrip(".")
        raise ConfigError(
            f"RAY_ADDRESS={shown}: no answer of a Ray dashboard: {said}; check that the tunnel is open, and that "
            f"RAY_AUTH_TOKEN or ~/.ray/auth_token is the cluster's token"
        ) from error


def _is_address(address: str) -> bool:
    """Whether `address` is a URL with http or https, a host, and a valid port if it has one."""
    try:
        parts = urlsplit(address)
        return bool(address.startswith(("http://", "https://")) and parts.hostname and parts.port != 0) and not (
            re.search(r"[\s\x00-\x1f]", address)
        )
    except ValueError:
        return False


def check_id(id: str) -> None:
    """Raise ConfigError if `id` cannot be a job's ID, which becomes a part of a URL."""
    if not re.fullmatch(r"(?!\.+$)[\w.-]{1,200}", id, re.ASCII):
        raise ConfigError(
            f"JOB={id[:200]!r}: not the ID of a job; give letters, digits, '-', '_' and '.'; `{PROGRAM} list` shows all"
        )


def submit(kind: str, words: Sequence[str], *, id: str | None, wait: bool, local: LocalCluster | None) -> int:
    """Check the config, upload it with the code, and start a job of the kind `kind` (train or preprocess). If `wait`,
    print the job's log until the job ends. Return the exit status.

    `words` are the arguments of the job, such as --config FILE. `id` is the ID of the job. If it is None, an ID is made
    from the time. `local` is the local cluster, or None if the job goes to another cluster.
    """
    arguments = split_arguments(words, program=PROGRAM, keys=KEYS if kind == "preprocess" else ())
    if arguments.file is None:
        raise ConfigError(f"{PROGRAM}: {kind} needs --config FILE")
    overrides = list(arguments.overrides)
    config = load_settings(CONFIGS[kind], file=arguments.file, overrides=overrides)
    given = dict(find_paths(kind, config))
    relative = {key: path for key, path in given.items() if not is_absolute(path)}
    if relative and local is None:
        key, path = next(iter(relative.items()))
        raise ConfigError(
            f"{key}={path}: on the cluster a relative path lies in the job's own folder, which is deleted; give an "
            f"absolute path that all nodes see, or an address of an object store (s3://...)"
        )
    overrides += [f"{key}={REPOSITORY / path}" for key, path in relative.items()]
    on_cpus = isinstance(config, TrainerConfig) and config.launcher == "ray" and config.device != "cuda"
    if local is not None and on_cpus and "cpus_per_worker" not in config.model_fields_set:
        overrides.append(f"cpus_per_worker={CPUS_PER_WORKER}")  # one worker on each node
    if isinstance(config, PipelineConfig):
        overrides += bind_to_nodes(config)
    config = load_settings(CONFIGS[kind], file=arguments.file, overrides=overrides)
    id = id or f"cloze-{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    command = ["python", SCRIPTS[kind], "--config", CONFIG_NAME, *arguments.flags]
    if arguments.rest:
        command += ["--", *arguments.rest]
    client = connect()
    with tempfile.TemporaryDirectory(prefix="cloze-job-") as folder:
        pack(Path(folder), config=config)
        size = check_size(Path(folder))
        submit_when_ready(client, id, command=shlex.join(command), folder=folder)
    print(f"submitted {id} ({size / 1e6:.1f} MB of code): {shlex.join(command)}", flush=True)
    print(f"make status JOB={id}; make stop JOB={id}; to continue after a stop, run the same command again", flush=True)
    return follow(client, id) if wait else 0


def bind_to_nodes(config: PipelineConfig) -> list[str]:
    """Return overrides (key=value) that make a build run on the preprocessing nodes. A setting that is set in `config`
    gets no override."""
    overrides = [] if "engine" in config.model_fields_set else ["engine=ray"]
    if (overrides or config.engine == "ray") and "resource" not in config.ray.model_fields_set:
        overrides.append(f"ray.resource={PREPROCESSING}")
    return overrides


def submit_when_ready(client: JobSubmissionClient, id: str, *, command: str, folder: str) -> None:
    """Upload `folder`, and start `command` in the uploaded folder as job `id`.

    Ray's agent, which starts jobs, is ready only some seconds after the head. So try for up to AGENT_TIMEOUT_S seconds
    while Ray has no agent.
    """
    deadline = time.monotonic() + AGENT_TIMEOUT_S
    while True:
        try:
            client.submit_job(
                entrypoint=command,
                submission_id=id,
                runtime_env={"working_dir": folder, "excludes": list(EXCLUDED)},
            )
            return
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def find_paths(kind: str, config: Settings) -> Iterator[tuple[str, str]]:
    """Yield (key, path) for every setting in `config` that names a file or folder."""
    for key in PATHS[kind]:
        yield from _walk(to_tree(config), key.split("."), ())


def _walk(node: Any, parts: Sequence[str], done: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if node is None:
        return
    if not parts:
        if isinstance(node, str):
            yield ".".join(done), node
        else:
            for index, each in enumerate(node):
                yield from _walk(each, parts, (*done, str(index)))
    elif parts[0] == "*":
        for index, each in enumerate(node):
            yield from _walk(each, parts[1:], (*done, str(index)))
    elif isinstance(node, Mapping):
        yield from _walk(node.get(parts[0]), parts[1:], (*done, parts[0]))


def is_absolute(path: str) -> bool:
    """Whether a path means the same on every node: it is absolute, or the address of an object store."""
    return "://" in path or os.path.isabs(path)


def pack(folder: Path, *, config: Settings) -> None:
    """Copy our packages into `folder`, and write `config` there as job.yaml."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns(*EXCLUDED))
    (folder / CONFIG_NAME).write_text(dump_yaml(config, given=True), encoding="utf-8")


def check_size(folder: Path, *, limit: int = LIMIT_BYTES) -> int:
    """Return the size in bytes of all files in `folder`, the upload. If the size exceeds `limit`, raises ConfigError
    that names the largest files."""
    sizes = {path.relative_to(folder): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    total = sum(sizes.values())
    if total > limit:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path} ({sizes[path] / 1e6:,.1f} MB)" for path in largest)
        raise ConfigError(
            f"the job would upload {total / 1e6:,.1f} MB of code, more than {limit / 1e6:,.0f} MB; move data out of "
            f"the packages, to storage that all nodes see: {named}"
        )
    return total


def follow(client: JobSubmissionClient, id: str) -> int:
    """Print the job's log until the job ends, then its status. Return 1 if the job failed, else 0. After Ctrl-C, the
    job continues to run."""

    async def show() -> None:
        async for lines in client.tail_job_logs(id):
            print(lines, end="", flush=True)

    try:
        asyncio.run(show())
    except KeyboardInterrupt:
        print(f"\n{id} continues on the cluster; make stop JOB={id} ends it with a checkpoint", file=sys.stderr)
        raise
    return print_status(client, id)


def act_on_job(client: JobSubmissionClient, action: str, id: str) -> int:
    """Print a job's status. If `action` is "logs", print the job's log first. If `action` is "stop", first stop the job
    and wait for its end.

    Return 1 if the job failed, else 0.
    """
    if action == "logs":
        return follow(client, id)
    if action == "stop":
        client.stop_job(id)
        while str(client.get_job_status(id)) not in ENDED:
            time.sleep(0.5)
    return print_status(client, id)


def print_status(client: JobSubmissionClient, id: str) -> int:
    """Print a job's status, why it failed, and the last line of its log. Return 1 if the job failed, else 0."""
    info = client.get_job_info(id)
    lines = client.get_job_logs(id).splitlines()
    reason = (info.message or "").partition(LOG_IN_REASON)[0] if info.status == "FAILED" else ""
    print(f"{id}: {info.status}{f' ({reason})' if reason else ''}")
    if lines:
        print(lines[-1])
    return 1 if info.status == "FAILED" else 0


if __name__ == "__main__":
    exit_with(main())
