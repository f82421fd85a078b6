"""That the harness sees what became of a server, on a shell script that stands for one: python3 -m unittest."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness

HERE = pathlib.Path(__file__).resolve().parent
# What it is given to say is on its log before it is ready.
STAND_IN = """#!/bin/sh
trap 'exit 0' TERM
echo $$ > "$0.pid"
printf '%s\n' "$SAYS" >&2
echo export BIGTABLE_EMULATOR_HOST=127.0.0.1:1
while :; do sleep 0.01; done
"""
PANICKED = "thread 'tepui-core-0' (7) panicked at crates/server/src/runtime.rs:1:2:\na row that nobody wrote"


class Harness(unittest.TestCase):
    def setUp(self):
        self.place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.binary = self.place / "server"
        self.binary.write_text(STAND_IN)
        self.binary.chmod(0o755)

    def server(self, says: str) -> harness.Server:
        return harness.Server(str(self.place / "data"), str(self.binary), {"SAYS": says})

    def wrap(self, says: str, *command: str) -> subprocess.CompletedProcess:
        wrapper = [sys.executable, HERE / "harness.py", "--binary", self.binary, "--", *command]
        env = {**os.environ, "SAYS": says, "HARNESS_DIR": str(self.place)}
        return subprocess.run(wrapper, env=env, capture_output=True, text=True, check=False)

    def test_a_server_that_panicked_is_no_good_however_it_ends(self):
        for end in (harness.Server.stop, harness.Server.kill):
            server = self.server(PANICKED)
            server.start()
            with self.assertRaisesRegex(harness.ServerError, "panicked at crates(.|\n)*a row that nobody wrote"):
                end(server)
            self.assertFalse(server.alive())

    def test_what_an_earlier_server_logged_is_not_held_against_the_next(self):
        pathlib.Path(self.server("").log_path).write_text(f"{PANICKED}\n")
        for says in ("INFO serving", "ERROR the engine panicked"):
            server = self.server(says)
            server.start()
            server.stop()

    def test_a_command_that_passes_fails_where_the_server_panicked(self):
        self.assertEqual(self.wrap("INFO serving", "true").returncode, 0)
        for command in ("true", "false"):
            ended = self.wrap(PANICKED, command)
            self.assertEqual(ended.returncode, 1)
            self.assertIn("harness: it panicked", ended.stderr)
            self.assertNotIn("Traceback", ended.stderr)

    def test_a_server_that_died_and_panicked_is_told_of_once_it_is_gone(self):
        kill = f"read pid < {self.binary}.pid; kill -KILL $pid; until grep -q '^State:.Z' /proc/$pid/status; do :; done"
        ended = self.wrap(PANICKED, "sh", "-c", kill)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("the server died during the test", ended.stderr)
        self.assertNotIn("Traceback", ended.stderr)

    def test_commands_reach_the_server_past_a_proxy(self):
        ended = self.wrap("", "sh", "-c", 'test "$no_grpc_proxy" = 127.0.0.1,localhost')
        self.assertEqual(ended.returncode, 0, ended.stderr)


if __name__ == "__main__":
    unittest.main()
