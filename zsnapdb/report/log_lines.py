"""One line of the log, as text for people, as JSON for programs, or as a message for systemd's journal. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from zsnapdb.base.untrusted_text import printed

Value = str | int | float | None


class LogLevel(StrEnum):
    """The importance of a line. The most important level comes first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"

    @property
    def priority(self) -> int:
        """The level as a syslog number (syslog(3)). A smaller number means a more important level."""
        return {"error": 3, "warning": 4, "info": 6, "debug": 7}[self.value]


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"
    JOURNAL = "journal"


@dataclass(frozen=True)
class LogRecord:
    """A line that the run `run_id` logged at a time (UTC), about an instance, a job, a backup and an exit code."""

    at: datetime
    level: LogLevel
    text: str
    run_id: str
    fields: Mapping[str, Value] = field(default_factory=dict)


_PREFIXES = {LogLevel.WARNING: "warning: ", LogLevel.DEBUG: "debug: "}


def text_line(record: LogRecord) -> str:
    """Return the line as text for people, without a line feed."""
    return printed(f"zsnapdb: {_PREFIXES.get(record.level, '')}{record.text}")


def json_line(record: LogRecord) -> str:
    """Return the line as JSON with `time`, `level`, `run_id`, `message`, and the known fields of the subject."""
    known = {name: value for name, value in record.fields.items() if value is not None}
    own = {
        "time": record.at.isoformat(timespec="milliseconds"),
        "level": record.level.value,
        "run_id": record.run_id,
        "message": record.text,
    }
    return json.dumps({**own, **known})


def journal_message(record: LogRecord) -> bytes:
    """Return the datagram for systemd's journal. Source: "Native Journal Protocol" of systemd."""
    fields: dict[str, Value] = {
        "MESSAGE": record.text,
        "PRIORITY": record.level.priority,
        "SYSLOG_IDENTIFIER": "zsnapdb",
        "ZSNAPDB_RUN_ID": record.run_id,
        **{f"ZSNAPDB_{name.upper()}": value for name, value in record.fields.items() if value is not None},
    }
    return b"".join(_journal_field(name, printed(str(value)).encode()) for name, value in fields.items())


def _journal_field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    # A value with several lines is preceded by its length (64 bits, little-endian).
    return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
