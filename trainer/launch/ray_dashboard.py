"""What a Ray cluster's dashboard tells over HTTP, the form of RAY_ADDRESS that takes jobs. Joins and starts nothing."""

from __future__ import annotations

import os
from pathlib import Path

MOST_NODES = 10_000
"""More than this the dashboard does not list."""
TIMEOUT_S = 20


def has_token() -> bool:
    """Whether there is a token to send."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or file.is_file()


def send_token() -> None:
    """Have Ray's client send the token that there is: it would not by itself."""
    if "RAY_AUTH_MODE" not in os.environ and has_token():
        os.environ["RAY_AUTH_MODE"] = "token"


def list_resources(address: str) -> dict[str, float]:
    """Logical resources of the nodes that live, summed. ConnectionError with the reason where they cannot be had."""
    send_token()
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    resources: dict[str, float] = {}
    try:
        for node in list_nodes(address, filters=[("state", "=", "ALIVE")], limit=MOST_NODES, timeout=TIMEOUT_S):
            for name, amount in node.resources_total.items():
                resources[name] = resources.get(name, 0.0) + amount
    except (RayStateApiException, RuntimeError, ValueError, OSError) as error:
        raise ConnectionError(" ".join(str(error).split())) from error
    return resources
