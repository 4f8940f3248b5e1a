"""Keeps the ports of Beam's local runner on this machine.

Beam 2.77 opens four gRPC servers for a runner (fn_api_runner/worker_handlers.py, GrpcServer) and one for each worker
process (local_job_service.py, SubprocessSdkWorker) on `[::]:0`: every interface, without authentication. Whoever
reaches them can read the texts and make the workers run pickled code. The workers are on this machine, so 127.0.0.1
will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.portability import local_job_service
from apache_beam.runners.portability.fn_api_runner import worker_handlers

_EVERYWHERE, _HERE = "[::]:", "127.0.0.1:"


class _LoopbackGrpc:
    """The module grpc, whose servers listen on 127.0.0.1 where they are asked to listen on every interface."""

    def __init__(self, grpc: Any) -> None:
        self._grpc = grpc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grpc, name)

    def server(self, *arguments: Any, **options: Any) -> Any:
        """Return a gRPC server, as grpc.server does."""
        server = self._grpc.server(*arguments, **options)
        add_port = server.add_insecure_port
        server.add_insecure_port = lambda address: add_port(address.replace(_EVERYWHERE, _HERE))
        return server


@contextmanager
def listening_here_only() -> Iterator[None]:
    """Let the servers that Beam's local runner starts in the block listen on 127.0.0.1 only."""
    modules = (worker_handlers, local_job_service)
    before = [module.grpc for module in modules]
    for module in modules:
        module.grpc = _LoopbackGrpc(module.grpc)
    try:
        yield
    finally:
        for module, grpc in zip(modules, before, strict=True):
            module.grpc = grpc
