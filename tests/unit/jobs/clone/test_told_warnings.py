"""A warning on the terminal of a subject names nothing of others, as an error of the command would not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.events import Recorder
from zsnapdb.base import run_context
from zsnapdb.base.errors import BusyError, CommandError, PreflightError, ZsnapdbError
from zsnapdb.jobs.clone import create, kept_ports, pool

SAYS = "process 4711 is working on clone merger-with-acme"
INFO: Any = SimpleNamespace(label="dev", name="slot", top="tank/c", host="127.0.0.1", port=33071, kept_port=23170)
SETTINGS: Any = SimpleNamespace(clones=SimpleNamespace(address=("127.0.0.1", 1)))


def fail(error: ZsnapdbError) -> Callable[..., Any]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


@pytest.mark.parametrize("audience", ["", "ada"])
@pytest.mark.parametrize("kind", [BusyError, PreflightError, CommandError])
@pytest.mark.parametrize("of", ["set", "slot", "port"])
def test_a_warning_tells_only_what_its_reader_may_read(
    monkeypatch: pytest.MonkeyPatch, of: str, kind: type[ZsnapdbError], audience: str
) -> None:
    if (of, kind) == ("set", CommandError):
        return
    monkeypatch.setenv(run_context.AUDIENCE_VARIABLE, audience)
    monkeypatch.setattr(create, "prepare_source", fail(kind(SAYS)))
    monkeypatch.setattr("zsnapdb.jobs.clone.haproxy_socket.lead_port", fail(kind(SAYS)))
    monkeypatch.setattr("zsnapdb.zfs.datasets.set_properties", lambda *_: None)
    monkeypatch.setattr(kept_ports, "replace", lambda info, **_: info)
    lines: list[str] = []
    instance: Any = SimpleNamespace(events=Recorder(lines))
    match of:
        case "set":
            create._prepare(SETTINGS, instance, INFO, "rules")
        case "slot":
            pool.set_aside(instance, INFO, kind(SAYS))
        case "port":
            kept_ports.route_port(SETTINGS, INFO, instance.events)
    (line,) = lines
    assert ("merger-with-acme" in line) == (audience == "")
