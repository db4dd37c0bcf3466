"""The server inside a machine that is backed up: its lock lies around the freeze, or the grade says that it did not."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.support.barn import Barn
from tests.unit.support.manifests import manifest
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour, Position
from zsnapdb.base.errors import LockNotGranted
from zsnapdb.documents.backup import ManifestFields
from zsnapdb.jobs.backup import vm_source
from zsnapdb.jobs.backup.vm_source import ExaminedInside, LockedGuestServer, MachineSource, ObservedInside
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.mysql import locks
from zsnapdb.mysql.locks import HeldLock
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.backup.lock_strategy import LockChoice
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.vm import consistency_level
from zsnapdb.planning.vm.consistency_level import Freeze, Grade, Power, ServerLock
from zsnapdb.report.backup import detail_lines
from zsnapdb.repository.manifest_source import MachineSourcePart


class FakeLock:
    """The lock of a server inside the machine: it is granted, refused or lost as the test says."""

    def __init__(self, barn: Barn) -> None:
        self.barn = barn
        self.refusals = 0
        self.events: list[str] = []
        server = ServerFacts(Flavour.MARIADB, "11.8.6-MariaDB", None, 1, {}, {"InnoDB": 1}, ())
        self.inside = ObservedInside(server, LockChoice(locks.properties("stage"), "MariaDB knows it"))

    def examine(self, instance: Instance, addresses: Collection[str], minimum: Grade) -> ExaminedInside:
        assert addresses == ("10.0.0.7",)
        return ExaminedInside(self.inside, ())

    @contextlib.contextmanager
    def locked(self, instance: Instance, observed: ObservedInside) -> Iterator[LockedGuestServer]:
        if self.refusals:
            self.refusals -= 1
            raise LockNotGranted("a statement is in the way")
        self.events.append("locked")
        held = LockedGuestServer(observed.facts, observed.choice, _position(7), HeldLock(time.monotonic() + 5))
        assert not self.barn.guests.is_frozen
        yield held
        assert not self.barn.guests.is_frozen
        self.events.append("released")
        held.after = _position(9)


def _position(offset: int) -> Position:
    return Position(Flavour.MARIADB, BinlogCoordinates("binlog.000001", offset), None, "server")


@pytest.fixture
def lock(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> FakeLock:
    lock = FakeLock(barn)
    monkeypatch.setattr("zsnapdb.jobs.backup.vm_source.examine", lock.examine)
    source = barn.source

    def with_lock(**settings: Any) -> MachineSource:
        return replace(source(**settings), lock=lock.locked)

    monkeypatch.setattr(barn, "source", with_lock)
    monkeypatch.setattr("zsnapdb.jobs.backup.vm_source.delays", lambda: itertools.repeat(0.01))
    return lock


def test_the_server_is_locked_before_the_freeze_and_released_after_the_thaw(barn: Barn, lock: FakeLock) -> None:
    source = barn.source(minimum_grade="quiesced")
    taken = barn.take(minimum_grade="quiesced")
    assert taken.proof.hold.reached.grade is Grade.QUIESCED
    assert (lock.events, barn.frozen_at_snapshot) == (["locked", "released"], [True])
    part = source.describe(source.observe(), taken.proof).source
    assert isinstance(part, MachineSourcePart)
    assert part.server is not None
    assert (part.server.lock, part.server.before.binlog_offset) == ("stage", 7)
    assert part.server.after is not None
    assert MachineSourcePart.model_validate_json(part.model_dump_json()) == part
    assert "position  between binlog.000001:7 and binlog.000001:9" in detail_lines(part)
    shown = ManifestFields.of_result(manifest().model_copy(update={"source": part})).json_fields()
    assert shown["server_inside"]["lock"] == "stage"


def test_a_lock_that_is_not_granted_at_once_is_tried_again(barn: Barn, lock: FakeLock) -> None:
    lock.refusals = 3
    assert barn.grade(minimum_grade="quiesced") is Grade.QUIESCED
    assert barn.guard.told == ["opened 5", "freezing", "thawed"]


def test_without_the_lock_the_guest_is_frozen_or_the_backup_fails(
    barn: Barn, lock: FakeLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsnapdb.jobs.backup.vm_source.delays", lambda: itertools.repeat(1e9))
    lock.refusals = 1
    with pytest.raises(LockNotGranted):
        barn.take(minimum_grade="quiesced")
    assert (barn.snapshots(), barn.guard.told) == ([], ["opened 5"])
    lock.refusals = 1
    assert barn.grade() is Grade.FROZEN
    assert any("continuing without the lock of the server" in line for line in barn.reported)


def test_a_server_at_an_address_that_is_not_the_machines_proves_nothing(barn: Barn) -> None:
    instance = barn.source().instance
    inside = instance.settings.model_copy(update={"host": "127.0.0.1"})
    instance = replace(instance, settings=inside)
    for minimum, severity in ((Grade.QUIESCED, Severity.UNFIT), (Grade.CRASH, Severity.WARNING)):
        examined = vm_source.examine(instance, ("10.0.0.7",), minimum)
        assert examined.observed is None
        (finding,) = examined.findings
        assert finding.severity is severity
        assert "127.0.0.1 (127.0.0.1) is not known to be in the machine, which has 10.0.0.7" in finding.detail


def test_a_lock_without_a_freeze_is_no_grade() -> None:
    held = ServerLock("ftwrl", True)
    assert consistency_level.reached(Power.RUNNING, Power.RUNNING, None, held).grade is Grade.CRASH
    frozen = Freeze(2, 1.0)
    assert consistency_level.reached(Power.RUNNING, Power.RUNNING, frozen, held).grade is Grade.QUIESCED
    assert (
        consistency_level.reached(Power.RUNNING, Power.RUNNING, frozen, ServerLock("none", False)).grade is Grade.FROZEN
    )
