"""A drill and a rescue execute the plan that was shown, whatever is stored in the repository meanwhile."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pydantic import SecretStr

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedBackupError, PreflightError
from zsnapdb.jobs.trial import drill, rescue, table_delivery
from zsnapdb.jobs.trial.rescue import Destination, RescueRequest
from zsnapdb.jobs.trial.server_checks import CheckOutcome, IsolatedServer
from zsnapdb.jobs.trial.table_delivery import DumpPrograms
from zsnapdb.mysql.schema import schema_catalogue
from zsnapdb.planning.backup.fitness import unfit
from zsnapdb.planning.schema_content import CatalogueTable, TableType
from zsnapdb.planning.sql_quoting import TableName
from zsnapdb.planning.trial.rescue import DumpFile
from zsnapdb.report.trial import DrillPlanView
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.verifications import known_damage


def boots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the restored server start, with no tables to check."""
    isolated = SimpleNamespace(
        start=lambda: SimpleNamespace(flavour=Flavour.MARIADB, version="11.8.6"),
        check=lambda facts: CheckOutcome("the server", Outcome.PASSED, ""),
        end=lambda: None,
    )
    monkeypatch.setattr(drill, "IsolatedServer", lambda *words: isolated)
    monkeypatch.setattr(drill, "check_tables", lambda *words: ())


def test_a_drill_executes_the_plan_that_was_shown_though_a_newer_backup_came(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    shown = drill.plan(
        host.settings, host.instance, repository, drill.DrillRequest("latest-backup", seed=1, whole=True)
    )
    host.store(BACKUPS[1])
    monkeypatch.setattr(drill, "check_pages", lambda *words: ())
    boots(monkeypatch)
    done = drill.execute(host.settings, host.instance, repository, shown)
    assert all(plan is shown.restore for plan in host.executed)
    assert host.received == [BACKUPS[0]]
    assert done.evidence.backup_id == BACKUPS[0]
    assert host.plans_made == 1


def test_a_drill_of_a_random_backup_restores_the_one_that_was_shown(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.store(BACKUPS[1])
    repository = host.instance.open_repository()
    shown = drill.plan(host.settings, host.instance, repository, drill.DrillRequest("random", seed=3, whole=True))
    host.store(BACKUPS[2])
    monkeypatch.setattr(drill, "check_pages", lambda *words: ())
    boots(monkeypatch)
    drill.execute(host.settings, host.instance, repository, shown)
    assert host.received == [shown.restore.backup_id]


def test_a_drill_without_innochecksum_is_refused_beforehand_or_goes_on_and_says_what_was_not_checked(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(names: tuple[str, ...], *words: object) -> Path:
        raise PreflightError(f"no program {names[0]} was found", hint="install the server's package")

    monkeypatch.setattr("zsnapdb.mysql.process.programs.find", missing)
    repository = host.instance.open_repository()
    settings = host.instance.settings.drill.model_copy(update={"pages": "required"})
    strict = replace(host.instance, settings=host.instance.settings.model_copy(update={"drill": settings}))
    with pytest.raises(PreflightError, match="innochecksum") as refusal:
        drill.plan(host.settings, strict, repository, drill.DrillRequest("latest-backup", seed=1, whole=True))
    assert 'pages = "required"' in refusal.value.hint
    instance = host.instance
    monkeypatch.setattr(drill, "check_pages", None)
    boots(monkeypatch)
    shown = drill.plan(host.settings, instance, repository, drill.DrillRequest("latest-backup", seed=1, whole=True))
    assert "this host has no innochecksum" in DrillPlanView(shown).text()
    evidence = drill.execute(host.settings, instance, repository, shown).evidence
    assert "this host has no innochecksum: the checksums of the pages were not checked" in evidence.notes


def test_a_shown_plan_is_refused_by_what_would_refuse_the_drill(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    shown = drill.plan(
        host.settings, host.instance, repository, drill.DrillRequest("latest-backup", seed=1, whole=True)
    )
    drill.refuse_unfit(host.settings, host.instance, repository, shown)
    full = unfit("space", "tank has 1 MiB free, at least 9 MiB are needed", "free space")
    monkeypatch.setattr("zsnapdb.jobs.restore.preflight.preflight", lambda work, step: [full])
    with pytest.raises(PreflightError, match="at least 9 MiB are needed"):
        drill.refuse_unfit(host.settings, host.instance, repository, shown)
    assert host.received == []


def rescue_request(folder: Path) -> RescueRequest:
    where = Destination(DumpFile(str(folder / "dump.sql")), SecretStr(""))
    return RescueRequest(TableName("ledger", "t"), "latest-backup", where, None, None, 60.0)


def test_a_rescue_executes_the_plan_that_was_shown_though_a_newer_backup_came(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    shown = rescue.plan(host.settings, host.instance, repository, rescue_request(host.folder))
    host.store(BACKUPS[1])
    isolated = SimpleNamespace(
        start=lambda: None, end=lambda: None, session=lambda: contextlib.nullcontext(SimpleNamespace())
    )
    monkeypatch.setattr(rescue, "IsolatedServer", lambda *words: isolated)
    monkeypatch.setattr(table_delivery, "check_there", lambda *words: None)
    monkeypatch.setattr(table_delivery, "to_file", lambda *words: SimpleNamespace())
    done = rescue.execute(host.settings, host.instance, repository, shown)
    assert done.plan is shown
    assert all(plan is shown.restore for plan in host.executed)
    assert host.received == [BACKUPS[0]]
    assert host.plans_made == 1


@pytest.mark.parametrize("triggers", [(), ("audit",), ("audit", "stock")])
def test_dump_of_table_reports_exactly_its_triggers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triggers: tuple[str, ...]
) -> None:
    table = CatalogueTable("shop", "items", TableType.BASE, "InnoDB", "", 1)
    monkeypatch.setattr(schema_catalogue, "find_table", lambda *words: table)
    monkeypatch.setattr(schema_catalogue, "triggers_of", lambda *words: triggers)
    monkeypatch.setattr(schema_catalogue, "single_columns", lambda *words: ())
    monkeypatch.setattr(table_delivery, "write_file", lambda *words: None)
    isolated = cast("IsolatedServer", SimpleNamespace(session=lambda: contextlib.nullcontext(SimpleNamespace())))
    tools = cast("DumpPrograms", SimpleNamespace())
    name = TableName("shop", "items")
    delivered = table_delivery.to_file(isolated, tools, name, tmp_path / "items.sql", 60.0)
    assert [note.partition(":")[0] for note in delivered.left_out] == [f"trigger {each}" for each in triggers]


def test_a_drill_that_meets_a_damaged_chunk_makes_that_backup_known_as_damaged(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = host.instance.open_repository()
    shown = drill.plan(
        host.settings, host.instance, repository, drill.DrillRequest("latest-backup", seed=1, whole=True)
    )

    def damaged(*words: object) -> None:
        raise DamagedBackupError("chunk 3 is missing", backup_id=BACKUPS[0])

    monkeypatch.setattr("zsnapdb.jobs.restore.server_restore.execute_without_journal", damaged)
    done = drill.execute(host.settings, host.instance, repository, shown)
    assert drill.exit_code(done.evidence) == 7
    (known,) = known_damage(repository, host.instance.name).known
    assert (known.name, known.by) == (BACKUPS[0], f"drill {done.evidence.drill_id}")
    assert known.findings == ("chunk 3 is missing",)
