"""Table maps and row events, built byte by byte, and their compressed forms."""

from __future__ import annotations

import struct
import zlib

import zstandard

from tests.unit.support.binlog_file import PAYLOAD, QUERY, File

TABLE_MAP, WRITE_V1, UPDATE_V1, DELETE_V1, WRITE, UPDATE, DELETE, PARTIAL = 19, 23, 24, 25, 30, 31, 32, 39
COMPRESSED_WRITE_V1 = 166
LONG, VARCHAR, JSON = 3, 15, 245


def packed(number: int) -> bytes:
    return bytes([number]) if number < 251 else b"\xfc" + struct.pack("<H", number)


def table(
    number: int = 7, schema: bytes = b"app", name: bytes = b"t", types: bytes = b"", details: bytes = b""
) -> bytes:
    """The body of a table map: by default an INT and a VARCHAR(50)."""
    types, details = types or bytes([LONG, VARCHAR]), details or struct.pack("<H", 200)
    return (
        number.to_bytes(6, "little")
        + bytes(2)
        + packed(len(schema)) + schema + b"\0"
        + packed(len(name)) + name + b"\0"
        + packed(len(types)) + types
        + packed(len(details)) + details
        + b"\xff"
    )  # fmt: skip


def value(number: int, text: bytes | None) -> bytes:
    """A row of that table: None is NULL."""
    if text is None:
        return b"\x02" + struct.pack("<i", number)
    return b"\0" + struct.pack("<i", number) + bytes([len(text)]) + text


def rows(data: bytes, *, kind: int = WRITE, number: int = 7, width: int = 2, ends: bool = True) -> bytes:
    """The body of a row event with all columns."""
    extra = struct.pack("<H", 2) if kind in (WRITE, UPDATE, DELETE, PARTIAL) else b""
    present = bytes([(1 << width) - 1]) * (2 if kind in (UPDATE, UPDATE_V1, PARTIAL) else 1)
    return number.to_bytes(6, "little") + struct.pack("<H", int(ends)) + extra + packed(width) + present + data


def compressed(data: bytes) -> bytes:
    """Bytes as MariaDB compresses them."""
    return b"\x82" + struct.pack(">H", len(data)) + zlib.compress(data)


def payload(*events: tuple[int, bytes], plain: bool = False) -> bytes:
    """The body of a payload with these events."""
    inner = b"".join(struct.pack("<IBIIIH", 100, kind, 1, 19 + len(body), 0, 0) + body for kind, body in events)
    data = inner if plain else zstandard.ZstdCompressor().compress(inner)
    fields = b"\x02" + (b"\x03\xfc\xff\0" if plain else b"\x01\0")
    return b"\x01\x04\xfd" + len(data).to_bytes(3, "little") + fields + b"\0" + data


def begin() -> tuple[int, bytes]:
    return QUERY, struct.pack("<IIBHH", 1, 0, 3, 0, 0) + b"app\0BEGIN"


def transaction(file: File, number: int, *events: tuple[int, bytes]) -> File:
    """A MySQL transaction in row format."""
    file.gtid(number, committed=number * 1_000_000).query(b"BEGIN")
    for kind, body in events:
        file.add(kind, body)
    return file.add(16, bytes(8))


def packed_transaction(file: File, number: int, *events: tuple[int, bytes], plain: bool = False) -> File:
    """A MySQL transaction in a payload."""
    return file.gtid(number, committed=number * 1_000_000).add(
        PAYLOAD, payload(begin(), *events, (16, bytes(8)), plain=plain)
    )


def every_form() -> File:
    """MySQL transactions with rows and statements in every form, also in payloads and compressed as by MariaDB."""
    row = value(1, b"one") + value(2, None)
    document = b"\0" + struct.pack("<i", 1) + struct.pack("<I", 3) + b"{1}"
    forms: list[tuple[tuple[int, bytes], ...]] = [
        ((TABLE_MAP, table()), (kind, rows(row, kind=kind)))
        for kind in (WRITE_V1, UPDATE_V1, DELETE_V1, WRITE, UPDATE, DELETE)
    ]
    forms.append(
        (
            (TABLE_MAP, table(types=bytes([LONG, JSON]), details=b"\x04")),
            (PARTIAL, rows(document + b"\1\1" + document, kind=PARTIAL)),
        )
    )
    file = File().previous(5)
    for number, events in enumerate(forms, 6):
        packed_transaction(transaction(file, number, *events), number + 20, *events, plain=number % 2 == 0)
    head = struct.pack("<IIBHH", 1, 0, 3, 0, 0)
    squeezed = (COMPRESSED_WRITE_V1, rows(b"", kind=WRITE_V1) + compressed(row))
    query = (165, head + b"app\0" + compressed(b"DELETE FROM t"))
    load = (18, head + bytes(13) + b"app\0LOAD DATA")
    return transaction(file, 50, (29, b"\5DELETE"), (160, b"DELETE"), (TABLE_MAP, table()), squeezed, query, load)
