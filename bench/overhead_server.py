"""The real server in a process that tells what its server thread has used: one line of JSON for each line asked."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from server.events import EventRing
from server.runtime import Runtime

SERVER_THREADS = ("homebase-server", "text")
"""By the beginnings of their names: the loop that answers clients, and the threads that make prompts of messages."""


def main() -> None:
    """Serve by the configuration named, until there is nothing more to read."""
    config = Path(sys.argv[1])
    runtime = Runtime(config, config.read_bytes(), {}, EventRing())
    runtime.prepare()
    runtime.start()
    for _ in sys.stdin:
        print(json.dumps({"server_s": read_cpu_s(), "state": runtime.snapshot.model.state}), flush=True)
    runtime.stop()


def read_cpu_s() -> float:
    """Processor seconds of the server's threads."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(SERVER_THREADS)]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads if thread.ident)


if __name__ == "__main__":
    main()
