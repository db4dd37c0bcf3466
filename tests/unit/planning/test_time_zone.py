"""The time zone of a server's process: which names are believed, and what a host that differs says."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from zsnapdb.base.patterns import is_line
from zsnapdb.planning.server_time_zone import (
    INSTANTS,
    HostZones,
    ServerZone,
    given_zone,
    named_zone,
    unit_line,
    zone_notes,
    zone_objection,
)

UTC = (0,) * len(INSTANTS)
EAST = (3600,) * len(INSTANTS)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (":Europe/Berlin", "Europe/Berlin"),
        ("/usr/share/zoneinfo/America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        (":/usr/share/zoneinfo/Etc/GMT+5", "Etc/GMT+5"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "CET-1CEST,M3.5.0,M10.5.0/3"),
        ("<+0545>-5:45", "<+0545>-5:45"),
        ("", None),
        (":/etc/localtime", None),
        ("localtime", None),
        ("/usr/share/zoneinfo/../../../etc/passwd", None),
        ("../etc/passwd", None),
        ("/etc/passwd", None),
        ("Europe/Berlin\nInit=1", None),
        ("Europe/Berlin x", None),
        ("$(id)", None),
        ("UTC0;id", None),
    ],
)
def test_named_zone_knows_names_of_every_host_alone(told: str, name: str | None) -> None:
    assert named_zone(told) == name


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", ":UTC", "a b", "UTC0\n", "localtime", "x" * 200, "A=1", "%n"])
def test_a_stored_zone_with_another_form_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        ServerZone(name=name, offsets=UTC)


def test_every_name_is_one_word_for_a_unit_and_a_shell() -> None:
    for name in ("Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3", "<+0545>-5:45"):
        assert is_line(name)
        assert re.search(r"[\s\"'\\%$`;&|]", name) is None


def test_a_zone_that_the_host_knows_is_given_and_says_nothing() -> None:
    zone, here = ServerZone(name="Europe/Berlin", offsets=EAST), HostZones(EAST, UTC)
    assert given_zone(zone, here) == "Europe/Berlin"
    assert (zone_objection(zone, here), zone_notes(zone, here)) == (None, ())
    assert unit_line(zone, here) == "Environment=TZ=Europe/Berlin"
    assert unit_line(zone, HostZones(EAST, EAST)) is None


def test_an_unknown_zone_is_refused_unless_the_host_shows_the_same_times() -> None:
    zone = ServerZone(name="Europe/Berlin", offsets=EAST)
    objection = zone_objection(zone, HostZones(None, UTC))
    assert objection is not None
    assert "Europe/Berlin" in objection
    assert zone_objection(zone, HostZones(None, EAST)) is None
    assert given_zone(zone, HostZones(None, EAST)) is None
    # Sessions of this server have another zone, so little depends on it.
    unused = zone.model_copy(update={"is_default": False})
    assert zone_objection(unused, HostZones(None, UTC)) is None
    assert "not that of the source's process, which is Europe/Berlin" in zone_notes(unused, HostZones(None, UTC))[0]


def test_data_of_another_release_are_named_with_the_first_difference() -> None:
    later = (*EAST[:-1], 7200)
    (note,) = zone_notes(ServerZone(name="Europe/Berlin", offsets=later), HostZones(EAST, UTC))
    assert "another release" in note
    assert "on 2036-07-01 UTC+02:00 at the source, UTC+01:00 here" in note


def test_a_zone_without_a_name_is_compared_with_that_of_the_host() -> None:
    zone = ServerZone(offsets=EAST)
    assert given_zone(zone, HostZones(None, UTC)) is None
    assert zone_objection(zone, HostZones(None, UTC)) is None
    assert zone_notes(zone, HostZones(None, EAST)) == ()
    (note,) = zone_notes(zone, HostZones(None, UTC))
    assert "not known by name" in note
    assert "set default_time_zone" in note
