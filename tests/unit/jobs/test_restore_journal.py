"""A restore's plan and journal survive storage, and only a suitable server program is started on restored files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.jobs.steps.journal import CompletedStep
from zsnapdb.jobs.steps.restore_journal import Journals, MachineJournals, RestoreJournal
from zsnapdb.planning.restore.plan import ArchivedTransaction, RestoreLayout, RestorePlan, RestorePoint
from zsnapdb.planning.restore.steps import (
    CheckServer,
    HandoverStep,
    LeaveStopped,
    LogPart,
    MakeReplica,
    MakeTop,
    MountPart,
    MountVolumes,
    ParallelRun,
    Preflight,
    Promote,
    PromotePart,
    ReadOnlyStart,
    Receive,
    Recover,
    Replay,
)
from zsnapdb.planning.server_copy.version_compatibility import objection_to

ID = "20261120T120000Z-0001"
WHEN = datetime(2026, 11, 20, 12, 0, 0, 250000, tzinfo=UTC)
LAYOUT = RestoreLayout(
    "tank/a/r", {"data": "tank/a/r/data"}, {"data": "/mnt/r/data"}, "/mnt/r", {"data": ("tank/mysql", "/var/lib/mysql")}
)
HANDOVERS: tuple[HandoverStep, ...] = (
    LeaveStopped(1),
    ReadOnlyStart(1),
    ParallelRun(7, 33070),
    Promote(
        (PromotePart("data", "tank/a/r/data", "tank/mysql", "tank/mysql-old", "/var/lib/mysql"),),
        (("tank/mysql", "tank/mysql-old"),),
        ID,
    ),
    MakeReplica(7, 33070, "db1", 3306, "replica", "/etc/password"),
)


def plan(last: HandoverStep, top: str = "tank/a/r") -> RestorePlan:
    return RestorePlan(
        restore_id=ID,
        instance="main",
        repository="0123",
        requested="latest",
        created=WHEN,
        flavour=Flavour.MARIADB,
        server_version="11.8.3-MariaDB",
        server_id=1,
        server_uuid=None,
        variables={"datadir": "/var/lib/mysql"},
        backup_id=ID,
        point=RestorePoint("0-1-9", ArchivedTransaction("0-1-9", WHEN, "binlog.000002", 900), None, ("a note",)),
        layout=RestoreLayout(top, LAYOUT.datasets, LAYOUT.mountpoints, LAYOUT.mount, LAYOUT.places),
        steps=(
            Preflight("tank", "tank/a", 10, 5, 1 << 17, "zfs-2.3", Flavour.MARIADB, "11.8.3-MariaDB", (ID,)),
            MakeTop(top),
            Receive(ID, "data", "tank/a/r/data", "/mnt/r/data", "zsnapdb-x", 2**63 + 7, None, 10, 5),
            MountVolumes(
                (MountPart("data", "tank/a/r/data", "/mnt/r/data", "zsnapdb-x", 2**63 + 7, {"recordsize": "16384"}),)
            ),
            Recover("0-1-5", "binlog.000001", 500),
            Replay(
                1, (LogPart("i", "binlog.000001", 900, 500, 900), LogPart("i", "binlog.000002", 900, 100, 900)), "0-1-9"
            ),
            CheckServer("0-1-9"),
            last,
        ),
    )


@pytest.mark.parametrize("last", HANDOVERS, ids=lambda step: step.kind)
def test_a_journal_is_read_back_as_it_was_written(last: HandoverStep, tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    journal = RestoreJournal(plan(last)).with_done(CompletedStep("preflight", WHEN, 0.5))
    journals.write(journal)
    assert journals.read("tank/a/r") == journal
    assert journals.under_way("main") == [journal]
    assert (journal.is_done("preflight"), journal.is_done("recover")) == (True, False)
    journals.finish(journal)
    assert (journals.read("tank/a/r"), journals.under_way("main"), journals.history("main")) == (None, [], [journal])


def test_steps_have_names_of_their_own() -> None:
    for last in HANDOVERS:
        names = [step.name for step in plan(last).steps]
        assert len(set(names)) == len(names)
        assert all(step.describe() for step in plan(last).steps)


def test_a_restore_to_go_on_with_is_named_or_the_only_one(tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    with pytest.raises(NotFound, match="not exactly one unfinished restore of main"):
        journals.find("main", None)
    journals.write(RestoreJournal(plan(LeaveStopped(1))))
    assert journals.find("main", None).plan.layout.top == "tank/a/r"
    journals.write(RestoreJournal(plan(LeaveStopped(1), "tank/other")))
    with pytest.raises(NotFound, match="not exactly one unfinished restore of main"):
        journals.find("main", None)
    assert journals.find("main", "tank/other").plan.layout.top == "tank/other"


def test_a_torn_journal_of_another_target_stands_in_nobodys_way_and_is_named(tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    journals.write(RestoreJournal(plan(LeaveStopped(1))))
    torn = journals.path("tank/other")
    torn.write_text("{")
    assert journals.find("main", None).top == "tank/a/r"
    assert journals.find("main", "tank/a/r").top == "tank/a/r"
    with pytest.raises(NotFound) as caught:
        journals.find("shop", None)
    assert f"{torn} cannot be read" in str(caught.value.hint)
    with pytest.raises(DamagedError) as damaged:
        journals.find("main", "tank/other")
    assert "zfs list -r tank/other" in str(damaged.value.hint)
    with pytest.raises(DamagedError):
        journals.all_under_way()


def test_a_journal_that_was_altered_is_not_gone_on_with(tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    journals.write(RestoreJournal(plan(LeaveStopped(1))))
    path = journals.path("tank/a/r")
    path.write_text(path.read_text().replace('"kind": "recover"', '"kind": "else"'))
    with pytest.raises(DamagedError, match="cannot be read"):
        journals.read("tank/a/r")


@pytest.mark.parametrize(
    ("flavour", "recorded", "installed", "words"),
    [
        (Flavour.MYSQL, "9.7.4", "9.7.4", None),
        (Flavour.MYSQL, "8.4.3-3", "8.4.5-5", None),
        (Flavour.MARIADB, "11.8.3-MariaDB-log", "11.8.6-MariaDB-0+deb13u1", None),
        (Flavour.MYSQL, "9.7.4", "9.7.3", "older"),
        (Flavour.MYSQL, "8.0.40", "8.4.3", "another series"),
        (Flavour.MYSQL, "26.7.0", "26.10.0", "another series"),
        (Flavour.MARIADB, "11.8.3-MariaDB", "9.7.4", "it is MySQL"),
        (Flavour.MYSQL, "9.7.4", "11.8.6-MariaDB", "it is MariaDB"),
    ],
)
def test_a_server_program_is_of_the_same_series_and_not_older(
    flavour: Flavour, recorded: str, installed: str, words: str | None
) -> None:
    objection = objection_to(flavour, recorded, installed)
    assert (objection is None) if words is None else (objection is not None and words in objection)


LOOK = {
    "pool": "tank",
    "parent": "tank/a",
    "plain_bytes": 10,
    "stored_bytes": 5,
    "features": 3,
    "zfs_version": "zfs-2.3",
}
VOLUME = {"role": "vda", "dataset": "tank/a/vda", "snapshot": "zsnapdb-x", "guid": 7}
STORED = {
    "plan": {
        "restore_id": ID,
        "instance": "web",
        "repository": "0123",
        "requested": "latest",
        "created": "2026-11-20T12:00:00Z",
        "backup_id": ID,
        "grade": "crash",
        "grade_reason": "nothing was held",
        "original": "web1",
        "top": "tank/a",
        "datasets": {"vda": "tank/a/vda"},
        "steps": [
            {**LOOK, "backups": [ID], "encrypted": ["tank/b"], "raw": [], "kind": "machine-preflight"},
            {"dataset": "tank/a", "kind": "make-top"},
            {**VOLUME, "backup_id": ID, "mountpoint": "", "from_guid": None, "plain_bytes": 1, "stored_bytes": 1}
            | {"kind": "receive"},
            {"parts": [{**VOLUME, "size": 1024, "properties": {}}], "kind": "check-volumes"},
            {"domain": "web2", "uuid": "u", "network": "n", "xml": "<domain/>", "kind": "define-domain"},
        ],
    },
    "done": [{"step": "preflight", "finished": "2026-11-20T12:00:00Z", "seconds": 1.0}],
    "run_id": "",
}


def test_journal_of_a_machine_is_read_by_the_names_of_its_fields(tmp_path: Path) -> None:
    """A journal is continued by later versions: field and kind of each step keep their names."""
    folder = MachineJournals(tmp_path)
    folder.folder.mkdir()
    folder.path("tank/a").write_text(json.dumps(STORED))
    journal = folder.find("web", None)
    names = ["preflight", "make-top", f"receive-{ID}-vda", "check-volumes", "define-domain"]
    assert ([step.name for step in journal.plan.steps], journal.next_step.name) == (names, "make-top")
    assert (journal.plan.targets, journal.plan.step("preflight").encrypted) == ({"tank/a", "tank/a/vda"}, ("tank/b",))


@pytest.mark.parametrize(
    ("gtids", "shown"), [("", "an empty set of GTIDs"), ("0-1-7", "0-1-7"), (None, "binlog.000001:500")]
)
def test_recovery_names_the_position_that_it_compares(gtids: str | None, shown: str) -> None:
    assert Recover(gtids, "binlog.000001", 500).describe().endswith(f"compare its position with {shown}")
