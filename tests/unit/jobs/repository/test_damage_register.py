"""One module knows what is damaged: from verify, from what others read, and from the pages that drills checked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.unit.support.stored_backups import Site
from zsnapdb.planning.damage_register import DamageKind
from zsnapdb.repository import verifications
from zsnapdb.repository.drills import ALL_PAGES, CheckPart, Evidence, Outcome
from zsnapdb.repository.verifications import Checks, Depth, finding, known_damage, register

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
A, B, C, D = (f"2026112{day}T101112Z-7f3a" for day in range(4))


def evidence(day: int, outcome: Outcome, backup_id: str = A, kind: str = "pages") -> Evidence:
    when = NOW + timedelta(days=day)
    return Evidence(
        drill_id=f"2026112{day}T101112Z-0000",
        instance="main",
        repository_id="r",
        requested="latest",
        backup_id=backup_id,
        seed=1,
        host="h",
        started=when,
        finished=when,
        tool_version="0",
        zfs_version="0",
        server_version="0",
        position="",
        steps=(),
        checks=(
            CheckPart(
                kind=kind,
                what="t1.ibd",
                outcome=outcome,
                finding=ALL_PAGES if outcome is Outcome.PASSED else "page 3 is damaged",
            ),
        ),
    )


def test_damage_that_is_found_again_is_known_since_it_was_first_found() -> None:
    first = finding(Depth.LISTED, NOW, ("chunk 1 is missing",), {})
    again = finding(Depth.READ, NOW + timedelta(days=3), ("chunk 1 is missing", "x"), {Depth.LISTED: first})
    (known,) = register(Checks({A: {Depth.LISTED: first, Depth.READ: again}}), ()).known
    assert (known.kind, known.since, known.by) == (DamageKind.STORED, NOW, "verify --deep")
    assert known.describe() == (
        f"backup {A} is damaged, known since 2026-11-20 10:00 UTC by verify --deep: chunk 1 is missing, and 1 more"
    )


def test_pages_that_a_drill_found_damaged_are_known_until_a_drill_of_that_backup_passes() -> None:
    bad = [evidence(1, Outcome.DAMAGED), evidence(2, Outcome.DAMAGED), evidence(3, Outcome.PASSED, B)]
    (known,) = register(Checks(), bad).known
    assert (known.name, known.kind, known.since) == (A, DamageKind.CONTENT, bad[0].finished)
    assert known.by == f"drill {bad[1].drill_id}"
    assert known.findings == ("t1.ibd: page 3 is damaged",)
    assert register(Checks(), bad).stored() == {}, "the stored bytes are those that were written"
    assert register(Checks(), [*bad, evidence(4, Outcome.PASSED)]).known == ()


def test_a_damaged_page_may_be_in_each_later_backup_until_a_drill_reads_its_file_whole() -> None:
    bad = [evidence(1, Outcome.DAMAGED), evidence(2, Outcome.PASSED, C)]
    damage = register(Checks(), bad)
    assert [known.name for known in damage.of_chain([A])] == [A]
    assert [known.name for known in damage.of_chain([A, B])] == [A]
    assert damage.of_chain([A, B, C]) == damage.of_chain([A, B, C, D]) == ()
    again = register(Checks(), [*bad, evidence(3, Outcome.DAMAGED, C)])
    assert [known.name for known in again.of_chain([A, B, C, D])] == [A, C]


def test_the_damaged_file_of_a_dropped_table_is_not_in_a_backup_that_a_drill_has_read_whole() -> None:
    other = evidence(2, Outcome.PASSED, C)
    other = other.model_copy(update={"checks": (other.checks[0].model_copy(update={"what": "t2.ibd"}),)})
    bad = evidence(1, Outcome.DAMAGED)
    assert [known.name for known in register(Checks(), [bad, other]).of_chain([A, B, C, D])] == [A]
    damage = register(Checks(), [bad, other.model_copy(update={"has_read_all_pages": True})])
    assert damage.of_chain([A, B, C]) == damage.of_chain([A, B, C, D]) == ()
    assert [known.name for known in damage.of_chain([A, B])] == [A]
    assert [known.name for known in damage.known] == [A]


def test_a_sample_of_pages_clears_nothing() -> None:
    sampled = evidence(2, Outcome.PASSED)
    part = sampled.checks[0].model_copy(update={"finding": "pages 1 to 2 of 9"})
    bad = [evidence(1, Outcome.DAMAGED), sampled.model_copy(update={"checks": (part,)})]
    assert [known.name for known in register(Checks(), bad).known] == [A]


def test_a_drill_that_finds_another_damaged_file_does_not_forget_the_first() -> None:
    first = evidence(1, Outcome.DAMAGED)
    second = evidence(2, Outcome.DAMAGED)
    other = second.model_copy(update={"checks": (second.checks[0].model_copy(update={"what": "t2.ibd"}),)})
    (known,) = register(Checks(), [first, other]).known
    assert known.findings == ("t1.ibd: page 3 is damaged", "t2.ibd: page 3 is damaged")
    assert (known.since, known.by) == (first.finished, f"drill {second.drill_id}")
    (left,) = register(Checks(), [first, other, evidence(3, Outcome.PASSED)]).known
    assert left.findings == ("t2.ibd: page 3 is damaged",)


def test_what_a_backup_needs_is_asked_by_its_chain(site: Site) -> None:
    names = site.fill([None, 0, None])
    repository = site.instance().open_repository()
    links = site.instance().summaries(repository).backups
    assert known_damage(repository, "main").of_chains(links) == {}
    verifications.add(repository, "main", NOW, {names[0]: ("chunk 1 is missing",)}, "drill 1")
    chains = known_damage(repository, "main").of_chains(links)
    assert {name: [known.name for known in damage] for name, damage in chains.items()} == {
        names[0]: [names[0]],
        names[1]: [names[0]],
    }
    verifications.add(repository, "main", NOW + timedelta(days=1), {names[0]: ()}, "drill 2")
    assert known_damage(repository, "main").known == ()


def test_findings_of_backups_and_of_archived_binlogs_are_read_back(site: Site) -> None:
    site.fill([None])
    repository = site.instance().open_repository()
    binlog = f"{B}/binlog.000007"
    verifications.add(repository, "main", NOW, {A: ("x is missing",), binlog: ("y is missing",)}, "purge")
    register_now = known_damage(repository, "main")
    assert [(known.name, known.is_of_backup) for known in register_now.known] == [(A, True), (binlog, False)]
    assert [known.name for known in register_now.backups] == [A]
