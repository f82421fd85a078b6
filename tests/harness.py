#!/usr/bin/env python3
"""Runs the real server for a test: starts it, waits until it is ready, stops it, checks how it ended.

As a module it gives `Server`; as a program it wraps a command:

    python3 tests/harness.py [--binary PATH] [--data DIR] [--keep] -- COMMAND ARGS...

which starts the server on a free loopback port with a fresh data directory, sets BIGTABLE_EMULATOR_HOST,
runs the command, stops the server by SIGTERM and exits with the command's code, or with 1 when the
server did not leave with code 0 in STOP_SECONDS_MAX, or a thread of it panicked. Needs nothing but Python's
standard library.

What it relies on: `tepui serve --data DIR --listen 127.0.0.1:0` prints one line
`export BIGTABLE_EMULATOR_HOST=HOST:PORT` on its standard output once it answers requests.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

REPO = pathlib.Path(__file__).resolve().parent.parent

# Replaying a log of many gigabytes takes long on a slow disk; a server that hangs must not hang CI.
START_SECONDS_MAX = 120.0
# The server promises to drain, flush and leave within 10 seconds of SIGTERM.
STOP_SECONDS_MAX = 10.0
READY = re.compile(r"^export BIGTABLE_EMULATOR_HOST=(\S+:\d+)\s*$")
LOG_TAIL_LINES = 40
# As the standard library prints a panic. That of a task ends nothing else: its caller may try again, and the server goes on.
PANIC = "panicked at"

# Python's gRPC and Node's would look for the server through a proxy that the environment names, and know no NO_PROXY.
os.environ["no_grpc_proxy"] = "127.0.0.1,localhost"


class ServerError(Exception):
    """The server did not start, panicked, died, or did not stop as it should."""


def default_binary() -> str:
    """$HARNESS_BINARY, or the newest binary that a build left in the target directory."""
    if os.environ.get("HARNESS_BINARY"):
        return os.environ["HARNESS_BINARY"]
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target"))
    built = [p for p in (target / d / "tepui" for d in ("release", "test-release", "debug")) if p.exists()]
    if not built:
        raise ServerError(f"no tepui binary under {target}: run `make build`, or set HARNESS_BINARY")
    return str(max(built, key=lambda p: p.stat().st_mtime))


class Server:
    """One server process over one data directory. `start` may be called again after `kill` or `stop`."""

    def __init__(
        self, data: str, binary: str | None = None, env: dict[str, str] | None = None,
        args: tuple[str, ...] = (), prefix: tuple[str, ...] = (),
    ):
        self.binary = binary or default_binary()
        self.data = str(data)
        self.env = env or {}
        self.args = args
        # Put before the command; it must exec the server, so that signals reach it.
        self.prefix = prefix
        self.host = ""
        self.process: subprocess.Popen | None = None
        self.watcher: subprocess.Popen | None = None
        self.log_path = f"{self.data}.log"
        # Where the log of this process begins; what is before is of earlier ones.
        self.log_begin = 0

    def start(self) -> str:
        """Starts the server and returns HOST:PORT once it is ready."""
        assert self.process is None, "the server runs already"
        command = [*self.prefix, self.binary, "serve", "--data", self.data, "--listen", "127.0.0.1:0", *self.args]
        # The configuration that somebody has in the environment is not part of a test.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TEPUI_")}
        with open(self.log_path, "ab") as log:
            self.log_begin = log.tell()
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                env={**clean, **self.env}, text=True, start_new_session=True,
            )
        # Whatever ends this program, the server goes with it: the watcher's input ends then.
        self.watcher = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$0"', str(self.process.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._pump, args=(self.process.stdout, lines), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                raise ServerError(f"not ready after {START_SECONDS_MAX} s\n{self.log_tail()}") from None
            if line is None:
                code = self._reap()
                raise ServerError(f"ended with code {code} before it was ready\n{self.log_tail()}")
            if match := READY.match(line):
                self.host = match.group(1)
                return self.host

    @staticmethod
    def _pump(stream, lines: queue.Queue) -> None:
        # The pipe is read to its end, so that the server never blocks on a full one.
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    def _reap(self, timeout: float | None = None) -> int:
        """Waits for the process; its exit code. However it ended, none of its threads may have panicked."""
        code = self.process.wait(timeout=timeout)
        # The number may soon be another process's.
        self.watcher.kill()
        self.watcher.communicate()
        self.process = self.watcher = None
        lines = self._log_lines(self.log_begin)
        if (at := next((n for n, line in enumerate(lines) if PANIC in line), None)) is not None:
            raise ServerError(f"it panicked\n{_quoted(lines[at : at + LOG_TAIL_LINES])}")
        return code

    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL: as a crash of the process would be."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self._reap()

    def stop(self) -> None:
        """SIGTERM; the server must leave with code 0 in STOP_SECONDS_MAX."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self._reap(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"still running {STOP_SECONDS_MAX} s after SIGTERM\n{self.log_tail()}") from None
        if code != 0:
            raise ServerError(f"left with code {code} after SIGTERM\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        try:
            return _quoted(self._log_lines()[-LOG_TAIL_LINES:])
        except OSError as error:
            return f"(no log: {error})"

    def _log_lines(self, begin: int = 0) -> list[str]:
        with open(self.log_path, "rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace").splitlines()


def _quoted(lines: list[str]) -> str:
    return "".join(f"  server: {line}\n" for line in lines)


def temp_dir(prefix: str) -> str:
    """A fresh directory on a real disk: /var/tmp is one where /tmp may be memory. $HARNESS_DIR overrides."""
    base = os.environ.get("HARNESS_DIR") or ("/var/tmp" if os.path.isdir("/var/tmp") else None)
    return tempfile.mkdtemp(prefix=prefix, dir=base)


def main() -> int:
    """Wraps a command; see the module's text."""
    parser = argparse.ArgumentParser(description="Runs a command with BIGTABLE_EMULATOR_HOST set to a fresh server.")
    parser.add_argument("--binary", help="the server (default: $HARNESS_BINARY, or the newest build)")
    parser.add_argument("--data", help="its data directory (default: a fresh temporary one, removed at the end)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    # A wrapper that is ended must take its server with it: turn the signals into an exception.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    scratch = temp_dir("tepui-test-")
    failed = True
    server = None
    try:
        server = Server(options.data or os.path.join(scratch, "data"), options.binary)
        host = server.start()
        code = subprocess.run(options.command, env={**os.environ, "BIGTABLE_EMULATOR_HOST": host}, check=False).returncode
        if not server.alive():
            print(f"harness: the server died during the test\n{server.log_tail()}", file=sys.stderr)
            return 1
        server.stop()
        failed = code != 0
        return code if code >= 0 else 128 - code
    except ServerError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 1
    finally:
        if server is not None:
            if failed:
                print(f"harness: the server's last lines\n{server.log_tail()}", file=sys.stderr)
            try:
                server.kill()
            except ServerError as error:
                print(f"harness: {error}", file=sys.stderr)
        if options.keep:
            print(f"harness: kept {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
