"""Checks the values that you fill in, without a network: `make check-cluster`, `python -m cluster.check`.

The values must be valid, the files made from them must be up to date, and no file may hold a secret. With `--ready`, no
value may be left to fill in. The tests in tests/cluster check the files themselves against the rules of Ray, AWS,
Google Cloud and Kubernetes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cluster import CLUSTER
from cluster.costs import describe_costs
from cluster.leaks import find_secrets
from cluster.render import (
    SETS,
    ClusterValues,
    HostsValues,
    ValuesSet,
    choose_sets,
    find_unfilled,
    list_outdated,
    list_sets,
    list_unfilled,
    read_set,
    render_set,
    shorten,
)
from pipeline.console import command, exit_with
from pipeline.settings import ConfigError
from trainer.config import TrainerConfig

START_TIMEOUT_S = int(TrainerConfig.model_fields["start_timeout_s"].default)
SCANNED = (".yaml", ".yml", ".sbatch", ".Dockerfile")
"""Suffixes of the files that are searched for secrets."""
MADE = "# Made by `make cluster"
"""What stands in every file that `make cluster` has made."""


def find_faults(sets: Sequence[ValuesSet], *, ready: bool = False) -> Iterator[str]:
    """Yield a message, with place and remedy, for each fault in `sets` and in the files made from them.

    A fault in one set does not keep others from being checked. If `ready`, a value that is still to fill in is a fault.
    """
    places: dict[str, ValuesSet] = {}
    scanned: set[Path] = set()
    for chosen in sets:
        scanned |= {chosen.file, *_list_files(chosen.folder)}
        try:
            kind, values = read_set(chosen)
            if ready:
                for key, value in find_unfilled(values).items():
                    yield f"{chosen.origin}: {key}={value}: still says fill-in; give your value"
            yield from (f"{chosen.origin}: {fault}" for fault in find_costly_values(values))
            example = chosen.shipped and list_unfilled(values)
            for place in [] if example else list_places(kind, values):
                other = places.setdefault(place, chosen)
                if other is not chosen:
                    yield f"{chosen.origin}: {place} is in {other.origin} too; `ray up` takes both for one; rename it"
            for path in list_outdated(chosen, kind=kind, values=values):
                yield f"{shorten(path)}: does not match {chosen.origin}; run `{chosen.command}`"
            made = set(render_set(chosen, kind=kind, values=values))
            scanned |= made
            for path in [] if chosen.shipped else sorted(set(_list_files(chosen.folder)) - made):
                if MADE in path.read_text(encoding="utf-8", errors="replace"):
                    yield f"{shorten(path)}: left over, {chosen.origin} is of kind {kind} now; remove it"
        except (ConfigError, OSError) as error:
            yield str(error)
    yield from find_leaks(scanned)


def _list_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in SCANNED and path.is_file())


def find_leaks(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a message for each secret in the files `paths`, and for each file that cannot be read."""
    for path in sorted(paths):
        if path.exists() and not path.is_file():
            yield f"{shorten(path)}: is no file; remove it"
            continue
        try:
            yield from (f"{shorten(path)}: {fault}" for fault in find_secrets(path.read_text(encoding="utf-8")))
        except FileNotFoundError:  # list_outdated has said so
            continue
        except (OSError, UnicodeDecodeError) as error:
            yield f"{shorten(path)}: cannot be read as UTF-8 text: {error}; save it as UTF-8, or remove it"


def list_places(kind: str, values: ClusterValues) -> list[str]:
    """Return what only one cluster can have: the names by which `ray up` finds the machines of a cluster again."""
    if isinstance(values, HostsValues):
        return [f"host {host}" for host in (values.head_host, *values.cpu_hosts, *values.gpu_hosts)]
    if kind in ("aws", "gcp"):
        return [f"name={values.name} in {getattr(values, 'region')}"]  # noqa: B009
    return []


def find_costly_values(values: ClusterValues) -> Iterator[str]:
    """Yield a message for each value with which nodes never stop, or may take longer to boot than the trainer waits."""
    for name in ("cpu", "gpu"):
        group = getattr(values, name, None)
        if group is not None and group.min_nodes:
            yield f"{name}.min_nodes={group.min_nodes}: these nodes never stop, and cost money while idle; set 0"
    if values.boot_timeout_s >= START_TIMEOUT_S:
        limit = f"the trainer waits only start_timeout_s={START_TIMEOUT_S} by default"
        yield f"boot_timeout_s={values.boot_timeout_s}: {limit}; set less"


@command()
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the greatest price of each cluster, then all faults and their number. Return the exit status: 0, 1 if there
    are faults, or 2 if there is no such set."""
    parser = argparse.ArgumentParser(prog="python -m cluster.check", description=__doc__)
    parser.add_argument("--ready", action="store_true", help="refuse values that are still to fill in")
    parser.add_argument("sets", nargs="*", metavar="KIND|SET|FILE", help="what to check (default: all)")
    options = parser.parse_args(arguments)
    if options.ready and not options.sets and not list_sets(SETS):
        raise ConfigError("--ready: name the kind or the set that is to be ready; clusters/ has no sets")
    sets = list_sets(SETS) if options.ready and not options.sets else choose_sets(options.sets, folder=SETS)
    for chosen in sets:
        for line in _describe_costs(chosen):
            print(f"{chosen.origin}: {line}")
    faults = list(find_faults(sets, ready=options.ready))
    if not options.sets:
        faults += [fault for fault in find_leaks(_list_files(CLUSTER)) if fault not in faults]
    for fault in faults:
        print(fault)
    print(f"faults: {len(faults)}")
    return 1 if faults else 0


def _describe_costs(chosen: ValuesSet) -> list[str]:
    try:
        return list(describe_costs(read_set(chosen)[1]))
    except (ConfigError, OSError):  # find_faults says it
        return []


if __name__ == "__main__":
    exit_with(main())
