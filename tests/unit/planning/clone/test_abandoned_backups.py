"""The repository's later backups show which earlier states production left."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.binlog_window import A, at
from zsnapdb.planning.clone.abandoned_backups import abandoned_backups


@dataclass(frozen=True)
class Volume:
    guid: int
    from_guid: int | None
    role: str = "data"
    dataset: str = "tank/data"
    send_flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stored:
    number: int
    base: int | None

    @property
    def backup_id(self) -> str:
        return f"b{self.number}"

    @property
    def volumes(self) -> tuple[Volume, ...]:
        return (Volume(self.number, self.base),)


@given(st.lists(st.tuples(st.sampled_from(["backup", "backup", "full", "back"]), st.integers(0, 9)), max_size=30))
def test_increment_shows_which_states_production_left(happenings: list[tuple[str, int]]) -> None:
    """A full backup after a rollback shows nothing until an increment skips what production lost."""
    stored: list[Stored] = []
    present: list[int] = []
    shown: set[str] = set()
    for happening, way in happenings:
        if happening == "back" and present:
            present = present[: way % len(present) + 1]
        elif happening in ("backup", "full"):
            base = present[-1] if present and happening == "backup" else None
            lost = [one.backup_id for one in stored if base is not None and one.number > base]
            stored.append(Stored(len(stored), base))
            present.append(stored[-1].number)
            shown.update(lost)
    found = abandoned_backups(stored, {})
    assert found == shown
    assert not stored or stored[-1].backup_id not in found


@pytest.mark.parametrize(
    ("gtids", "binlog", "is_left"),
    [
        (f"{A}:1-30", "binlog.000003", False),
        (f"{A}:1-15", "binlog.000003", True),
        (None, "binlog.000003", False),
        (None, "binlog.000001", True),
        (None, "other.000001", False),
    ],
)
def test_position_shows_state_that_newest_lacks(gtids: str | None, binlog: str, is_left: bool) -> None:
    earlier = at(20, f"{A}:1-20", "binlog.000002", name="b0")
    newest = at(30, gtids or "", binlog, name="b1")
    if gtids is None:
        earlier, newest = replace(earlier, gtids=None), replace(newest, gtids=None)
    found = abandoned_backups([Stored(0, None), Stored(1, None)], {"b0": earlier, "b1": newest})
    assert found == (frozenset({"b0"}) if is_left else frozenset())
