"""What the client of a server in a guest prints is read by its form."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.mysql import vm_guest_client as questions

OWN = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_the_rows_of_a_client_in_batch_mode_have_their_values_back() -> None:
    assert questions.rows("a\\tb\tc\\\\n\\n\nNULL\t\n") == [["a\tb", "c\\n\n"], [None, ""]]
    assert questions.rows("") == []


def test_the_answers_of_both_families_are_read() -> None:
    mariadb = questions.variables(
        questions.rows("version\t11.8.3-MariaDB-deb12\nversion_comment\tDebian\nserver_id\t1\nlog_bin\tON\n")
    )
    listed = questions.recovered(
        Flavour.MARIADB,
        questions.rows(
            "b.000003\t4\tFormat_desc\t1\t256\tServer ver: 11.8.3\nb.000003\t256\tGtid_list\t1\t299\t[0-1-7,5-2-9]\n"
        ),
    )
    logs = questions.binlogs(questions.rows("b.000002\t4096\nb.000003\t330\n"))
    answer = questions.answered(mariadb, logs, listed, GtidPosition.parse("0-1-8,5-2-9"))
    assert (answer.flavour, answer.version, answer.server_uuid) == (Flavour.MARIADB, "11.8.3-MariaDB-deb12", None)
    assert (answer.recovered, answer.binlogs[-1]) == (GtidPosition.parse("0-1-7,5-2-9"), ("b.000003", 330))
    text = f"b.000003\t126\tPrevious_gtids\t1\t197\t{OWN}:1-5,\\n{OWN[:-1]}3:7\n"
    assert questions.recovered(Flavour.MYSQL, questions.rows(text)) == GtidSet.parse(f"{OWN}:1-5,{OWN[:-1]}3:7")
    assert questions.gtids_now(Flavour.MYSQL, questions.rows(f"{OWN}:1-5\n")) == GtidSet.parse(f"{OWN}:1-5")
    assert questions.gtids_now(Flavour.MYSQL, []) == GtidSet()
    assert questions.recovered(Flavour.MARIADB, questions.rows("b.1\t4\tGtid_list\t1\t9\t[]\n")) == GtidPosition()
    assert questions.recovered(Flavour.MYSQL, questions.rows("b.1\t4\tFormat_desc\t1\t9\tx\n")) is None


def test_strange_answers_are_refused() -> None:
    for text in ("", "version\t\n", f"version\t{'9' * 300}\n", "version\t9.7\x1b[2J\n"):
        with pytest.raises(DamagedError, match="cannot be read"):
            questions.variables(questions.rows(text))
    for text in ("", "b.000001\n", "b'; DROP\t7\n", "b.000001\t-7\n"):
        with pytest.raises(DamagedError, match="cannot be read"):
            questions.binlogs(questions.rows(text))
    with pytest.raises(DamagedError):
        questions.beginning("b'.000001")
    with pytest.raises(DamagedError):
        questions.gtids_now(Flavour.MYSQL, questions.rows("not gtids\n"))
    with pytest.raises(DamagedError):
        questions.answered({"version": "1", "server_uuid": "x"}, (), None, None)


def test_a_client_whose_server_is_not_up_yet_is_told_from_one_that_may_not_log_in() -> None:
    assert questions.is_not_up("ERROR 2002 (HY000): Can't connect to local server through socket")
    assert not questions.is_not_up("ERROR 1045 (28000): Access denied for user 'root'@'localhost'")
    assert questions.question("SELECT 1;\n") == "SELECT 1;\n"
