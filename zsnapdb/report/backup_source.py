"""Lines about the source of a backup, by the kind of the source."""

from __future__ import annotations

from zsnapdb.repository.manifest import SourcePart
from zsnapdb.repository.manifest_source import BoundPart, ChannelPart, LockPart, MachineSourcePart, ServerSourcePart


def _machine_lines(source: MachineSourcePart) -> list[str]:
    freeze, server = source.freeze, source.server
    lines = [f"machine   {source.domain} ({source.uuid})", f"grade     {source.grade}: {source.reason}"]
    if freeze is not None:
        listed = ", ".join(freeze.mount_points) or "not listed"
        lines.append(f"frozen    {freeze.count} file systems, {freeze.held_ms:.1f} ms; mounted: {listed}")
    if server is not None:
        lines.append(f"server    {server.flavour} {server.version}, lock {server.lock}, held {server.held_ms:.1f} ms")
        after = _bound(server.after) if server.after is not None else "an unknown position"
        lines.append(f"position  between {_bound(server.before)} and {after}")
    return lines


def _bound(bound: BoundPart) -> str:
    at = f"{bound.binlog_file}:{bound.binlog_offset}" if bound.binlog_file else "no binlog"
    return f"{at} {bound.gtids}" if bound.gtids else at


def result_lines(source: SourcePart) -> list[str]:
    """Return the lines about the source in the result of a backup."""
    if isinstance(source, MachineSourcePart):
        return [f"  {line}" for line in _machine_lines(source)]
    if not isinstance(source, ServerSourcePart):
        return [f"  source    {source.kind}"]
    return [
        f"  position  {source.position.position(source.server.flavour).describe()}",
        f"  lock      {_lock(source.lock)}",
    ]


def detail_lines(source: SourcePart) -> list[str]:
    """Return the lines about the source in `zsnapdb show`."""
    if isinstance(source, MachineSourcePart):
        return _machine_lines(source)
    if not isinstance(source, ServerSourcePart):
        return [f"source    {source.kind}"]
    server, position, lock = source.server, source.position, source.lock
    return [
        f"server    {server.flavour} {server.version}",
        f"position  {position.position(server.flavour).describe()} ({position.source})",
        f"lock      {_lock(lock)}: {lock.reason}",
        *(f"source    {_channel(channel)}" for channel in source.channels),
        *(f"keys      in {path} of the server" for path in server.key_files),
        *(f"lacks     {sentence}" for sentence in source.rows_not_restored),
        *(f"unlogged  {sentence}" for sentence in server.unlogged),
    ]


def _lock(lock: LockPart) -> str:
    """Return how long the lock was held, and the statements that waited for it.

    A lock that lets writes continue is no pause.
    """
    if lock.waited is None:
        return f"{lock.strategy}, held {lock.held_ms:.1f} ms"
    return f"{lock.strategy}, held {lock.held_ms:.1f} ms; {lock.waited} waited"


def position_column(source: SourcePart) -> str:
    """Return the position as a table cell: binlog and offset, or a dash if there is none."""
    if not isinstance(source, ServerSourcePart) or not source.position.binlog_file:
        return "-"
    return f"{source.position.binlog_file}:{source.position.binlog_offset}"


def _channel(channel: ChannelPart) -> str:
    where = f"{channel.binlog_file}:{channel.binlog_offset}" if channel.binlog_file else "(not started)"
    exact = "exactly" if channel.exact else "about"
    return f"{channel.name or 'default'}: {exact} {where} of {channel.host}:{channel.port}" + (
        f" {channel.gtids}" if channel.gtids else ""
    )


def kind_of(is_full: bool) -> str:
    """Return the word for the kind of a backup."""
    return "full" if is_full else "incremental"
