"""The check that this host could start a server on a copy of a server's files, for plans and objectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.jobs.host import installed_plugins
from zsnapdb.mysql.process import server_program
from zsnapdb.mysql.process.time_zone import host_zones
from zsnapdb.planning.server_copy.source_facts import option_name
from zsnapdb.planning.server_copy.version_compatibility import HINT_FOR_FILES, objections_to_files
from zsnapdb.planning.server_plugins import ServerPlugins
from zsnapdb.planning.time_zone import ServerZone, zone_notes, zone_objection

_HINT_FOR_ZONE = (
    "install the time zones of the system (Debian: tzdata and tzdata-legacy), or add a default_time_zone to"
    " server.options of the instance"
)


class CopiedServer(Protocol):
    """A server as described in a manifest or in the origin of a copy."""

    @property
    def flavour(self) -> Flavour: ...
    @property
    def version(self) -> str: ...
    @property
    def absolute_tablespaces(self) -> tuple[str, ...]: ...
    @property
    def plugins(self) -> ServerPlugins | None: ...
    @property
    def zone(self) -> ServerZone | None: ...


@dataclass(frozen=True)
class CopyObjection:
    """The reason why this host cannot start a server on a copy, and a hint."""

    text: str
    hint: str


def objections(settings: ServerSettings, copied: CopiedServer) -> Iterator[CopyObjection]:
    """Yield why this host cannot start a server on a copy of that server's files.

    Without a server program, plugins are not checked: such a host only watches other servers.
    """
    for text in objections_to_files(copied.absolute_tablespaces):
        yield CopyObjection(text, HINT_FOR_FILES)
    zone = _judged_zone(settings, copied)
    unknown = None if zone is None else zone_objection(zone, host_zones(zone))
    if unknown is not None:
        yield CopyObjection(unknown, _HINT_FOR_ZONE)
    try:
        binary = server_program.choose_program(settings, copied.flavour, copied.version)
    except PreflightError:
        return
    for lacked in installed_plugins.lacking(binary, settings, copied.plugins):
        if lacked.is_needed:
            yield CopyObjection(lacked.text, lacked.hint)


def zone_differences(settings: ServerSettings, copied: CopiedServer) -> tuple[str, ...]:
    """Return the differences between local times of a copy on this host and its source."""
    zone = _judged_zone(settings, copied)
    return () if zone is None else zone_notes(zone, host_zones(zone))


def _judged_zone(settings: ServerSettings, copied: CopiedServer) -> ServerZone | None:
    """Return the zone of the source; None if it is not recorded, or if the site set one for copies."""
    is_chosen = any(option_name(line) == "default_time_zone" for line in settings.options)
    return None if is_chosen else copied.zone


def refuse(settings: ServerSettings, copied: CopiedServer) -> None:
    """Raise PreflightError if this host cannot start a server on a copy of that server's files."""
    for objection in objections(settings, copied):
        raise PreflightError(objection.text, hint=objection.hint)
