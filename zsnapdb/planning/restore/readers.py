"""Who reads the binlogs of a server, and whether the server may be put back to an earlier point while they do. Pure.

A server that is put back lacks transactions that its readers have applied. MySQL has a new server_uuid then, so no
GTIDs clash, and no error is shown: the replicas follow on, and differ for good. MariaDB stops a replica that connects
by GTID, because its binlogs do not have that GTID any more (error 1236, in strict mode and without it; seen with 11.8).
A replica of either that connects by file and offset stops only while the file of that name ends before the offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.base.model import Flavour, parse_gtids
from zsnapdb.base.patterns import BackupId, Count, Moment, Port, ServerUuid, Words
from zsnapdb.planning.repository.host_record import RecordPart

REBUILT_OPTION = "--replicas-will-be-rebuilt"
_SHOWN = 10
_LAST_PORT = 65535
_ATTEMPTS_KEPT = 8


@dataclass(frozen=True)
class RegisteredReplica:
    """A replica that told the server who it is: by its server_id, its server_uuid (MariaDB has none), or both.

    `host` and `port` are what the replica reports, if it reports any.
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
class SeenReaders:
    """Who reads the binlogs of a server now, as far as the server shows it to the account of zsnapdb.

    `connections`: the connections that read, as user@host. `replicas`: those that told who they are; they are among the
    connections. `members`: the other servers of its replication group or Galera cluster. `counted`: how many readers
    the server's own counters know. `may_read`: accounts that may read and that no administrator needs.
    `hidden`: why the connections cannot be seen (empty: all are seen). `unknown`: what else cannot be seen.
    `written`: the GTIDs of what is in its binlogs or was.
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
        """How many readers there are at least."""
        return max(len(self.connections), len(self.replicas), self.counted) + len(self.members)

    def describe(self) -> str:
        """Return who reads, in words; empty if nobody is seen."""
        if not self.count:
            return ""
        parts = [
            f"connections: {_listed(self.connections)}" if self.connections else "",
            f"replicas: {_listed([replica.describe() for replica in self.replicas])}" if self.replicas else "",
            f"members of its cluster: {_listed(self.members)}" if self.members else "",
        ]
        named = "; ".join(part for part in parts if part)
        return f"{self.count} reader(s) of its binlogs ({named or 'which cannot be named'})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


@dataclass(frozen=True)
class ReaderFinding:
    """What is to be said about the readers of a server that is put back. `refuses`: it is not put back."""

    text: str
    hint: str
    refuses: bool = False


def judge(seen: SeenReaders | None, *, will_be_rebuilt: bool) -> tuple[ReaderFinding, ...]:
    """Return what is to be said before a server is put back. `seen` is None if the server does not answer.

    Refused: a reader is there, or nothing can tell whether one is; unless somebody said that all will be rebuilt. An
    account that may read refuses nothing: a reader that does not run now is only possible.
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
    findings += [ReaderFinding(text, "give the account that right if they should be named") for text in seen.unknown]
    if seen.may_read:
        text = f"replicas that do not run now may exist: {_listed(seen.may_read)} may read the binlogs"
        findings.append(ReaderFinding(text, "rebuild such replicas too before they follow the server again"))
    return tuple(findings)


def _of_readers(seen: SeenReaders, *, will_be_rebuilt: bool) -> ReaderFinding:
    text = f"the server has {seen.describe()}"
    if will_be_rebuilt:
        return ReaderFinding(f"{text}; each must be rebuilt afterwards", "`zsnapdb doctor` names them until then")
    return ReaderFinding(
        f"{text}; they keep what the server will lack, and follow it without an error",
        f"add {REBUILT_OPTION} if each of them will be made anew from the server afterwards; or end them",
        refuses=True,
    )


class NotedReader(RecordPart):
    """A reader of a server at the time when the server was put back. All is what the reader says, `who` for people."""

    server_uuid: ServerUuid | None = None
    server_id: Count | None = None
    port: Port | None = None
    who: Annotated[Words, Field(max_length=1000)]


class ReaderNote(RecordPart):
    """Who read the binlogs of a server when it was put back, noted before its datasets were exchanged.

    It counts while the datasets of that `incarnation`, a restore, are in the server's place. `left_out`: the GTIDs
    that the server had then and lacks now (empty: they are not known).
    """

    incarnation: BackupId
    at: Moment
    readers: tuple[NotedReader, ...]
    left_out: Words = ""


class ReaderNotes(RecordPart):
    """All notes of an instance, oldest first."""

    notes: tuple[ReaderNote, ...] = ()

    def of(self, incarnation: str | None) -> ReaderNote | None:
        """Return the note that counts while this incarnation is in place."""
        return next((note for note in reversed(self.notes) if note.incarnation == incarnation), None)

    def with_note(self, note: ReaderNote, in_place: str | None) -> ReaderNotes:
        """Return the notes with one more.

        The readers of the note that counts now are not rebuilt yet, and those that this restore saw earlier may only
        have lost their connection: they come along.
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


def noted(seen: SeenReaders) -> tuple[NotedReader, ...]:
    """Return what is noted of the readers: those that told who they are; if none did, their connections."""
    replicas = tuple(
        NotedReader(
            server_uuid=one.server_uuid,
            server_id=one.server_id,
            port=one.port if one.port <= _LAST_PORT else None,
            who=one.describe()[:1000],
        )
        for one in seen.replicas
    )
    # A connection without a replica that told its identity is known by its account and host alone.
    others = seen.connections if len(seen.connections) > len(replicas) else ()
    named = (*replicas, *(NotedReader(who=who[:1000]) for who in (*others, *seen.members)))
    missing = seen.count - len(named)
    unnamed = NotedReader(who=f"{missing} reader(s) that could not be named")
    return (*named, unnamed) if missing > 0 and not named else named


def beyond(flavour: Flavour, more: str, less: str) -> str:
    """Return the GTIDs in `more` that `less` lacks, as servers of the flavour print them; empty if there are none.

    MariaDB tells the newest GTID of each domain alone: those that are ahead are returned. ValueError if one is
    malformed.
    """
    ahead, behind = parse_gtids(flavour, more), parse_gtids(flavour, less)
    if isinstance(ahead, GtidSet) and isinstance(behind, GtidSet):
        return str(ahead.minus(behind))
    assert isinstance(ahead, GtidPosition)
    assert isinstance(behind, GtidPosition)
    none = (0, 0)
    return str(GtidPosition({d: h for d, h in ahead.heads.items() if h[1] > behind.heads.get(d, none)[1]}))


@dataclass(frozen=True)
class AskedReader:
    """A noted reader that is an instance of this configuration, and what it has that the server lacks (None: unknown).

    Such GTIDs are the proof: a reader that has none was rebuilt.
    """

    instance: str
    lacking: str | None


def sentence(note: ReaderNote, reader: NotedReader, seen: SeenReaders | None, asked: AskedReader | None) -> str | None:
    """Return what is to be said of a noted reader until it is rebuilt; None if it was asked, and has nothing more."""
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
