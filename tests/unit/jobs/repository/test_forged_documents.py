"""No document that somebody else puts into a repository makes anything better than it is without the document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.drilled import evidence
from zsnapdb.config.instance import ObjectiveSettings
from zsnapdb.jobs.doctor import instance_checks
from zsnapdb.jobs.health import evidence_records as evidence_job
from zsnapdb.jobs.host import startup_requirements
from zsnapdb.jobs.repository import evidence_report
from zsnapdb.jobs.repository.protection_status import ProtectionStatus
from zsnapdb.jobs.trial.drill import DrillDraw, DrillLog
from zsnapdb.jobs.trial.scratch_datasets import Scratch
from zsnapdb.jobs.trial.server_checks import CheckOutcome
from zsnapdb.mysql.process import process_managers
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.server_copy.plugins import InstalledPlugins
from zsnapdb.planning.server_facts import Plugin, ServerPlugins
from zsnapdb.repository import drills, evidence_log, layout, verifications
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.drills import Outcome, StepPart
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks, Depth, VerificationRecord
from zsnapdb.zfs import version

TIGHT = ObjectiveSettings(
    rpo=1,
    backup_age=1,
    archive_lag=1,
    drill_age=10**9,
    verify_age=1,
    deep_verify_age=1,
    window=10**9,
    restore_time=10**6,
)


@dataclass(frozen=True)
class Forger:
    """Somebody who can write to the repository, and knows all that is in it. `now` is the time of the host."""

    repository: Repository
    backup: str
    now: datetime

    @property
    def microseconds(self) -> int:
        return round(self.now.timestamp() * 1_000_000)

    def fields(self, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.repository.get(key).partition(b"\n")[0])
        return found

    def put(self, key: Key, fields: dict[str, Any]) -> None:
        body = self.repository.keyring.signed(json.dumps(fields, separators=(",", ":")).encode())
        self.repository.overwrite(key, body)

    @property
    def incarnation(self) -> str:
        (listed,) = self.repository.list(layout.incarnations("main"))
        return listed.key.incarnation


def newer_manifest(forger: Forger) -> None:
    name = f"{forger.now:%Y%m%dT%H%M%SZ}-aaaa"
    old = forger.fields(layout.manifest("main", forger.backup))
    created = {"backup_id": name, "created": forger.now.isoformat(), "createtxg": 10**6, "sequence": 10**6}
    forger.put(layout.manifest("main", name), {**old, **created})


def manifest_that_needs_nothing(forger: Forger) -> None:
    """A newer manifest of a server without plugins, of the version of this host's program."""
    name = f"{forger.now:%Y%m%dT%H%M%SZ}-bbbb"
    old = forger.fields(layout.manifest("main", forger.backup))
    old["source"]["server"] |= {"plugins": None, "version": "9.7.1"}
    created = {"backup_id": name, "created": forger.now.isoformat(), "createtxg": 10**6, "sequence": 10**6}
    forger.put(layout.manifest("main", name), {**old, **created})


def older_manifest(forger: Forger) -> None:
    name = f"{forger.now - timedelta(days=9999):%Y%m%dT%H%M%SZ}-aaaa"
    old = forger.fields(layout.manifest("main", forger.backup))
    forger.put(layout.manifest("main", name), {**old, "backup_id": name, "createtxg": 1, "sequence": 1})


def next_binlog(forger: Forger) -> None:
    file = BinlogArchive(forger.repository, "main").load().files[0]
    span = file.span.model_copy(update={"last_commit": forger.microseconds})
    name = file.name[:-1] + "9"
    forged = file.model_copy(update={"name": name, "span": span, "seen": forger.microseconds})
    forger.put(layout.rotated_binlog("main", file.incarnation, name), json.loads(forged.encode()))


def segment(forger: Forger, *, is_new: bool) -> None:
    active = BinlogArchive(forger.repository, "main").load().files[-1]
    last = active.segments[-1]
    span = last.span.model_copy(update={"last_commit": forger.microseconds})
    forged = last.model_copy(update={"span": span, "seen": forger.microseconds})
    if is_new:
        end = {"start": last.end, "end": last.end + 100}
        span = span.model_copy(update=end)
        forged = forged.model_copy(update={**end, "span": span, "head": None})
    key = layout.segment("main", active.incarnation, active.name, forged.start, forged.end)
    forger.put(key, json.loads(forged.encode()))


def new_segment(forger: Forger) -> None:
    segment(forger, is_new=True)


def rewritten_segment(forger: Forger) -> None:
    segment(forger, is_new=False)


