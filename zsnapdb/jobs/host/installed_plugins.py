"""The check that this host can load the plugins of a server on a copy, for backup, doctor and plans."""

from __future__ import annotations

import os
import re
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.mysql.process import processes, server_program
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, unfit, warning
from zsnapdb.planning.server_copy.plugins import InstalledPlugins, PluginObjection, objections, with_libraries
from zsnapdb.planning.server_copy.sandbox import is_shown
from zsnapdb.planning.server_copy.source_facts import option_name
from zsnapdb.planning.server_plugins import ServerPlugins

_NEEDED = "plugins"
"""The subject of findings about plugins that a copy needs. `planning/advice` uses it."""
_USEFUL = "plugin tables"
"""The subject of findings about plugins that only add tables to information_schema."""
_FOLDER = re.compile(r"^plugin-dir\s+(/\S.*?)\s*$", re.MULTILINE)
_BUILT_IN = re.compile(r"Enable\s+or\s+disable\s+(\S+)\s+plugin")


def installed(binary: Path, settings: ServerSettings) -> InstalledPlugins | None:
    """Return the plugins that the server program finds on this host; None if it does not print their folder."""
    folders = [line.partition("=")[2].strip() for line in settings.options if option_name(line) == "plugin_dir"]
    text = processes.help_of(binary, *(f"--plugin-dir={folder}" for folder in folders[-1:]))
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


def lacking(binary: Path, settings: ServerSettings, known: ServerPlugins | None) -> tuple[PluginObjection, ...]:
    """Return the plugins that a copy of a server with these plugins would lack with this program."""
    if known is None or not with_libraries(known):
        return ()
    return objections(known, installed(binary, settings), settings.options)


def refuse_lacking(settings: ServerSettings, binary: Path, known: ServerPlugins | None) -> None:
    """Raise PreflightError if this server program lacks a plugin that data or binlogs of the server need."""
    for objection in lacking(binary, settings, known):
        if objection.is_needed:
            raise PreflightError(objection.text, hint=objection.hint)


def judge(
    settings: ServerSettings, flavour: Flavour, version: str, known: ServerPlugins | None, *, prevents: bool
) -> list[FitnessFinding]:
    """Return the findings about the plugins of a server of this version for a copy on this host.

    `prevents`: a copy is about to be created; otherwise missing plugins are only a warning. Without a server program
    there are no findings here, as another finding reports that.
    """
    try:
        binary = server_program.choose_program(settings, flavour, version)
    except PreflightError:
        return []
    found = lacking(binary, settings, known)
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
