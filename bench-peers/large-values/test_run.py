"""That run.sh refuses what it cannot measure before anything else: python3 -m unittest."""

import os
import pathlib
import subprocess
import tempfile
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run.sh"


class Run(unittest.TestCase):
    def test_variables_that_make_no_sense_are_refused_by_name(self):
        for name, values in (
            ("DATA_BYTES", ("4GB", "0", "-1", "4e9", "010", "1" * 19, "9999")),
            ("MEMORY_BYTES", ("1GB", "0", "599999999")),
            ("VALUE_BYTES", ("0", "10 000")),
            ("OPERATIONS", ("x", "9", "a[0]")),
            ("STORES", ("tepui rocksb", "rocks", "tokyo tepui tokyo", "tepui*", " ")),
        ):
            for value in values:
                with self.subTest(f"{name}={value}"), tempfile.TemporaryDirectory() as place:
                    into = pathlib.Path(place) / "into"
                    env = {**os.environ, "TASK": "check", name: value}
                    ended = subprocess.run([RUN, into], env=env, capture_output=True, text=True, check=False)
                    self.assertEqual(ended.returncode, 2, ended.stderr)
                    self.assertTrue(ended.stderr.startswith(name), ended.stderr)


if __name__ == "__main__":
    unittest.main()
