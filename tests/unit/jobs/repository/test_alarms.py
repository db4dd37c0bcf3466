"""`status` and `verify` end with an error for a state that needs a person, so that a cron job notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.machine_yard import made_yard
from tests.unit.support.stored_backups import Site
from zsnapdb.jobs.repository import protection_status, verify
from zsnapdb.report.repository.protection import StatusView
from zsnapdb.repository.verifications import Depth


def codes(site: Site) -> list[int]:
    """Return the exit codes of status and verify."""
    alarms = (
        protection_status.alarm(protection_status.status(site.instance())),
        verify.verify(site.instance(), Depth.LISTED, older_than=86400.0).alarm(),
    )
    return [alarm.exit_code if alarm is not None else 0 for alarm in alarms]


def test_an_empty_repository_is_not_good(site: Site) -> None:
    site.instance().open_or_create_repository()
    assert codes(site) == [6, 6]


def test_a_repository_with_backups_is_good_even_if_no_verification_is_due(site: Site) -> None:
    site.fill([None, 0])
    assert codes(site) == [0, 0]
    assert codes(site) == [0, 0]


@pytest.mark.parametrize("bases", [[None], [None, 0]])
def test_damage_is_not_good(site: Site, bases: list[int | None]) -> None:
    *_, last = site.fill(bases)
    (manifest,) = (site.folder / key for key in site.objects("main/manifests/") if last in key)
    manifest.write_bytes(b"{}")
    assert codes(site) == [7, 7]


def test_a_machine_with_backups_is_no_alarm_and_its_status_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = made_yard(tmp_path, monkeypatch)
    seen = protection_status.status(yard.instance)
    assert protection_status.alarm(seen) is None
    assert seen.machines == tuple(yard.ids)
    assert f"recoverable   2 backup(s) of a virtual machine, {yard.ids[0]} to {yard.ids[1]}" in StatusView(seen).text()
