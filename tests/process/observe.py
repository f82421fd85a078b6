"""What can be seen of a server from outside while it runs."""

import socket
import time
import urllib.request

# Until a server has done what it is waited for: flushes and compactions of a few megabytes, on a busy machine.
WAIT_S = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def metrics(address):
    """The samples of a scrape: name with labels -> value."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def await_metrics(address, is_so):
    """The first scrape of which `is_so` is true."""
    deadline = time.monotonic() + WAIT_S
    while not is_so(figures := metrics(address)):
        assert time.monotonic() < deadline, figures
        time.sleep(0.1)
    return figures
