"""Ask the dashboard of a Ray cluster over HTTP for the cluster's resources, without joining the cluster.

In this module RAY_ADDRESS is the dashboard's URL, the same as for `ray job submit`.
"""

from __future__ import annotations

import os
from pathlib import Path

MOST_NODES = 10_000
"""Maximum number of nodes that the dashboard lists."""
TIMEOUT_S = 20


def has_token() -> bool:
    """Whether an authentication token for Ray is configured."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or file.is_file()


def send_token() -> None:
    """Make Ray's client send the configured token with its requests, which the client does not do by itself."""
    if "RAY_AUTH_MODE" not in os.environ and has_token():
        os.environ["RAY_AUTH_MODE"] = "token"


def list_resources(address: str) -> dict[str, float]:
    """Return the logical resources of the cluster whose dashboard is at `address`. The keys are names of resources, and
    the values are sums over all live nodes.

    Raises ConnectionError with the reason if the dashboard does not list the nodes.
    """
    send_token()
    from ray.exceptions import AuthenticationError
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    resources: dict[str, float] = {}
    try:
        for node in list_nodes(address, filters=[("state", "=", "ALIVE")], limit=MOST_NODES, timeout=TIMEOUT_S):
            for name, amount in node.resources_total.items():
                resources[name] = resources.get(name, 0.0) + amount
    except AuthenticationError as error:
        raise ConnectionError("the cluster refuses the token, or got none") from error
    except (RayStateApiException, RuntimeError, OSError, ValueError, TypeError, KeyError) as error:  # a foreign answer
        raise ConnectionError(" ".join(str(error).split())) from error
    return resources
