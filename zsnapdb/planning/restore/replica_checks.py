"""Decides whether a server may return to an earlier point while replicas and other readers use its binlogs. Pure.

Readers are clients that read a server's binlogs. A server that returned to an earlier point lacks transactions that its
readers have applied. A MySQL server gets a new server_uuid, so GTIDs do not collide. Its replicas continue without an
error, although they differ permanently. A MariaDB server refuses a replica that connects by GTID, as its binlogs lack
this GTID (error 1236, with and without strict mode; observed with 11.8). In both families, a replica that connects by
file and offset may continue without an error. It stops only while the server's file with this name ends before the
offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.base.patterns import BackupId, Count, Moment, Port, ServerUuid, Words
from zsnapdb.planning.repository.host_backup_record import RecordPart

REBUILT_OPTION = "--replicas-will-be-rebuilt"
_SHOWN = 10
_LAST_PORT = 65535
_ATTEMPTS_KEPT = 8


@dataclass(frozen=True)
class RegisteredReplica:
    """A replica that registered with the server. It registers its server_id, its server_uuid (not on MariaDB), or both.

    The replica reports its address as `host` and `port`, if at all.
    """

    server_id: int | None = None
    server_uuid: str | None = None
    host: str = ""
    port: int = 0

    def describe(self) -> str:
        number = f"server_id {self.server_id}" if self.server_id is not None else ""
        uuid = f"server_uuid {self.server_uuid}" if self.server_uuid is not None else ""
        place = f"at {self.host}:{self.port}" if self.host else ""
        return " ".join(part for part in (number, uuid, place) if part)


@dataclass(frozen=True)
class ObservedReaders:
    """The current readers of a server's binlogs, as far as zsnapdb's account can see them.

    - `connections`: the reading connections, as user@host
    - `replicas`: the registered replicas among the readers
    - `members`: the other servers in the server's replication group or Galera cluster
    - `counted`: the number of readers that the server counts
    - `may_read`: the accounts that may read binlogs and are not administrators
    - `hidden`: the reason why zsnapdb cannot see connections; empty if it can
    - `unknown`: further facts that zsnapdb cannot see
    - `written`: the GTIDs that the server's binlogs contain or once contained
    """

    connections: tuple[str, ...] = ()
    replicas: tuple[RegisteredReplica, ...] = ()
    members: tuple[str, ...] = ()
    counted: int = 0
    may_read: tuple[str, ...] = ()
    hidden: str = ""
    unknown: tuple[str, ...] = ()
    written: str = ""

    @property
    def count(self) -> int:
        """The minimum number of readers."""
        return max(len(self.connections), len(self.replicas), self.counted) + len(self.members)

    def describe(self) -> str:
        """Return a text about the readers; empty if there are none."""
        if not self.count:
            return ""
        parts = [
            f"connections: {_listing(self.connections)}" if self.connections else "",
            f"replicas: {_listing([replica.describe() for replica in self.replicas])}" if self.replicas else "",
            f"members of its cluster: {_listing(self.members)}" if self.members else "",
        ]
        named = "; ".join(part for part in parts if part)
        return f"{self.count} reader(s) of its binlogs ({named or 'which cannot be named'})"


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@dataclass(frozen=True)
class ReaderFinding:
    """A finding about the readers of a server that returns to an earlier point.

    If `refuses` is set, the server may not return to the point.
    """

    text: str
    hint: str
    refuses: bool = False


def judge(seen: ObservedReaders | None, *, will_be_rebuilt: bool) -> tuple[ReaderFinding, ...]:
    """Return the findings about a planned return to an earlier point. If the server does not answer, `seen` is None.

    A connected replica causes a refusal, unless `will_be_rebuilt` is set. So does a server that cannot list its
    replicas. An account that may read binlogs causes only a warning, because possibly no replica uses it.
    """
    if seen is None:
        text = "the server does not answer, so it cannot be seen which replicas read its binlogs"
        return (ReaderFinding(text, "rebuild every replica that followed it"),)
    findings = []
    if seen.count:
        findings.append(_of_readers(seen, will_be_rebuilt=will_be_rebuilt))
    if seen.hidden:
        text = f"it cannot be seen whether replicas read the binlogs of the server: {seen.hidden}"
        hint = f"give the account the right, or add {REBUILT_OPTION} if every replica of the server will be rebuilt"
        findings.append(ReaderFinding(text, hint, refuses=not will_be_rebuilt))
    findings += [ReaderFinding(text, "grant the account that right to list them") for text in seen.unknown]
    if seen.may_read:
        text = f"replicas that do not run now may exist: {_listing(seen.may_read)} may read the binlogs"
        findings.append(ReaderFinding(text, "rebuild such replicas too before they follow the server again"))
    return tuple(findings)


def _of_readers(seen: ObservedReaders, *, will_be_rebuilt: bool) -> ReaderFinding:
    text = f"the server has {seen.describe()}"
    if will_be_rebuilt:
        return ReaderFinding(f"{text}; each must be rebuilt afterwards", "`zsnapdb doctor` names them until then")
    return ReaderFinding(
        f"{text}; they keep transactions that the server will lack, and follow it without an error",
        f"add {REBUILT_OPTION} if each of them will be rebuilt from the server afterwards; or shut them down",
        refuses=True,
    )


class NotedReader(RecordPart):
    """A recorded reader of a server that returned to an earlier point.

    The reader itself reported these values, so they are untrusted. The text `who` describes the reader for people.
    """

    server_uuid: ServerUuid | None = None
    server_id: Count | None = None
    port: Port | None = None
    who: Annotated[Words, Field(max_length=1000)]


class ReaderNote(RecordPart):
    """A record of a server's readers, which is written before the server's datasets are exchanged.

    The record applies while the server uses the datasets that the restore with the id `incarnation` created. The field
    `left_out` contains the GTIDs that the server had before the restore and lacks after it; it is empty if unknown.
    """

    incarnation: BackupId
    at: Moment
    readers: tuple[NotedReader, ...]
    left_out: Words = ""


class ReaderNotes(RecordPart):
    """All records of an instance's readers, oldest first."""

    notes: tuple[ReaderNote, ...] = ()

    def of(self, incarnation: str | None) -> ReaderNote | None:
        """Return the record that applies while the server uses the datasets of this incarnation."""
        return next((note for note in reversed(self.notes) if note.incarnation == incarnation), None)

    def with_note(self, note: ReaderNote, in_place: str | None) -> ReaderNotes:
        """Return these records with one more record of readers.

        The new record also contains the readers of the record that applies now, because these readers have not been
        rebuilt yet. It also contains the readers that this restore found in an earlier attempt, because they may only
        have lost their connection.
        """
        readers = {_key(reader): reader for reader in note.readers}
        for before in (self.of(note.incarnation), self.of(in_place)):
            for reader in before.readers if before is not None else ():
                readers.setdefault(_key(reader), reader)
        note = note.model_copy(update={"readers": tuple(readers.values())})
        others = [kept for kept in self.notes if kept.incarnation != note.incarnation]
        kept = [one for one in others if one.incarnation == in_place or one in others[-_ATTEMPTS_KEPT:]]
        return ReaderNotes(notes=(*kept, note) if note.readers else tuple(kept))


