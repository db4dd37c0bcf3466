"""Determines the time zone of a server's process from the server, the kernel and this host's zone files."""

from __future__ import annotations

import functools
import io
import os
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_time_zone import INSTANTS, HostZones, ServerZone, is_file_name, is_rule, named_zone

_ZONES = Path("/usr/share/zoneinfo")
_LOCAL = Path("/etc/localtime")
_NAME = Path("/etc/timezone")
_MOST_BYTES = 1 << 20
"""Maximum size of a zone file in bytes. Zone files usually have some kilobytes (tzfile(5))."""


def offsets_of(session: Session) -> tuple[int, ...]:
    """Return the offsets in seconds of the server's time zone SYSTEM. The session's own time zone has no effect."""
    asked = ", ".join(
        f"TIMESTAMPDIFF(SECOND, '{instant}', CONVERT_TZ('{instant}', '+00:00', 'SYSTEM'))" for instant in INSTANTS
    )
    ((*offsets,),) = session.query(f"SELECT {asked}")
    return tuple(int(offset) for offset in offsets)


def server_zone(session: Session, pid: int | None, *, is_default: bool) -> ServerZone:
    """Return the time zone of the server's process. If `pid` is None, the process is unknown.

    The name of the zone comes from the process's environment or from this host. It is used only if the zone has the
    same offsets on this host as on the server.
    """
    offsets = offsets_of(session)
    name = next((name for name in _candidates(pid) if offsets_in(name) == offsets), None)
    return ServerZone(name=name, offsets=offsets, is_default=is_default)


def host_zones(zone: ServerZone) -> HostZones:
    """Return this host's offsets for a zone, and for the local zone of this host."""
    return HostZones(None if zone.name is None else offsets_in(zone.name), _offsets(_bytes(_LOCAL) or _file_of("UTC0")))


def offsets_in(name: str) -> tuple[int, ...] | None:
    """Return the offsets of a zone in this host's zone data; None if this host does not know the zone."""
    data = _bytes(_ZONES / name) if is_file_name(name) else b""
    if not data and is_rule(name):
        data = _file_of(name)
    return _offsets(data)


def _candidates(pid: int | None) -> Iterator[str]:
    names = [named_zone(os.fsdecode(_environment(pid).get(b"TZ", b"")))]
    try:
        names.append(named_zone(os.path.normpath(_LOCAL.parent / os.readlink(_LOCAL))))
    except OSError:
        data, (said, *_) = _bytes(_LOCAL), (*_bytes(_NAME).split(), b"")
        named = named_zone(os.fsdecode(said))
        if named is not None and is_file_name(named) and _bytes(_ZONES / named) == data:
            names.append(named)
        # The last line is the rule for times after the last change that the file lists (tzfile(5)).
        names.append(named_zone(os.fsdecode(data.rstrip(b"\n").rpartition(b"\n")[2])))
    yield from (name for name in (*names, "UTC0") if name is not None)


def _environment(pid: int | None) -> dict[bytes, bytes]:
    """Return the environment with which a process started.

    The result is empty if the environment is unknown, or if the process belongs to another account.
    """
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if pid is not None else []
    except OSError:
        return {}
    return {name: value for name, _, value in (word.partition(b"=") for word in words)}


def _bytes(path: Path) -> bytes:
    """Return the content of a local file; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


@functools.cache
def _offsets(data: bytes) -> tuple[int, ...] | None:
    try:
        zone = ZoneInfo.from_file(io.BytesIO(data))
    except (ValueError, EOFError, struct.error, IndexError):
        return None
    moments = (datetime.fromisoformat(instant).replace(tzinfo=UTC).astimezone(zone) for instant in INSTANTS)
    return tuple(round(moment.utcoffset().total_seconds()) for moment in moments)  # type: ignore[union-attr]


def _file_of(rule: str) -> bytes:
    """Return the content of a zone file that contains only this rule (RFC 8536)."""
    head = b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    block = struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    return (head + block) * 2 + f"\n{rule}\n".encode()
