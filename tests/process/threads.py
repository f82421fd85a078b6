"""Threads of a test whose failures are failures of the test."""

import threading


def in_threads(*works):
    """Runs all at once; the first failure is raised when all have ended."""
    failures = []

    def run(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
