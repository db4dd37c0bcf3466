"""A diagnosis as text, as a document and as the line of a Nagios plugin."""

from __future__ import annotations

import json

from tests.unit.planning.advice.facts import GOOD, with_data
from zsnapdb.jobs.doctor.instance_checks import Diagnosis, safe_changes
from zsnapdb.planning.advice.catalogue import Silence, find_rule, judge_advice
from zsnapdb.planning.backup.fitness import unfit
from zsnapdb.report.doctor import DoctorView

FIT = Diagnosis("main", judge_advice(GOOD, ()), None)
ADVISED = Diagnosis("shop", judge_advice(with_data(compression="off", sync="disabled"), ()), None)
UNFIT = Diagnosis("shop", (unfit("server", "it says a|b\nand more", "start it"), *ADVISED.findings), None)


def test_a_finding_of_a_rule_says_fact_reason_and_fix() -> None:
    text = DoctorView([FIT, ADVISED]).text()
    rule = find_rule("compression")
    assert rule is not None
    for part in (
        "warning  compression     tank/mysql/data has compression=off",
        f"why: {rule.reason}",
        "hint: zfs set compression=lz4 tank/mysql/data",
    ):
        assert part in text
    assert text.count("why: ") == 2


def test_the_document_has_the_id_reason_and_source_of_each_rule() -> None:
    rows = json.loads(DoctorView([ADVISED]).document())["instances"][0]["findings"]
    by_rule = {row["rule"]: row for row in rows if "rule" in row}
    assert set(by_rule) == {"compression", "sync-disabled"}
    assert by_rule["sync-disabled"]["source"] == "zfsprops(7), sync"
    assert by_rule["sync-disabled"]["hint"] == "zfs set sync=standard tank/mysql/data"


def test_the_line_for_nagios_names_the_worst_first() -> None:
    assert DoctorView([FIT]).nagios() == "ZSNAPDB OK - 1 instance(s) fit | unfit=0 warnings=0"
    line = DoctorView([FIT, ADVISED]).nagios()
    assert line.startswith(
        "ZSNAPDB WARNING - shop compression: tank/mysql/data has compression=off; shop sync-disabled:"
    )
    assert line.endswith(" | unfit=0 warnings=2")


def test_no_finding_ends_the_line_or_begins_performance_data() -> None:
    line = DoctorView([UNFIT]).nagios()
    assert line.startswith("ZSNAPDB CRITICAL - shop server: it says a/b?and more; ")
    assert line.count("|") == 1
    assert "\n" not in line


def test_only_what_is_safe_and_not_silenced_is_fixed_and_each_command_is_the_hint_that_was_shown() -> None:
    bad = with_data(compression="off", sync="disabled", primarycache="metadata", checksum="off", atime="on")
    found = Diagnosis("shop", judge_advice(bad, ()), None)
    changes = safe_changes([found, found])
    assert {change.name for change in changes} >= {"compression", "checksum"}
    assert {change.name for change in changes}.isdisjoint({"sync", "primarycache"})
    assert len(changes) == len(set(changes))
    hints = {finding.hint.partition(";")[0] for finding in found.findings}
    assert {change.command for change in changes} <= hints
    silence = Silence("compression", "measured", GOOD.at.date())
    silenced = safe_changes([Diagnosis("shop", judge_advice(bad, [silence]), None)])
    assert "compression" not in {change.name for change in silenced}
    planned = DoctorView([found], planned=changes)
    assert "--fix would run: zfs set compression=lz4 tank/mysql/data" in planned.text()
    assert "zfs set checksum=on tank/mysql/data" in json.loads(planned.document())["planned"]
    assert "done: zfs set compression=lz4 tank/mysql/data" in DoctorView([FIT], fixed=changes).text()


def test_a_terminal_shows_the_words_of_the_plain_text() -> None:
    shown = [part for part in DoctorView([FIT, ADVISED, UNFIT]).parts() if not isinstance(part, str)]
    assert len(shown) == 3
    for part in shown:
        assert " ".join(part.text.split()) == " ".join(" ".join(cell for row in part.rows for cell in row).split())
