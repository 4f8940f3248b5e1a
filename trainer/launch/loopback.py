"""Keeps what workers listen on to this machine, if all of them run on it.

torch's TCPStore listens on every interface unless it is given a socket, and everybody who reaches it may read and write
the keys by which workers find each other. gloo and NCCL listen on the interface of the machine's name.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

ADDRESS = "127.0.0.1"


def open_store(*, port: int = 0, **options: Any) -> TCPStore:
    """Return the server of a TCPStore that listens on 127.0.0.1 only. `port` 0 stands for any free port. `options` are
    further arguments of TCPStore."""
    with socket.create_server((ADDRESS, port)) as listener:
        port = listener.getsockname()[1]
        # The store takes over the descriptor and closes it.
        return TCPStore(ADDRESS, port, is_master=True, master_listen_fd=listener.detach(), **options)


def stay_on_loopback() -> None:
    """Let gloo and NCCL open the ports of this process on the loopback interface, unless the user named another one.

    The variables are documented in docs/source/distributed.md of PyTorch and in NCCL's user guide, which says that NCCL
    uses `lo` only if it is named.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)


def open_stores_here() -> None:
    """Do as `stay_on_loopback` does, and let torch's rendezvous (init_method env://) open its stores in this process by
    `open_store`. (torch.distributed.rendezvous is a module, which a function of the same name hides.)"""
    stay_on_loopback()
    sys.modules["torch.distributed.rendezvous"].TCPStore = _open_any  # type: ignore[attr-defined]


def _open_any(*, host_name: str, port: int, is_master: bool, **options: Any) -> TCPStore:
    """Return a TCPStore, as torch.distributed.rendezvous opens it: the server on rank 0, and clients on all ranks."""
    if is_master:
        return open_store(port=port, **{**options, "multi_tenant": False})  # a shared server ignores the descriptor
    return TCPStore(host_name, port, is_master=False, **options)
