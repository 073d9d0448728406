"""What the operating system says of this process and this machine: memory, and who holds a port. Linux and macOS."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Of the container that this runs in, by version 2 of Linux's control groups."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_resident_bytes() -> int:
    """Memory of this process that is in RAM now.

    On macOS the kernel tells it only through a private call, so there it is the highest it ever was.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb", buffering=0) as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_machine_bytes() -> int:
    """RAM of the whole machine; 0 when it will not say."""
    with contextlib.suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    return 0


def read_memory_limit_bytes() -> int:
    """RAM that this process can have: the machine's, or what its container is held to; 0 when neither is known."""
    machine = read_machine_bytes()
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        held_to = int(_CONTAINER_LIMIT.read_text())
        return min(machine, held_to) if machine else held_to
    return machine


def find_listener(port: int) -> str | None:
    """Who listens at a TCP port, as `pid 812, python3`; None when that cannot be read (not Linux, another user's)."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(descriptor) in sockets for descriptor in (process / "fd").iterdir()):
                return f"pid {process.name}, {(process / 'comm').read_text().strip()}"
    return None


def _listening_inodes(port: int) -> set[str]:
    """Inodes of the sockets in state LISTEN (0A) at a port, from the kernel's tables."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    inodes.add(columns[9])
    return inodes
