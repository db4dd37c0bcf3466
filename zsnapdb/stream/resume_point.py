"""Where an interrupted `zfs receive -s` stopped, as the kernel says in the property receive_resume_token.

Source: get_receive_resume_token_impl in module/zfs/dsl_dataset.c of OpenZFS: "1-CHECKSUM-SIZE-HEX", where HEX is a
name-value list, compressed with zlib. save_resume_state in module/zfs/dmu_recv.c says what its numbers mean.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

from zsnapdb.base.errors import DamagedError
from zsnapdb.stream import nvlist

_TOKEN = re.compile(r"1-[0-9a-f]{1,16}-([0-9a-f]{1,8})-((?:[0-9a-f]{2})+)")
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class ResumePoint:
    """The last record that was received: the OBJECT record of `object`, or its WRITE record at `offset` (bytes).

    `received` is about how many bytes of the stream were received: those of the record are among them, and up to a few
    MiB after it may be. `from_guid` is 0 for a full stream.
    """

    object: int
    offset: int
    received: int
    to_guid: int
    from_guid: int

    @property
    def key(self) -> tuple[int, int]:
        """The place of the record among the records that have one, which a stream has in this order."""
        return self.object, self.offset


def parse_token(token: str) -> ResumePoint:
    """Return the point that a resume token of ZFS names. DamagedError if it is in a form that is not known."""
    matched = _TOKEN.fullmatch(token)
    try:
        if matched is None or not 0 < int(matched[1], 16) <= _MOST_BYTES:
            raise ValueError("it has another form")
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(bytes.fromhex(matched[2]), _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("it was cut")
        listed = nvlist.read(packed)
        numbers = {name: value for name, value in listed.items() if isinstance(value, int)}
        return ResumePoint(
            object=numbers["object"],
            offset=numbers["offset"],
            received=numbers["bytes"],
            to_guid=numbers["toguid"],
            from_guid=numbers.get("fromguid", 0),
        )
    except (ValueError, KeyError, zlib.error, struct.error) as error:
        raise DamagedError(
            f"the resume token of ZFS cannot be read: {error}",
            hint="check whether OpenZFS is newer than this zsnapdb supports",
        ) from error
