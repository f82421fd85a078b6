"""That run.sh runs the suites that CLIENTS names, and no others: python3 -m unittest."""

import os
import pathlib
import subprocess
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run.sh"


class Run(unittest.TestCase):
    def run_with(self, clients: str) -> subprocess.CompletedProcess:
        """The suite `python` passes at once; there is no server, which the others would need."""
        env = {**os.environ, "CLIENTS": clients, "PYTHON": "true", "BIGTABLE_EMULATOR_HOST": "127.0.0.1:1"}
        return subprocess.run([RUN], env=env, capture_output=True, text=True, check=False)

    def test_a_suite_that_is_not_there_is_refused_before_another_one_runs(self):
        for clients in ("pythons", "pythons python", "python pythons", "* python"):
            ended = self.run_with(clients)
            self.assertEqual((ended.returncode, ended.stdout), (2, ""), clients)
            self.assertIn("go-integration", ended.stderr, clients)

    def test_only_the_suites_that_are_named_run(self):
        ended = self.run_with(" python  cbt ")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertTrue(ended.stdout.endswith("clients: passed: python cbt\n"), ended.stdout)


if __name__ == "__main__":
    unittest.main()
