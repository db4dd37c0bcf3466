"""Creates the files that give a guest with cloud-init a new identity (NoCloud), and an image with them. Pure.

The data source NoCloud reads `meta-data` and `user-data` from a file system with the label `cidata`, of the type
iso9660 or vfat (cloud-init's documentation, "NoCloud").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import StrEnum

from zsnapdb.base.errors import UsageError

LABEL = "cidata"
_BLOCK = 2048
_TABLES, _JOLIET_TABLES, _ROOT, _JOLIET_ROOT, _FIRST_FILE = 19, 21, 23, 24, 25
"""The block numbers of the path tables (two each), the root directories, and the first file."""
_DATE = bytes((126, 1, 1, 0, 0, 0, 0))
_NO_DATE = b"0" * 16 + b"\0"
_JOLIET_LEVEL_3 = b"%/E"


class GuestIdentity(StrEnum):
    """The source of a guest's new host name, machine-id and ssh host keys: cloud-init, or none."""

    NONE = "none"
    CLOUD_INIT = "cloud-init"


def guest_identity(text: str) -> GuestIdentity:
    """Return the `GuestIdentity` for this text. Raises UsageError if the text is invalid."""
    if text not in set(GuestIdentity):
        raise UsageError(f"{text[:80]!r} is not an identity method", hint="give --identity none or cloud-init")
    return GuestIdentity(text)


def refuse_no_host_name(names: tuple[str, ...]) -> None:
    """Raise UsageError if a name ends with a hyphen, because host names must not end with one (RFC 952)."""
    for name in names:
        if name.endswith("-"):
            raise UsageError(
                f"{name!r} is not a host name: it ends with a hyphen", hint="choose another --name-template"
            )


def seed_files(name: str, uuid: str) -> dict[str, bytes]:
    """Return the files, by file name, for a clone with this name and UUID.

    The instance-id is the UUID. A changed instance-id makes cloud-init replace the ssh host keys and set the host name.
    `bootcmd` runs at every boot, so `cloud-init-per` limits its command to one run.
    """
    meta = f"instance-id: {uuid}\nlocal-hostname: {name}\n"
    machine_id = "rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup"
    user = f"""#cloud-config
# zsnapdb made this for the clone {name}.
preserve_hostname: false
hostname: {name}
ssh_deletekeys: true
bootcmd:
  - [cloud-init-per, instance, zsnapdb-machine-id, sh, -c, "{machine_id}"]
"""
    return {"meta-data": meta.encode(), "user-data": user.encode()}


def image(files: Mapping[str, bytes]) -> bytes:
    """Return an ISO 9660 image with the files in its root. The same files always give the same bytes.

    The image contains the lower-case names unchanged in the primary directory and also in a Joliet directory (ECMA-119,
    sections 8 and 9; Joliet specification). Linux reads both directories. Each root directory is one block, which is
    enough for about forty names.
    """
    places, block = {}, _FIRST_FILE
    for name, content in sorted(files.items()):
        places[name] = (block, len(content))
        block += -(-len(content) // _BLOCK) or 1
    descriptors = [
        _descriptor(1, _ROOT, _TABLES, block, LABEL.ljust(32).encode(), b""),
        _descriptor(2, _JOLIET_ROOT, _JOLIET_TABLES, block, LABEL.ljust(16).encode("utf-16-be"), _JOLIET_LEVEL_3),
        b"\xffCD001\x01",
    ]
    tables = [struct.pack(f"{order}BBIHBB", 1, 0, root, 1, 0, 0) for root in (_ROOT, _JOLIET_ROOT) for order in "<>"]
    roots = [
        _directory(_ROOT, {name.encode(): place for name, place in places.items()}),
        _directory(_JOLIET_ROOT, {name.encode("utf-16-be"): place for name, place in places.items()}),
    ]
    head = b"".join(_padded(item) for item in (*descriptors, *tables, *roots))
    return b"\0" * (16 * _BLOCK) + head + b"".join(_padded(files[name]) for name in places)


def _padded(content: bytes) -> bytes:
    return content.ljust((-(-len(content) // _BLOCK) or 1) * _BLOCK, b"\0")


def _both(number: int, size: str = "I") -> bytes:
    """Return a number in both byte orders (ECMA-119, 7.2.3 and 7.3.3)."""
    return struct.pack(f"<{size}", number) + struct.pack(f">{size}", number)


def _record(name: bytes, block: int, size: int, flags: int) -> bytes:
    """Return a directory record with an even length (ECMA-119, 9.1)."""
    length = 33 + len(name) + (len(name) + 1) % 2
    fixed = bytes([length, 0]) + _both(block) + _both(size) + _DATE + bytes([flags, 0, 0]) + _both(1, "H")
    return (fixed + bytes([len(name)]) + name).ljust(length, b"\0")


def _directory(block: int, places: Mapping[bytes, tuple[int, int]]) -> bytes:
    itself = [_record(name, block, _BLOCK, 2) for name in (b"\0", b"\1")]
    return b"".join([*itself, *(_record(name, first, size, 0) for name, (first, size) in places.items())])


def _descriptor(kind: int, root: int, table: int, blocks: int, label: bytes, escapes: bytes) -> bytes:
    """Return a primary (kind 1) or supplementary (kind 2) volume descriptor (ECMA-119, 8.4 and 8.5)."""
    blank = b"\0 " if kind == 2 else b" "
    return b"".join(
        (
            bytes([kind]) + b"CD001\x01\0",
            blank * (32 // len(blank)),
            label,
            b"\0" * 8,
            _both(blocks),
            escapes.ljust(32, b"\0"),
            _both(1, "H") + _both(1, "H") + _both(_BLOCK, "H"),
            _both(10),
            struct.pack("<II", table, 0) + struct.pack(">II", table + 1, 0),
            _record(b"\0", root, _BLOCK, 2),
            blank * (623 // len(blank)) + b"\0" * (623 % len(blank)),
            _NO_DATE * 4,
            b"\x01\0",
        )
    )