def _key(reader: NotedReader) -> tuple[str | None, int | None, str]:
    return (reader.server_uuid, reader.server_id, reader.who if reader.server_id is None else "")


def readers_to_record(seen: ObservedReaders) -> tuple[NotedReader, ...]:
    """Return the readers to record: registered replicas, members, and connections without a registered replica."""
    replicas = tuple(
        NotedReader(
            server_uuid=one.server_uuid,
            server_id=one.server_id,
            port=one.port if one.port <= _LAST_PORT else None,
            who=one.describe()[:1000],
        )
        for one in seen.replicas
    )
    # For a connection without a registered replica, only the account and the host are known.
    others = seen.connections if len(seen.connections) > len(replicas) else ()
    named = (*replicas, *(NotedReader(who=who[:1000]) for who in (*others, *seen.members)))
    missing = seen.count - len(named)
    unnamed = NotedReader(who=f"{missing} reader(s) that could not be named")
    return (*named, unnamed) if missing > 0 and not named else named


def beyond(flavour: Flavour, more: str, less: str) -> str:
    """Return the GTIDs in `more` that `less` lacks, in the server's format; empty if there are none.

    A MariaDB position contains only the newest GTID of each domain. So the result contains these GTIDs of `more` for
    the domains in which `more` is ahead. Raises ValueError if a GTID is malformed.
    """
    ahead, behind = parse_gtids(flavour, more), parse_gtids(flavour, less)
    if isinstance(ahead, GtidSet) and isinstance(behind, GtidSet):
        return str(ahead.minus(behind))
    assert isinstance(ahead, GtidPosition)
    assert isinstance(behind, GtidPosition)
    none = (0, 0)
    return str(GtidPosition({d: h for d, h in ahead.heads.items() if h[1] > behind.heads.get(d, none)[1]}))


@dataclass(frozen=True)
class QueriedReader:
    """A recorded reader that is a configured instance, with the GTIDs that it has but the server lacks, if known.

    A reader without such GTIDs was rebuilt.
    """

    instance: str
    lacking: str | None


def sentence(
    note: ReaderNote, reader: NotedReader, seen: ObservedReaders | None, asked: QueriedReader | None
) -> str | None:
    """Return the warning about a recorded reader; None if the server certainly has all the reader's transactions."""
    if asked is not None and asked.lacking == "":
        return None
    read = f"{reader.who} read the binlogs before the server was put back at {note.at:%Y-%m-%d %H:%M} UTC"
    if asked is not None and asked.lacking is not None:
        return f"instance {asked.instance}, {read}, and has transactions that the server lacks: {asked.lacking}"
    back = seen is not None and any(_is(reader, replica) for replica in seen.replicas)
    again = "; it reads them again, under the same identity" if back else ""
    may_have = f", of which it may have {note.left_out}" if note.left_out else ""
    return f"{read}; the server lacks what it wrote after the point{may_have}{again}"


def _is(reader: NotedReader, replica: RegisteredReplica) -> bool:
    if reader.server_uuid is not None:
        return reader.server_uuid == replica.server_uuid
    return reader.server_id is not None and reader.server_id == replica.server_id
