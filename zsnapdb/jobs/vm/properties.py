"""The ZFS user properties that record everything that is known of a base and of a machine, and their datasets.

A base and a machine are each an anchor (a dataset without files) and below it a volume for each disk, named as the
disk's target: `<home>/bases/NAME/vda`, `<home>/machines/NAME/vda`. All properties are set locally on the anchor; each
volume carries the mark with the name.
"""

from __future__ import annotations

import base64
import zlib

from zsnapdb.base.errors import DamagedError, PreflightError
from zsnapdb.base.model import PROPERTY
from zsnapdb.zfs.owned import Mark

BASE_PROPERTY = f"{PROPERTY}:vm-base"
"""On the anchor and on every volume of a base, local: its name.

On the anchor of a machine: the base it is of, or INSTANCE@BACKUP.
"""
MACHINE_PROPERTY = f"{PROPERTY}:vm"
"""On the anchor and on every volume of a machine, local: its name."""
UUID_PROPERTY = f"{PROPERTY}:vm-uuid"
"""The UUID of the machine's domain."""
NETWORK_PROPERTY = f"{PROPERTY}:vm-network"
GRADE_PROPERTY = f"{PROPERTY}:vm-grade"
"""On the anchor of a machine: the grade of the backup that it was cloned from. Not set if it was a base."""
IDENTITY_PROPERTY = f"{PROPERTY}:vm-identity"
"""Who gives the guest an identity of its own: none or cloud-init."""
DOMAIN_PROPERTY = f"{PROPERTY}:vm-domain"
"""The XML of the base's domain, compressed."""
MADE_OF_PROPERTY = f"{PROPERTY}:vm-made-of"
"""On the anchor of a base: the image or the domain that it was made from."""

BASE_SNAPSHOT = "zsnapdb-base"
"""The snapshot of a base's volumes; clones are made from it."""
START_SNAPSHOT = "zsnapdb-start"
"""The snapshot of a machine's volumes before its first start; a reset goes back to it."""
_PROPERTY_BYTES = 8000
"""A user property holds 8191 bytes (zfsprops(7))."""


def base_mark(name: str) -> Mark:
    """Return the mark of every dataset of the base."""
    return Mark(BASE_PROPERTY, name)


def machine_mark(name: str) -> Mark:
    """Return the mark of every dataset of the machine."""
    return Mark(MACHINE_PROPERTY, name)


def encode_domain(xml: str) -> str:
    """Return the XML as the text of a property. PreflightError if it is too long for one."""
    text = base64.b64encode(zlib.compress(xml.encode(), 9)).decode()
    if len(text) > _PROPERTY_BYTES:
        raise PreflightError(
            f"the XML of the domain is too long: {len(text)} bytes when compressed, at most {_PROPERTY_BYTES}",
            hint="remove what the base does not need, such as descriptions, from the domain",
        )
    return text


def decode_domain(text: str, where: str) -> str:
    """Return the XML that the property holds. DamagedError names `where` if it cannot be read."""
    try:
        unpacked = zlib.decompressobj()
        return unpacked.decompress(base64.b64decode(text, validate=True), 1 << 20).decode()
    except (ValueError, zlib.error) as error:
        raise DamagedError(f"{DOMAIN_PROPERTY} of {where} cannot be read", hint="make the base again") from error
