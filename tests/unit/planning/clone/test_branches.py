"""The branches of a clone are recorded in one property; what stands there, and what a user names, is not believed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import ExistsError, PreflightError, UnknownNameError, UsageError, ZsnapdbError
from zsnapdb.planning.clone.branches import MOST, Branches, decode, is_branch_name, line_of

ONE, TWO = "20260101T000000Z-0001", "20260102T000000Z-0002"
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,59}", fullmatch=True).filter(is_branch_name)
COMMITS = st.from_regex(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}", fullmatch=True)


@st.composite
def branches(draw: st.DrawFn) -> Branches:
    heads = draw(st.dictionaries(NAMES, st.one_of(COMMITS, st.just("")), min_size=1, max_size=MOST))
    return Branches(draw(st.sampled_from(sorted(heads))), heads)


@given(branches())
def test_what_is_recorded_is_read_as_it_was_and_fits_into_a_property(known: Branches) -> None:
    assert decode(known.encode()) == known
    assert len(known.encode()) < 8191
    assert "\n" not in known.encode()


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        known = decode(text)
    except ValueError:
        return
    assert known.current in known.heads
    assert all(is_branch_name(name) for name in known.heads)


@pytest.mark.parametrize(
    "text",
    ["", "main", "main other=-", "main main=x", "main main=- main=-", "../x ../x=-", f"a b={ONE}", f"{ONE} {ONE}=-"],
)
def test_branches_that_are_recorded_wrongly_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"branch|head"):
        decode(text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, UsageError) for name in ("", "-x", "../x", ".x", "a b", "a=b", "a\n", "a\0", "ä", "x" * 61, ONE)),
        ("main", ExistsError),
    ],
)
def test_a_new_branch_has_a_name_of_its_own(name: str, kind: type[ZsnapdbError]) -> None:
    with pytest.raises(kind):
        Branches().with_branch(name, ONE)
    full = Branches("b0", {f"b{number}": ONE for number in range(MOST)})
    with pytest.raises(PreflightError, match="64 branches"):
        full.with_branch("feature/one", ONE)


def test_a_branch_is_begun_switched_to_moved_and_deleted() -> None:
    known = Branches().with_head(ONE).with_branch("feature/one", ONE).on("feature/one").with_head(TWO)
    assert (known.head, known.heads["main"]) == (TWO, ONE)
    with pytest.raises(PreflightError, match="is on branch"):
        known.without("feature/one")
    for unknown in (known.on, known.without):
        with pytest.raises(UnknownNameError, match="no branch"):
            unknown("nowhere")
    assert known.on("main").without("feature/one") == Branches("main", {"main": ONE})


@dataclass(frozen=True)
class Parent:
    parent: str


@given(st.dictionaries(st.integers(0, 9).map(str), st.integers(0, 12).map(lambda n: Parent(str(n)))), st.text())
def test_a_line_of_commits_ends_whatever_parents_are_recorded(commits: dict[str, Parent], head: str) -> None:
    for first in (*commits, head):
        line = line_of(first, commits)
        assert len(set(line)) == len(line)
        assert all(commits[later].parent == earlier for later, earlier in pairwise(line))