def complete_record(forger: Forger) -> None:
    active = BinlogArchive(forger.repository, "main").load().files[-1]
    facts = {"repository_id": forger.repository.id, "instance": "main", "incarnation": active.incarnation}
    record = {"format": 1, **facts, "name": active.name, "end": active.end, "until": forger.microseconds}
    forger.put(layout.complete("main", active.incarnation), record)


def whole_history(forger: Forger) -> None:
    old = forger.incarnation
    name = f"{forger.now:%Y%m%dT%H%M%SZ}-aaaa"
    fields = forger.fields(layout.incarnation("main", old))
    forger.put(
        layout.incarnation("main", name), {**fields, "id": name, "began": forger.now.isoformat(), "sequence": 99}
    )
    for listed in list(forger.repository.list(layout.rotated_binlogs("main", old))):
        forged = forger.fields(listed.key) | {"incarnation": name}
        forged["span"]["last_commit"] = forger.microseconds
        forger.put(layout.rotated_binlog("main", name, listed.key.name), forged)


def passed_drill(forger: Forger) -> None:
    step = StepPart(kind="receive", what="x", seconds=0.001, size=10**12)
    moved = {
        "started": forger.now,
        "finished": forger.now,
        "sequence": 10**6,
        "steps": (step,),
        "backup_id": forger.backup,
    }
    forged = evidence(Outcome.PASSED, forger.repository.id).model_copy(update={**moved, "has_read_all_pages": True})
    forger.put(layout.drill("main", forged.drill_id, 10**6), json.loads(forged.encode()))


def good_check(forger: Forger) -> None:
    good = VerificationRecord(when=forger.now, sequence=10**6)
    checks = Checks({forger.backup: {Depth.READ: good, Depth.LISTED: good}})
    verifications.write(forger.repository, "main", verifications.new_key("main", forger.now), checks)


KINDS: list[Callable[[Forger], None]] = [
    newer_manifest,
    manifest_that_needs_nothing,
    older_manifest,
    next_binlog,
    new_segment,
    rewritten_segment,
    complete_record,
    whole_history,
    passed_drill,
    good_check,
]


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    protected.objectives = TIGHT
    server = protected.server
    server.commit(3)
    protected.look()
    protected.back_up_from_here()
    server.commit(2)
    protected.look()
    server.rotate()
    server.commit(2)
    protected.look()
    return protected


def note_damage(protected: ProtectedServer) -> None:
    """Record that a check of this host found damage, and that a drill of it did."""
    instance, repository = protected.instance(), protected.instance().open_repository()
    name = protected.backups[0]
    verifications.add(
        repository, "main", instance.host.now() - timedelta(days=3), {name: ("a chunk is gone",)}, "verify"
    )
    bad = evidence(Outcome.DAMAGED, repository.id).model_copy(update={"backup_id": name})
    drills.write(repository, bad)


def ranks(status: ProtectionStatus) -> dict[str, int]:
    return {one.name: one.verdict.rank for one in status.health.judgements}


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
@pytest.mark.parametrize("forge", KINDS, ids=lambda forge: forge.__name__)
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_forged_document_makes_nothing_better(
    protected: ProtectedServer, forge: Callable[[Forger], None], signs: bool, is_damaged: bool
) -> None:
    if is_damaged:
        note_damage(protected)
    if signs:
        protected.site.begin_to_sign()
    before = protected.status()
    now = protected.instance().host.now()
    repository = Repository.open(*protected.instance().open_store(), Keyring())
    forge(Forger(repository, protected.backups[0], now.astimezone(UTC)))
    after = protected.status()
    worse = ranks(after)
    assert {name: rank for name, rank in ranks(before).items() if worse[name] < rank} == {}
    old, new = before.health.facts, after.health.facts
    assert (old.newest_point is None) is is_damaged
    assert {one.name for one in before.known_damage} == {one.name for one in after.known_damage}
    for fact in ("newest_point", "newest_backup", "archived_until"):
        was, now_is = getattr(old, fact), getattr(new, fact)
        assert now_is is None or (was is not None and now_is <= was), fact
    assert old.window_start is None or new.window_start is None or new.window_start >= old.window_start
    assert new.newest_passed_drill is None
    assert new.restore_seconds is None


def covering_segment(forger: Forger) -> None:
    """A segment from the first byte, longer than the active binlog."""
    active = BinlogArchive(forger.repository, "main").load().files[-1]
    first = active.segments[0]
    span = first.span.model_copy(update={"end": 10**7})
    forged = first.model_copy(update={"end": 10**7, "span": span})
    key = layout.segment("main", active.incarnation, active.name, 0, 10**7)
    forger.put(key, json.loads(forged.encode()))


