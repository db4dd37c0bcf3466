"""The time zone of a server's process: whose answers prove which name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from zsnapdb.base import program_start
from zsnapdb.mysql.process import time_zone
from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_time_zone import INSTANTS, ServerZone

BERLIN, KATHMANDU, UTC = "CET-1CEST,M3.5.0,M10.5.0/3", "<+0545>-5:45", "UTC0"
_BY_LIBC = """
import calendar, sys, time
for instant in sys.argv[1:]:
    moment = calendar.timegm(time.strptime(instant, "%Y-%m-%d %H:%M:%S"))
    print(calendar.timegm(time.localtime(moment)) - moment)
"""


def by_libc(zone: str) -> tuple[int, ...]:
    """Return what the C library makes of a value of TZ."""
    argv = [sys.executable, "-c", _BY_LIBC, *INSTANTS]
    done = subprocess.run(argv, env={"TZ": zone}, capture_output=True, check=True, text=True)
    return tuple(int(line) for line in done.stdout.split())


class _Server:
    """A session with a server whose zone SYSTEM has these offsets."""

    def __init__(self, offsets: tuple[int, ...]) -> None:
        self.offsets = offsets

    def query(self, sql: str) -> list[tuple[int, ...]]:
        assert sql.count("'SYSTEM'") == len(INSTANTS)
        return [self.offsets]


def zone_of(rule: str, pid: int | None) -> ServerZone:
    return time_zone.server_zone(cast(Session, _Server(by_libc(rule))), pid, is_default=True)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the host two zones, the second of which is its own."""
    zones = tmp_path / "zoneinfo"
    (zones / "Europe").mkdir(parents=True)
    (zones / "Asia").mkdir()
    (zones / "Europe/Berlin").write_bytes(time_zone._file_of(BERLIN))
    (zones / "Asia/Kathmandu").write_bytes(time_zone._file_of(KATHMANDU))
    monkeypatch.setattr(time_zone, "_ZONES", zones)
    monkeypatch.setattr(time_zone, "_LOCAL", tmp_path / "localtime")
    monkeypatch.setattr(time_zone, "_NAME", tmp_path / "timezone")
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Asia/Kathmandu")
    return tmp_path


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield a process that was started with the parameter as TZ, or without TZ."""
    with subprocess.Popen(["sleep", "600"], env={} if request.param is None else {"TZ": request.param}) as child:
        yield child.pid
        child.kill()


@pytest.mark.parametrize("rule", [BERLIN, KATHMANDU, UTC, "<-0330>3:30<-0230>,M3.2.0,M11.1.0", "EST+5"])
def test_offsets_are_those_of_the_c_library(rule: str) -> None:
    assert time_zone.offsets_in(rule) == by_libc(rule)


@pytest.mark.parametrize(
    ("process", "shown", "name"),
    [
        ("Europe/Berlin", BERLIN, "Europe/Berlin"),
        (":/usr/share/zoneinfo/Europe/Berlin", BERLIN, "Europe/Berlin"),
        (BERLIN, BERLIN, BERLIN),
        (None, KATHMANDU, "Asia/Kathmandu"),
        (":/etc/localtime", KATHMANDU, "Asia/Kathmandu"),
        ("", UTC, UTC),
        ("No/Such", UTC, UTC),
        # It was started before the host got its present zone.
        (None, BERLIN, None),
        ("/srv/zone", BERLIN, None),
    ],
    indirect=["process"],
)
@pytest.mark.usefixtures("host")
def test_a_name_is_recorded_if_it_explains_the_answers(process: int, shown: str, name: str | None) -> None:
    zone = zone_of(shown, process)
    assert (zone.name, zone.offsets) == (name, by_libc(shown))


@pytest.mark.parametrize(("said", "name"), [("Europe/Berlin\n", "Europe/Berlin"), ("../x\n", BERLIN), ("", BERLIN)])
def test_a_copied_zone_is_named_by_its_bytes_or_its_rule(host: Path, said: str, name: str) -> None:
    (host / "localtime").unlink()
    (host / "localtime").write_bytes(time_zone._file_of(BERLIN))
    (host / "timezone").write_text(said)
    assert zone_of(BERLIN, None).name == name


def test_a_host_without_zones_has_utc(host: Path) -> None:
    (host / "localtime").unlink()
    here = time_zone.host_zones(ServerZone(name="Europe/Rome", offsets=by_libc(BERLIN)))
    assert (here.named, here.local) == (None, by_libc(UTC))


def test_a_program_gets_the_zone_that_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    for zone, told in ((None, "none"), ("Europe/Berlin", "Europe/Berlin")):
        with (tmp_path / "out").open("wb") as out:
            argv = ["/bin/sh", "-c", 'printf %s "${TZ-none}"']
            program_start.start(argv, stdout=out, stderr=out, zone=zone).wait()
        assert (tmp_path / "out").read_text() == told
    assert os.environ["TZ"] == "Asia/Tokyo"
