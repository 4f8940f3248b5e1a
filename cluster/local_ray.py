"""Runs the `ray` command for a node of the local cluster: its servers listen on 127.0.0.1 only, and its jobs' code is
its own.

Ray 2.60 lets servers listen on every interface unless the node's address is 127.0.0.1, and it replaces this address by
the machine's (ray/_private/services.py, resolve_ip_for_localhost). With the environment variable
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which all processes of the local cluster have, it does not; but then `ray start`
starts no second node (ray/scripts/scripts.py). So for this command alone, clusters are allowed again.

All nodes share a session's folder, and each node unpacks a job's code there once it runs the job, after it has removed
what is there (ray/_private/runtime_env/working_dir.py): perhaps code that a worker of another node is just importing.
So each node unpacks code into a folder of its own.
"""

from __future__ import annotations

import os

from ray._private import ray_constants, services
from ray.scripts.scripts import main

if __name__ == "__main__":
    ray_constants.ENABLE_RAY_CLUSTER = True
    ray_constants.DEFAULT_RUNTIME_ENV_DIR_NAME = f"runtime_resources-{os.getpid()}"
    services.resolve_ip_for_localhost = lambda host: host
    main()
