"""Keeps a Ray of one machine on that machine.

Ray 2.60 lets all its servers listen on every interface unless the node's address is 127.0.0.1. It replaces that address
by the machine's (ray/_private/services.py, resolve_ip_for_localhost), except where it takes clusters to be impossible
(ray_constants.ENABLE_RAY_CLUSTER, the default on Windows and macOS).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening_here_only() -> Iterator[None]:
    """Let a Ray that is started in the block listen on 127.0.0.1 only. It then takes no other nodes."""
    from ray._private import ray_constants  # imported here, because Ray may not be installed

    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(name)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[name] = False, "0"  # the variable is for Ray's own processes
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[0]
        if before[1] is None:
            del os.environ[name]
        else:
            os.environ[name] = before[1]
