"""A server that only we can reach has the storage engines of its tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.support.catalogue_session import CatalogueSession
from zsnapdb.config.settings import ServerSettings
from zsnapdb.jobs.host.server_copy import Copy
from zsnapdb.jobs.trial import server_checks
from zsnapdb.jobs.trial.server_checks import IsolatedServer
from zsnapdb.planning.server_facts import ServerPlugins


class Opened(CatalogueSession):
    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class CopyWithPlugins:
    """A copy whose server has installed plugins. `events` says what happened to the server, in order."""

    installed: tuple[tuple[str, str], ...]
    plugins: ServerPlugins | None = None
    settings: ServerSettings = field(default_factory=ServerSettings)
    events: list[str] = field(default_factory=list)
    for_one_task: tuple[str, ...] = ()

    def remove_keys(self) -> None:
        self.events.append("keys removed")

    def identity(self, **_: object) -> Any:
        return SimpleNamespace(socket="/run/s")

    def process(self) -> Any:
        return SimpleNamespace(stop=lambda timeout: self.events.append("stopped"))

    def start(self, *_: object) -> Opened:
        self.events.append(f"started with {', '.join(self.settings.options)}")
        session = Opened()
        for name, library in self.installed:
            session.put_plugin(name, library)
        return session


@pytest.fixture(autouse=True)
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_checks, "probe", lambda session: SimpleNamespace())


def started(copy: CopyWithPlugins) -> list[str]:
    IsolatedServer(cast(Copy, copy), 1, 5.0).start()
    return copy.events


def test_storage_engines_that_were_installed_as_plugins_are_loaded() -> None:
    copy = CopyWithPlugins((("ARCHIVE", "ha_archive.so"), ("BLACKHOLE", "ha_blackhole"), ("ARCHIVE2", "ha_archive.so")))
    own = replace(copy, settings=ServerSettings(options=("innodb_use_native_aio=OFF",)))
    assert started(own) == [
        "keys removed",
        "started with innodb_use_native_aio=OFF",
        "stopped",
        "started with innodb_use_native_aio=OFF, plugin_load_add=ha_archive.so, plugin_load_add=ha_blackhole",
    ]


def test_other_plugins_and_names_that_are_no_library_are_not_loaded() -> None:
    copy = CopyWithPlugins(
        (("audit", "server_audit.so"), ("x", "../ha_x.so"), ("y", "ha_y.so\nsocket=/run/live"), ("z", "ha_z.so\n"))
    )
    assert started(copy) == ["keys removed", "started with "]


def test_isolated_server_with_recorded_plugins_starts_once() -> None:
    copy = CopyWithPlugins((("ARCHIVE", "ha_archive.so"),), ServerPlugins())
    assert started(copy) == ["keys removed", "started with "]
