"""All states of a server in order, with their times: the expected results of restores to points."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor

Rows = tuple[int, ...]
"""The numbers of a state's transactions, in order."""


@dataclass(frozen=True)
class Entry:
    """A state that started between two readings of the server's clock (seconds), by a commit or another event.

    `gtid` is that of the commit. `epoch` counts the histories; `file` and `end` are the commit's position in the
    binlog.
    """

    low: float
    high: float
    rows: Rows
    epoch: int
    gtid: str | None = None
    file: str = ""
    end: int = 0
    is_commit: bool = False


@dataclass
class LiveStates:
    """All states of one server. `whole_seconds`: its binlog has commit times in seconds."""

    whole_seconds: bool
    entries: list[Entry] = field(default_factory=lambda: [Entry(0.0, 0.0, (), 0)])

    @property
    def last(self) -> Entry:
        """The server's present state."""
        return self.entries[-1]

    def commit(self, entry: Entry) -> None:
        self.entries.append(entry)

    def split(self, rows: Rows, low: float, high: float) -> None:
        """Start another history with these rows."""
        self.entries.append(Entry(low, high, rows, self.last.epoch + 1))

    def at_time(self, moment: float) -> set[Rows]:
        """Return the possible states at a time of the server's clock; usually one.

        If the clock was set back, it showed the time more than once.
        """
        shown = self.shown(moment)
        untils = [self.shown(entry.high) for entry in self.entries[1:]] + [float("inf")]
        states = zip(self.entries, untils, strict=True)
        return {entry.rows for entry, until in states if self.shown(entry.low) <= shown < until}

    def shown(self, moment: float) -> float:
        """Return the time in the server's binlog for a commit at this moment."""
        return floor(moment) if self.whole_seconds else moment

    def with_gtid(self, gtid: str) -> set[Rows]:
        """Return the states directly after a commit with the GTID; several if the GTID was reused."""
        return {entry.rows for entry in self.entries if entry.gtid == gtid}

    def before_gtid(self, gtid: str) -> set[Rows]:
        """Return the states directly before a commit with the GTID."""
        return {entry.rows[:-1] for entry in self.entries if entry.gtid == gtid}

    def ever(self, rows: Rows) -> bool:
        """Whether the server ever had exactly these rows."""
        return any(entry.rows == rows for entry in self.entries)

    def named(self, gtid: str | None) -> str:
        """Describe the commits with a GTID: the clock, the epoch, the binlog position, the rows."""
        own = [one for one in self.entries if one.is_commit and one.gtid == gtid]
        return "; ".join(
            f"{one.low:.3f} to {one.high:.3f} epoch {one.epoch} {one.file}:{one.end} {len(one.rows)} rows"
            for one in own
        )

    def planned(self, gtid: str | None, committed: float, file: str, end: int) -> set[Rows]:
        """Return the states whose last commit is the one in a plan; the nearest in time if a GTID was reused."""
        commits = [entry for entry in self.entries if entry.is_commit]
        if gtid is not None:
            named = [entry for entry in commits if entry.gtid == gtid]
            if len({entry.rows for entry in named}) < 2:
                return {entry.rows for entry in named}
            # For a whole file a plan has its latest commit time. After a clock was set back, that is another commit's.
            exact = [entry for entry in named if (entry.file, entry.end) == (file, end)]
            commits = exact or named
            if len(exact) == 1:
                return {exact[0].rows}
        else:
            commits = [entry for entry in commits if (entry.gtid, entry.file, entry.end) == (None, file, end)]
        near = [entry for entry in commits if entry.low - 1.0 <= committed <= entry.high + 1.0]
        return {entry.rows for entry in near}
