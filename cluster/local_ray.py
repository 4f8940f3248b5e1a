"""Runs the `ray` command for a node of the local cluster, whose servers all listen on 127.0.0.1 only.

Ray 2.60 lets servers listen on every interface unless the node's address is 127.0.0.1, and it replaces this address by
the machine's (ray/_private/services.py, resolve_ip_for_localhost). With the environment variable
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which all processes of the local cluster have, it does not; but then `ray start`
starts no second node (ray/scripts/scripts.py). So for this command alone, clusters are allowed again.
"""

from __future__ import annotations

from ray._private import ray_constants, services
from ray.scripts.scripts import main

if __name__ == "__main__":
    ray_constants.ENABLE_RAY_CLUSTER = True
    services.resolve_ip_for_localhost = lambda host: host
    main()
