"""Checks the values that you fill in, without a network: `make check-cluster`, `python -m cluster.check`.

The values must be valid, the files made from them must be up to date, and no file may hold a secret. The tests in
tests/cluster check the files themselves against the rules of Ray, AWS, Google Cloud and Kubernetes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from cluster import CLUSTER, REPOSITORY
from cluster.render import KINDS, ClusterValues, list_outdated, read_values
from pipeline.settings import ConfigError
from trainer.config import TrainerConfig

SECRETS = {
    "an AWS key": r"\b(AKIA|ASIA)[0-9A-Z]{16}\b",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of a code host or registry": r"\b(ghp|gho|ghs|github_pat|glpat|hf|dckr_pat|npm|pypi)[-_][\w-]{20,}\b",
    "a key of Google": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a long secret": r"(?i)\b\w*(secret|token|passwo?r?d|api_?key)\w*\s*[:=]\s*['\"]?[A-Za-z0-9+/_-]{24,}",
}
"""Maps the name of each kind of secret to the regular expression that finds it."""
START_TIMEOUT_S = int(TrainerConfig.model_fields["start_timeout_s"].default)


def find_faults(folder: Path) -> Iterator[str]:
    """Yield a message, with place and remedy, for each fault in the values and files in `folder` (cluster/)."""
    for kind in KINDS:
        try:
            values = read_values(kind, folder=folder / "values")
        except ConfigError as error:
            yield str(error)
            continue
        file = folder / "values" / f"{kind}.yaml"
        yield from (f"{file}: {problem}" for problem in find_costly_values(values))
        for name in list_outdated(kind, values=values, folder=folder):
            yield f"{folder / name}: does not match {file}; run `make cluster`"
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".yaml", ".sbatch", ".Dockerfile"):
            yield from (f"{path}: {problem}" for problem in find_secrets(path.read_text(encoding="utf-8")))


def find_costly_values(values: ClusterValues) -> Iterator[str]:
    """Yield a message for each value with which nodes never stop, or may take longer to boot than the trainer waits."""
    for name in ("cpu", "gpu"):
        group = getattr(values, name, None)
        if group is not None and group.min_nodes:
            yield f"{name}.min_nodes={group.min_nodes}: these nodes never stop, and cost money while idle; set 0"
    if values.boot_timeout_s >= START_TIMEOUT_S:
        limit = f"the trainer waits only start_timeout_s={START_TIMEOUT_S} by default"
        yield f"boot_timeout_s={values.boot_timeout_s}: {limit}; set less"


def find_secrets(text: str) -> Iterator[str]:
    """Yield a message, with the number of the line, for each line of `text` that looks like a secret."""
    for number, line in enumerate(text.splitlines(), start=1):
        for secret, pattern in SECRETS.items():
            if re.search(pattern, line):
                yield f"line {number} looks like {secret}; remove it, and revoke it"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all faults and their number. Return the exit status: 1 if there are faults, else 0."""
    argparse.ArgumentParser(prog="python -m cluster.check", description=__doc__).parse_args(arguments)
    faults = list(find_faults(CLUSTER))
    for fault in faults:
        print(fault.replace(f"{REPOSITORY}/", ""))
    print(f"faults: {len(faults)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
