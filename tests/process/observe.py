"""What can be seen of a server from outside while it runs."""

import os
import pathlib
import re
import time
import urllib.request

import pytest

# Until a server has done what it is waited for: flushes and compactions of a few megabytes, on a busy machine.
WAIT_S = 60


# Metrics on a free port, which the log tells of.
SERVE_METRICS = {"TEPUI_METRICS_LISTEN": "127.0.0.1:0"}


def skip(why):
    """Skips a test that this system does not allow; fails it where TEPUI_TESTS_SKIP_NOTHING=1 says that it allows all."""
    if os.environ.get("TEPUI_TESTS_SKIP_NOTHING"):
        pytest.fail(f"{why}: not tested, and TEPUI_TESTS_SKIP_NOTHING is set")
    pytest.skip(why)


def metrics_address(server):
    """HOST:PORT of the metrics of a server that runs with SERVE_METRICS: it logs that before it is ready."""
    log = pathlib.Path(server.log_path).read_text()
    return re.findall(r"serving metrics address=(\S+)", log)[-1]


def metrics_page(server):
    """A scrape as it is."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{metrics_address(server)}/metrics", timeout=30) as answer:
        return answer.read().decode()


def metrics(server):
    """The samples of a scrape: name with labels -> value."""
    lines = metrics_page(server).splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def await_metrics(server, is_so):
    """The first scrape of which `is_so` is true."""
    deadline = time.monotonic() + WAIT_S
    while not is_so(figures := metrics(server)):
        assert time.monotonic() < deadline, figures
        time.sleep(0.1)
    return figures