def unreadable_segment(forger: Forger) -> None:
    active = BinlogArchive(forger.repository, "main").load().files[-1]
    forger.repository.overwrite(layout.segment("main", active.incarnation, active.name, 0, 10**7), b"?")


def rotated_active(forger: Forger) -> None:
    """A description that says that the active binlog was rotated."""
    rotated, *_, active = BinlogArchive(forger.repository, "main").load().files
    forged = rotated.model_copy(update={"name": active.name})
    forger.put(layout.rotated_binlog("main", active.incarnation, active.name), json.loads(forged.encode()))


def unreadable_rotated(forger: Forger) -> None:
    active = BinlogArchive(forger.repository, "main").load().files[-1]
    forger.repository.overwrite(layout.rotated_binlog("main", active.incarnation, active.name), b"?")


HIDING: list[Callable[[Forger], None]] = [covering_segment, unreadable_segment, rotated_active, unreadable_rotated]


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
@pytest.mark.parametrize("forge", HIDING, ids=lambda forge: forge.__name__)
def test_forged_description_hides_no_binlog_and_lets_none_go(
    protected: ProtectedServer, forge: Callable[[Forger], None], signs: bool
) -> None:
    if signs:
        protected.site.begin_to_sign()
        protected.server.commit(1)
        protected.look()
    before, now = protected.status().health.facts, protected.instance().host.now()
    assert before.newest_point is not None
    repository = Repository.open(*protected.instance().open_store(), Keyring())
    active = BinlogArchive(repository, "main").load().files[-1]
    bodies = layout.segment_bodies("main", active.incarnation, active.name)
    archived = set(repository.sizes(bodies))
    forge(Forger(repository, protected.backups[0], now.astimezone(UTC)))
    assert protected.status().health.facts.newest_point == before.newest_point
    protected.look()
    assert archived <= set(repository.sizes(bodies))
    protected.server.commit(2)
    protected.look()
    protected.server.rotate()
    protected.server.commit(1)
    protected.look()
    after = protected.status().health.facts.newest_point
    assert after is not None
    assert after > before.newest_point
    assert len({file.incarnation for file in BinlogArchive(repository, "main").load().files}) == 1
    protected.plan("latest")


@pytest.mark.parametrize(
    "forge",
    [next_binlog, new_segment, whole_history, covering_segment, rotated_active],
    ids=lambda forge: forge.__name__,
)
def test_foreign_binlog_is_in_no_restore(protected: ProtectedServer, forge: Callable[[Forger], None]) -> None:
    before, now = protected.plan("latest"), protected.instance().host.now()
    repository = Repository.open(*protected.instance().open_store(), Keyring())
    forge(Forger(repository, protected.backups[0], now.astimezone(UTC)))
    after = protected.plan("latest")
    assert after.point == before.point
    assert [step.logs for step in after.replays] == [step.logs for step in before.replays]


MANY = 70
"""More forged documents of a kind than any reader has ever looked at."""


def many_manifests(forger: Forger) -> None:
    old = forger.fields(layout.manifest("main", forger.backup))
    for number in range(MANY):
        name = f"{forger.now:%Y%m%dT%H%M%SZ}-{number:04x}"
        place = {"backup_id": name, "created": forger.now.isoformat(), "createtxg": 10**6, "sequence": 100 + number}
        forger.put(layout.manifest("main", name), {**old, **place})


def many_drills(forger: Forger) -> None:
    for number in range(MANY):
        name = f"{forger.now:%Y%m%dT%H%M%SZ}-{number:04x}"
        forged = evidence(Outcome.PASSED, forger.repository.id, name)
        place = {"sequence": 100 + number, "backup_id": forger.backup, "finished": forger.now}
        drills.write(forger.repository, forged.model_copy(update=place))


def many_checks(forger: Forger) -> None:
    for _ in range(MANY):
        good_check(forger)


def many_records(forger: Forger) -> None:
    """Write the next records of the evidence log, and the last that there can be."""
    genuine = [one.record for one in evidence_log.read(forger.repository, "main") if one.record is not None][-1]
    for number in (*range(genuine.number + 1, MANY), 10**8 - 1):
        forged = genuine.model_copy(update={"number": number})
        forger.put(layout.evidence("main", number), forged.model_dump(mode="json"))


