"""Checks whether this host can start a server on a copy: version, plugins, time zone, memory and pool."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from zsnapdb.base.domain_types import Flavour, pool_of
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.mysql.process import process_managers, programs
from zsnapdb.mysql.process.time_zone import host_zones
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, unfit, warning
from zsnapdb.planning.server_copy.plugins import InstalledPlugins, PluginObjection, objections, with_libraries
from zsnapdb.planning.server_copy.sandbox import is_shown
from zsnapdb.planning.server_copy.source_facts import option_name
from zsnapdb.planning.server_copy.version_compatibility import HINT_FOR_FILES, objections_to_files
from zsnapdb.planning.server_facts import ServerPlugins
from zsnapdb.planning.server_time_zone import ServerZone, zone_notes, zone_objection
from zsnapdb.zfs import datasets
from zsnapdb.zfs.kernel_facts import free_memory


def available_memory() -> int:
    """Return the bytes of memory that the kernel and control groups allow a new program; 0 if unknown."""
    return free_memory() or 0


def pool_for_copy(dataset: str, hint: str) -> str:
    """Return the pool with the same name as the dataset's pool, else the only pool of this host.

    Raises PreflightError with `hint` if this host has neither a pool with that name nor exactly one pool.
    """
    own, pools = pool_of(dataset), datasets.pools()
    if own not in pools and len(pools) != 1:
        raise PreflightError(
            f"this host has no pool {own}, but {len(pools)} others: {', '.join(pools) or 'none'}", hint=hint
        )
    pool = own if own in pools else pools[0]
    refuse_alternate_root(pool)
    return pool


def refuse_alternate_root(pool: str) -> None:
    """Raise PreflightError if the pool is imported with altroot.

    With altroot, the mount points of copies would be below the altroot folder, but the servers use paths without it.
    """
    root = datasets.alternate_root(pool)
    if root is not None:
        raise PreflightError(
            f"the pool {pool} is imported with altroot={root}, so a copy would not be mounted at the path that its"
            f" server uses",
            hint=f"stop the programs that use it, then `zpool export {pool}` and `zpool import {pool}`, without -R",
        )


_NEEDED = "plugins"
"""The subject of findings about plugins that a copy needs. `planning/advice` uses this subject."""
_USEFUL = "plugin tables"
"""The subject of findings about plugins that only add tables to information_schema."""
_FOLDER = re.compile(r"^plugin-dir\s+(/\S.*?)\s*$", re.MULTILINE)
_BUILT_IN = re.compile(r"Enable\s+or\s+disable\s+(\S+)\s+plugin")


def installed_plugins(binary: Path, settings: ServerSettings) -> InstalledPlugins | None:
    """Return the plugins that the server program finds on this host; None if it does not print its plugin folder."""
    folders = [line.partition("=")[2].strip() for line in settings.options if option_name(line) == "plugin_dir"]
    text = process_managers.help_of(binary, *(f"--plugin-dir={folder}" for folder in folders[-1:]))
    named = _FOLDER.search(text)
    if named is None:
        return None
    folder = named[1]
    try:
        libraries = frozenset(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
    except OSError:
        libraries = frozenset()
    built_in = frozenset(name.lower().replace("-", "_") for name in _BUILT_IN.findall(text))
    return InstalledPlugins(folder, libraries, built_in, _is_shown(folder, binary, settings))


def _is_shown(folder: str, binary: Path, settings: ServerSettings) -> bool:
    home = os.path.dirname(os.path.dirname(os.path.realpath(binary)))
    reads = [*map(str, settings.sandbox_reads), *([home] if home != "/" else [])]
    return settings.sandbox == "off" or is_shown(folder, settings.options, reads)


def lacking_plugins(binary: Path, settings: ServerSettings, known: ServerPlugins | None) -> tuple[PluginObjection, ...]:
    """Return the plugins of the source that would be missing if the given server program ran on the copy."""
    if known is None or not with_libraries(known):
        return ()
    return objections(known, installed_plugins(binary, settings), settings.options)


def refuse_lacking_plugins(settings: ServerSettings, binary: Path, known: ServerPlugins | None) -> None:
    """Raise PreflightError if the given server program lacks a plugin that the server's data or binlogs need."""
    for objection in lacking_plugins(binary, settings, known):
        if objection.is_needed:
            raise PreflightError(objection.text, hint=objection.hint)


def judge_plugins(
    settings: ServerSettings, flavour: Flavour, version: str, known: ServerPlugins | None, *, prevents: bool
) -> list[FitnessFinding]:
    """Return findings about the plugins that a copy of the given server version needs on this host.

    If `prevents` is set, a copy is about to be created, and missing plugins prevent this. Otherwise they cause a
    warning. If this host has no server program, the list is empty, because another finding reports the missing program.
    """
    try:
        binary = programs.choose_program(settings, flavour, version)
    except PreflightError:
        return []
    found = lacking_plugins(binary, settings, known)
    if found:
        return [_finding(one, prevents=prevents) for one in found]
    libraries = with_libraries(known) if known is not None else ()
    return [ok(_NEEDED, f"copies have {', '.join(libraries)}")] if libraries else []


def _finding(objection: PluginObjection, *, prevents: bool) -> FitnessFinding:
    if not objection.is_needed:
        return warning(_USEFUL, objection.text, objection.hint)
    if prevents:
        return unfit(_NEEDED, objection.text, objection.hint)
    refused = "restores, clones and drills on this host are refused"
    return warning(_NEEDED, f"{objection.text}: {refused}", objection.hint)


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


def startup_objections(settings: ServerSettings, copied: CopiedServer) -> Iterator[CopyObjection]:
    """Yield the reasons why this host cannot start a server on a copy of the given server's files.

    On a host without a server program, plugins are not checked, because such a host only watches other servers.
    """
    for text in objections_to_files(copied.absolute_tablespaces):
        yield CopyObjection(text, HINT_FOR_FILES)
    zone = _judged_zone(settings, copied)
    unknown = None if zone is None else zone_objection(zone, host_zones(zone))
    if unknown is not None:
        yield CopyObjection(unknown, _HINT_FOR_ZONE)
    try:
        binary = programs.choose_program(settings, copied.flavour, copied.version)
    except PreflightError:
        return
    for lacked in lacking_plugins(binary, settings, copied.plugins):
        if lacked.is_needed:
            yield CopyObjection(lacked.text, lacked.hint)


def zone_differences(settings: ServerSettings, copied: CopiedServer) -> tuple[str, ...]:
    """Return texts that say how the local times of a copy on this host differ from those of its source."""
    zone = _judged_zone(settings, copied)
    return () if zone is None else zone_notes(zone, host_zones(zone))


def _judged_zone(settings: ServerSettings, copied: CopiedServer) -> ServerZone | None:
    """Return the time zone of the source; None if it is not recorded, or if a time zone for copies is configured."""
    is_chosen = any(option_name(line) == "default_time_zone" for line in settings.options)
    return None if is_chosen else copied.zone


def refuse_unstartable(settings: ServerSettings, copied: CopiedServer) -> None:
    """Raise PreflightError if this host cannot start a server on a copy of the given server's files."""
    for objection in startup_objections(settings, copied):
        raise PreflightError(objection.text, hint=objection.hint)
