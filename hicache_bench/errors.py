"""The error tree; every error carries the exit code the command line ends with.

    BenchError
    ├── UsageError          2  bad option, workload file, trace or profile
    ├── MeasureError        3  could not measure (server gone, every request failed, disk full)
    │   ├── ServerError     3  the server answered an administrative call with an error
    │   └── StoreError      3  a run directory could not be written or read
    └── Inconclusive        4  evidence is missing, so no verdict

Messages say what was wrong, where, and what would have been allowed.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_MEASURE = 3
EXIT_INCONCLUSIVE = 4


class BenchError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = EXIT_MEASURE


class UsageError(BenchError):
    """The request itself is wrong: option, file, key or value."""

    exit_code = EXIT_USAGE


class MeasureError(BenchError):
    """The measurement could not be made."""

    exit_code = EXIT_MEASURE


class ServerError(MeasureError):
    """The server refused or failed an administrative call.

    `status` is the HTTP status, or None when no answer came.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StoreError(MeasureError):
    """A run directory could not be written or read."""


class Inconclusive(BenchError):
    """There is not enough evidence for a verdict."""

    exit_code = EXIT_INCONCLUSIVE