CROWDS = [many_manifests, many_drills, many_checks, many_records]


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
@pytest.mark.parametrize("forge", CROWDS, ids=lambda forge: forge.__name__)
def test_many_forged_documents_hide_no_finding_and_stop_no_command(
    protected: ProtectedServer, forge: Callable[[Forger], None], signs: bool
) -> None:
    note_damage(protected)
    if signs:
        protected.site.begin_to_sign()
    with evidence_job.recorded(protected.instance(), "verify", ["verify"]):
        pass
    before = protected.status()
    now = protected.instance().host.now()
    repository = Repository.open(*protected.instance().open_store(), Keyring())
    forge(Forger(repository, protected.backups[0], now.astimezone(UTC)))
    after = protected.status()
    assert len(before.known_damage) == 2
    assert {(one.name, one.kind) for one in after.known_damage} == {(one.name, one.kind) for one in before.known_damage}
    assert after.health.facts.newest_drill == before.health.facts.newest_drill is not None
    assert len(after.health.facts.doubts) < len(before.health.facts.doubts) + 10
    with evidence_job.recorded(protected.instance(), "backup", ["backup"]):
        pass
    log = evidence_report.report(protected.instance(), None, None).log
    assert {record.job for record in log.believed} >= {"verify", "backup"}


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
def test_removed_evidence_of_a_drill_is_named(
    protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch, signs: bool
) -> None:
    monkeypatch.setattr(version, "userland", lambda: "zfs-2.3.4")
    if signs:
        protected.site.begin_to_sign()
    instance, backup = protected.instance(), protected.backups[0]
    repository = instance.open_repository()
    ids = list[str]()
    for _ in range(2):
        log = DrillLog(instance.host.now())
        log.add("pages", CheckOutcome("ibdata1", Outcome.PASSED, "all pages"))
        name = f"{instance.host.now():%Y%m%dT%H%M%SZ}-{len(ids):04x}"
        drawn = DrillDraw(name, "latest", Scratch(name, "tank/scratch", "drill"), 1, None)
        ids.append(log.store(instance, repository, drawn, backup).evidence.drill_id)
    assert not any("evidence of drill" in doubt for doubt in protected.status().health.facts.doubts)
    gone = next(key for key in drills.keys(repository, "main") if key.drill_id == ids[1])
    repository.delete(gone)
    doubts = protected.status().health.facts.doubts
    assert [ids[1] in doubt for doubt in doubts if "evidence of drill" in doubt] == [True]
    assert evidence_report.report(protected.instance(), None, None).drills.missing == (ids[1],)


def warnings(protected: ProtectedServer) -> Counter[tuple[str, Severity]]:
    """Return how often the doctor warns, by subject. What it says of each may name what is new."""
    found = instance_checks.describe_stored(protected.instance())
    return Counter((one.what, one.severity) for one in found if one.severity is not Severity.OK)


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
@pytest.mark.parametrize("forge", [*KINDS, *CROWDS[:3]], ids=lambda forge: forge.__name__)
def test_forged_document_takes_no_warning_of_the_doctor_away(
    protected: ProtectedServer, monkeypatch: pytest.MonkeyPatch, forge: Callable[[Forger], None], signs: bool
) -> None:
    monkeypatch.setattr(process_managers, "version_of", lambda *_: "9.7.1")
    monkeypatch.setattr(startup_requirements, "installed_plugins", lambda *_: InstalledPlugins("/plugins", frozenset()))
    plugin = Plugin(name="rocksdb", kind="STORAGE ENGINE", library="ha_rocksdb.so")
    protected.plugins = ServerPlugins(plugins=(plugin,))
    protected.server.commit(1)
    protected.back_up_from_here()
    note_damage(protected)
    if signs:
        protected.site.begin_to_sign()
    before = warnings(protected)
    assert {"backups", "damage", "plugins"} <= {what for what, _ in before}
    now = protected.instance().host.now()
    repository = Repository.open(*protected.instance().open_store(), Keyring())
    forge(Forger(repository, protected.backups[0], now.astimezone(UTC)))
    assert before - warnings(protected) == Counter()


@pytest.mark.parametrize("signs", [False, True], ids=["unsigned", "signs"])
def test_forged_record_of_the_evidence_log_counts_for_no_day(protected: ProtectedServer, signs: bool) -> None:
    for _ in range(2):
        with evidence_job.recorded(protected.instance(), "verify", ["verify"]):
            pass
    if signs:
        protected.site.begin_to_sign()
    before = evidence_report.report(protected.instance(), None, None)
    stranger = Repository.open(*protected.instance().open_store(), Keyring())
    genuine = before.log.believed[-1]
    forged = genuine.model_copy(update={"job": "backup", "command": "backup main"})
    evidence_log.append(stranger, forged, None)
    with evidence_job.recorded(protected.instance(), "verify", ["verify"]):
        pass
    after = evidence_report.report(protected.instance(), None, None)
    jobs = {record.job for record in after.log.believed}
    assert "backup" not in jobs
    assert bool(after.log.findings) is signs
    assert len(after.log.foreign) == (0 if signs else 1)
