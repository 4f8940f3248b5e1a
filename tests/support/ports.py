"""The addresses on which the processes of a command listen while it runs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

import psutil

from processes import command_of


def listeners_of(process: psutil.Process) -> set[tuple[str, int, str]]:
    """(address, port, command) of every TCP socket on which a process or one below it listens now."""
    found = set()
    with suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                found |= {
                    (socket.laddr.ip, socket.laddr.port, command_of(each).strip()[-80:])
                    for socket in each.net_connections(kind="tcp")
                    if socket.status == psutil.CONN_LISTEN
                }
    return found


def watch_listeners(command: Sequence[str], *, timeout_s: float = 300, **options: object) -> set[tuple[str, int, str]]:
    """Run a command to its end, and return everything that its processes listened on; it must succeed."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,  # type: ignore[call-overload]
    ) as child:
        process, found, deadline = psutil.Process(child.pid), set(), time.monotonic() + timeout_s
        while child.poll() is None and time.monotonic() < deadline:
            found |= listeners_of(process)
            time.sleep(0.02)
        child.kill()
        output = child.communicate()[0]
    assert child.returncode == 0, output
    return found


def beyond_loopback(found: set[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Those that another machine may reach. ::ffff:127.0.0.1 is 127.0.0.1, for a socket of both kinds of addresses."""
    return sorted(each for each in found if not _is_loopback(each[0].partition("%")[0]))


def _is_loopback(text: str) -> bool:
    address = ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
