"""Law: a change of a lease while the clock was ahead lasts as long as was asked, from when the clock is right."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.jobs.dataset_copies.properties import lease_values, read_lease
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.lease import CloneLease, Policy, changed, extended, protected, settled

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = 3600
POLICY = Policy(ttl=HOUR, max_ttl=30 * 24 * HOUR, max_protection=30 * 24 * HOUR, grace=0, idle=None, reap_limit=3)
Change = tuple[str, int, int]
"""The verb (extend, protect), its hours, and the hours since the change before."""

changes = st.lists(
    st.tuples(st.sampled_from(["extend", "protect"]), st.integers(1, 200), st.integers(0, 50)), max_size=5
)


def stored(lease: CloneLease) -> CloneLease:
    return read_lease(*lease_values(lease).values())


def after(lease: CloneLease, made: Sequence[Change], start: int, ahead: timedelta) -> tuple[CloneLease, int]:
    """Return the lease after the changes, and the hours that passed; the wall clock is ahead of the proven time."""
    hours = start
    for what, asked, pause in made:
        hours += pause
        proven = NOW + timedelta(hours=hours)
        time = RemovalTime(proven + ahead, proven, "a doubt" if ahead else "")
        change = extended if what == "extend" else protected
        lease = stored(changed(lease, change(lease, asked * HOUR, POLICY, time.latest), time))
    return lease, hours


def ends(lease: CloneLease) -> tuple[datetime, datetime]:
    return lease.expires, lease.protected_until or NOW


@given(changes, changes, st.integers(1, 20_000), st.integers(0, 20))
def test_no_change_made_ahead_lasts_longer_or_shortens(
    right: list[Change], wrong: list[Change], ahead: int, later: int
) -> None:
    begun = CloneLease(NOW + timedelta(hours=100))
    before, hours = after(begun, right, 0, timedelta())
    lease, hours = after(before, wrong, hours, timedelta(hours=ahead))
    now = NOW + timedelta(hours=hours + later)
    sure = RemovalTime(now, now)
    done = settled(lease, NOW, sure)
    if not lease.changed or not sure.is_from_future(lease.changed.at):
        assert done == lease
        return
    asked = [("extend", 0, 0), ("protect", 0, 0), *wrong]
    for end, old, what in zip(ends(done), ends(before), ("extend", "protect"), strict=True):
        longest = max(hours for kind, hours, _ in asked if kind == what)
        assert end <= max(old, now + timedelta(hours=longest))
    extensions = [hours for kind, hours, _ in wrong if kind == "extend"]
    assert done.expires >= before.expires
    assert not wrong or wrong[-1][0] == "protect" or done.expires >= now + timedelta(hours=extensions[-1])
    assert settled(done, NOW, sure) == done


@given(changes, st.integers(1, 20_000))
def test_a_clock_that_was_right_keeps_what_was_given(made: list[Change], off: int) -> None:
    """After a reboot the proven time is behind for a while; then the wall clock is believed."""
    begun = CloneLease(NOW + timedelta(hours=off + 100))
    lease, hours = after(begun, made, 0, timedelta(hours=off))
    wall = NOW + timedelta(hours=off + hours)
    assert settled(lease, NOW, RemovalTime(wall, wall)) == lease
    assert ends(lease) == ends(after(begun, made, off, timedelta())[0])


def test_an_older_record_of_a_lease_is_read() -> None:
    assert read_lease("2026-11-21T12:00:00Z", "no", "-") == CloneLease(NOW)
    for text in ("", "x", "2026-11-21T12:00:00Z", "2026-11-21T12:00:00Z x", "a b c", "a b c d"):
        assert read_lease("2026-11-21T12:00:00Z", "-", text) == CloneLease(NOW)
    far = read_lease("2026-11-21T12:00:00Z", "no", "9999-01-01T00:00:00Z x no")
    assert settled(far, NOW, RemovalTime(NOW, NOW)).expires == NOW
    assert settled(CloneLease(NOW), datetime(9999, 1, 1, tzinfo=UTC), RemovalTime(NOW, NOW)).expires < NOW
