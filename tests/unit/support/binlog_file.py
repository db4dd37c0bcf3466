"""Simulated binlog files of both families, built event by event."""

from __future__ import annotations

import struct
import uuid
import zlib
from pathlib import Path

from zsnapdb.mysql.binlog.binlog_files import open_binlog
from zsnapdb.mysql.binlog.binlog_keys import NO_KEYS, BinlogKeys
from zsnapdb.mysql.binlog.events import MAGIC
from zsnapdb.mysql.binlog.tail import Tail, tail_of

UUID = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
QUERY, ROTATE, FORMAT, XID, INCIDENT, ROWS, GTID, ANONYMOUS, PREVIOUS, PAYLOAD, TAGGED, UNKNOWN = (
    2,
    4,
    15,
    16,
    26,
    30,
    33,
    34,
    35,
    40,
    42,
    250,
)
M_GTID, M_LIST, M_ENCRYPTION = 162, 163, 164

OWN, FOREIGN = "3b539809-e55b-11f1-8822-4e3318db0587", "aaaaaaaa-0000-0000-0000-0000000000ff"
TAGGED_EVENTS = {
    f"{OWN}:blue:2": (
        "02700000020276a66102129503b622c5032102449c66306d030a1d0204080608626c756508100a140c7f2e32bf12c1600610e1021283120b"
    ),
    f"{FOREIGN}:green_9:70000": (
        "027800000002a902a902a902a9020000000000000000000000fd0304031711060e677265656e5f3908140a180c7fca3bbf12c160061061041283120b"
    ),
}
"""Recorded GTID events with a tag, by GTID."""


class File:
    """A binlog built event by event, with checksums."""

    def __init__(self, in_use: bool = True, *, version: bytes = b"9.7.4", when: int = 0, server: int = 1) -> None:
        self.data = bytearray(MAGIC)
        self.marks: dict[str, int] = {}
        self.when = when
        body = struct.pack("<H50sIB", 4, version, 0, 19) + bytes(42) + b"\x01"
        self.add(FORMAT, body, server=server, flags=1 if in_use else 0)

    def add(self, kind: int, body: bytes = b"", *, server: int = 1, flags: int = 0) -> File:
        size = 19 + len(body) + 4
        head = struct.pack("<IBIIIH", self.when, kind, server, size, (len(self.data) + size) & 0xFFFFFFFF, flags)
        clear = head[:17] + b"\0\0" if kind == FORMAT else head
        self.data += head + body + struct.pack("<I", zlib.crc32(clear + body))
        return self

    def mark(self, name: str) -> File:
        self.marks[name] = len(self.data)
        return self

    def query(self, text: bytes) -> File:
        return self.add(QUERY, struct.pack("<IIBHH", 1, 0, 3, 0, 5) + b"\0" * 5 + b"app\0" + text)

    def gtid(self, number: int, *, committed: int = 0, original: int = 0) -> File:
        body = b"\x01" + UUID.bytes + struct.pack("<q", number) + b"\x02" + bytes(16)
        if original:
            body += (committed | 1 << 55).to_bytes(7, "little") + original.to_bytes(7, "little")
        elif committed:
            body += committed.to_bytes(7, "little")
        return self.add(GTID, body)

    def mariadb(self, sequence: int, *, domain: int = 0, server: int = 1, standalone: bool = False) -> File:
        return self.add(M_GTID, struct.pack("<QIB", sequence, domain, int(standalone)) + bytes(6), server=server)

    def previous(self, last: int, tag: str = "") -> File:
        if tag:
            word = 1 << 56 | 1 << 8 | 1
            name = bytes([len(tag) << 1]) + tag.encode()
            return self.add(PREVIOUS, struct.pack("<Q", word) + UUID.bytes + name + struct.pack("<Qqq", 1, 1, last + 1))
        return self.add(PREVIOUS, struct.pack("<Q", 1) + UUID.bytes + struct.pack("<Qqq", 1, 1, last + 1))

    def gtid_list(self, *entries: tuple[int, int, int]) -> File:
        return self.add(
            M_LIST, struct.pack("<I", len(entries)) + b"".join(struct.pack("<IIQ", *entry) for entry in entries)
        )

    def mariadb_transaction(self, sequence: int, *, domain: int = 0, server: int = 1) -> File:
        return self.mariadb(sequence, domain=domain, server=server).add(ROWS, bytes(50)).add(XID, bytes(8))

    def anonymous(self, *, committed: int = 0) -> File:
        """A transaction of a server with gtid_mode=OFF."""
        body = b"\x01" + bytes(16) + struct.pack("<q", 0) + b"\x02" + bytes(16) + committed.to_bytes(7, "little")
        return self.add(ANONYMOUS, body).query(b"BEGIN").add(ROWS, bytes(80)).add(XID, bytes(8))

    def transaction(self, number: int, *, committed: int = 0, size: int = 80) -> File:
        return self.gtid(number, committed=committed).query(b"BEGIN").add(ROWS, bytes(size)).add(XID, bytes(8))


def read_tail(path: Path, *, keys: BinlogKeys = NO_KEYS) -> Tail:
    """Return the tail of a binlog file, which is read completely."""
    with open_binlog(path, keys) as file:
        return tail_of(file, path.name)
