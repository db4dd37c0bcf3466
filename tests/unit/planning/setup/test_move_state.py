"""What an interrupted move may do next: in every state, nothing newer is replaced by something older."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.setup.facts import FoundFiles, FoundServer
from zsnapdb.planning.setup.move import (
    CopiesState,
    MoveFacts,
    MovePhase,
    MoveStep,
    OldState,
    ServedPlace,
    decide,
    may_go_back,
    planned_move,
)

FILES = FoundFiles("mysql.service", option_folder="/etc/mysql/conf.d")
MOVE = planned_move(
    FoundServer(1, "mysql", "/usr/sbin/mysqld", ("/s",), "/var/lib/mysql", Flavour.MYSQL, "ext4", files=FILES),
    FILES,
    "tank/mysql",
    (2, 3, 0),
)
FACTS = st.builds(
    MoveFacts,
    phase=st.sampled_from(MovePhase),
    is_switched=st.booleans(),
    runs=st.sampled_from(ServedPlace),
    copies=st.sampled_from(CopiesState),
    old=st.sampled_from(OldState),
    where=st.just("process 7 in /srv"),
    in_the_way=st.sampled_from(["", "/var/lib/mysql"]),
)
NEVER_SERVED = (CopiesState.EMPTY, CopiesState.UNFINISHED, CopiesState.UNCHANGED)


@given(facts=FACTS)
def test_nothing_is_copied_over_files_that_may_be_newer(facts: MoveFacts) -> None:
    if decide(MOVE, facts).step is MoveStep.COPY:
        assert facts.copies in NEVER_SERVED
        assert facts.phase is not MovePhase.STARTED
        assert facts.old is not OldState.GONE


@given(facts=FACTS)
def test_a_server_is_stopped_only_on_its_old_files(facts: MoveFacts) -> None:
    step = decide(MOVE, facts).step
    if facts.runs is ServedPlace.NEW:
        assert step is MoveStep.FINISH
    if facts.runs is ServedPlace.OTHER:
        assert step is None


@given(facts=FACTS)
def test_a_server_is_started_on_copies_only_if_they_were_finished_and_the_old_files_are_not_newer(
    facts: MoveFacts,
) -> None:
    if decide(MOVE, facts).step is MoveStep.START:
        assert facts.is_switched
        assert facts.runs is ServedPlace.NOWHERE
        assert facts.phase not in (MovePhase.PLANNED, MovePhase.COPIED)
        assert facts.old is not OldState.CHANGED or facts.phase is MovePhase.STARTED
        assert not facts.in_the_way


@given(facts=FACTS)
def test_the_old_files_come_back_only_if_the_copies_never_changed_and_nothing_runs_on_them(facts: MoveFacts) -> None:
    if may_go_back(facts):
        assert facts.copies is CopiesState.UNCHANGED
        assert facts.phase is MovePhase.SWITCHED
        assert facts.runs is not ServedPlace.NEW


@given(facts=FACTS)
def test_every_refusal_has_a_reason_and_a_hint(facts: MoveFacts) -> None:
    decision = decide(MOVE, facts)
    assert (decision.step is None) == bool(decision.why and decision.hint)


@given(facts=FACTS)
def test_a_server_that_may_use_both_places_is_not_given_up_by_a_line_that_parts_them(facts: MoveFacts) -> None:
    decision = decide(MOVE, facts)
    if facts.is_switched and facts.runs is ServedPlace.OLD and facts.copies is CopiesState.CHANGED:
        assert decision.step is None
        assert "zfs rename" not in decision.hint


def test_a_person_can_go_back_by_one_line_of_a_shell() -> None:
    assert MOVE.given_up(is_switched=True) == (
        "`systemctl stop mysql.service && zfs set mountpoint=none tank/mysql && zfs rename tank/mysql tank/mysql-unused"
        " && rm -df /etc/mysql/conf.d/zz-zsnapdb-zfs.cnf /var/lib/zsnapdb/setup/move.json /var/lib/mysql.on-zfs"
        " && rmdir /var/lib/mysql && mv -T /var/lib/mysql.before-zfs /var/lib/mysql"
        " && systemctl start mysql.service`"
    )
    assert MOVE.given_up(is_switched=False) == (
        "`zfs set mountpoint=none tank/mysql && zfs rename tank/mysql tank/mysql-unused"
        " && rm -df /etc/mysql/conf.d/zz-zsnapdb-zfs.cnf /var/lib/zsnapdb/setup/move.json /var/lib/mysql.on-zfs`"
    )
