"""What a command of zsnapdb has printed into its log, as far as others may know it.

The log has the document of stdout and, one a line, the JSON documents of stderr. What is passed on is how far a step
has come and the code of an error. Texts of errors are passed on only for classes whose texts are zsnapdb's own: others
may quote a server, a store, a program or a hook of the site.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from zsnapdb.base import errors
from zsnapdb.base.patterns import printable
from zsnapdb.base.program_start import is_secret_name
from zsnapdb.planning.fleet.messages import JobProgress

_TAIL = 65536
"""How many of the last bytes of a log are looked at."""
_LONGEST = 300
_SHORTEST_SECRET = 4
_OWN_TEXTS = frozenset(
    kind.code
    for kind in (
        *(errors.UsageError, errors.PreflightError, errors.NotAllowedError, errors.ExistsError, errors.BusyError),
        *(errors.NotThere, errors.UnknownNameError, errors.LeaseError, errors.LockNotGranted, errors.HistoryError),
        *(errors.AmbiguousPointError, errors.ForeignInsideError, errors.NotOursError),
    )
)
"""Codes of errors whose texts zsnapdb alone writes: names of instances and datasets, and what to do."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _ProgressLine(_Line):
    event: Literal["progress"]
    step: str
    done: int | None = None
    total: int | None = None

    @property
    def measured_step(self) -> str:
        """The step, if it has a measure of itself: those are named by zsnapdb alone.

        Of others a line says what was told last, which can name datasets, files and hosts.
        """
        return self.step if self.done is not None else ""


class _ErrorPart(_Line):
    code: str
    message: str = ""


class _ErrorLine(_Line):
    kind: Literal["error"]
    error: _ErrorPart


class LogReader:
    """Reads the log of a running command, as it grows."""

    def __init__(self, log: Path, host: str, environment: Mapping[str, str]) -> None:
        """`environment` is that of the command: the values of its secrets are passed on to nobody."""
        self._log, self._host = log, host
        values = (value for name, value in environment.items() if is_secret_name(name))
        self._secrets = sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)

    def progress(self) -> JobProgress:
        """Return how far the command has come, by its last words."""
        for line in reversed(self._lines()):
            with contextlib.suppress(ValidationError):
                said = _ProgressLine.model_validate_json(line)
                total = max(0, said.total) if said.total is not None else None
                step = self._clean(said.measured_step, 80)
                return JobProgress(host=self._host, step=step, done=max(0, said.done or 0), total=total)
        return JobProgress(host=self._host)

    def error(self) -> tuple[str, str]:
        """Return the code of the error with which the command ended, and its text as far as others may have it."""
        for line in reversed(self._lines()):
            with contextlib.suppress(ValidationError):
                said = _ErrorLine.model_validate_json(line).error
                if said.code not in _CODES:
                    return "", ""
                return said.code, self._clean(said.message, _LONGEST) if said.code in _OWN_TEXTS else ""
        return "", ""

    def _clean(self, text: str, longest: int) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return printable(text)[:longest]

    def _lines(self) -> list[bytes]:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL))
                return log.read(_TAIL).splitlines()
        except OSError:
            return []


_CODES = frozenset(
    kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ZsnapdbError)
) | {"interrupted"}
