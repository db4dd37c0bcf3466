"""Addresses of repositories, as users write them: s3://bucket[/prefix] and file:///folder.

Stores take the parts as they are written. A character that a URL gives another meaning (`?`, `#`, `%`) is refused: it
would be cut off, or decoded by somebody else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STORE_ADDRESSES = {"s3://bucket[/prefix]": r"s3://[^/]+", "file:///folder": r"file:///"}
"""The address of each kind of store as users write it, and its pattern. `zsnapdb.store.open` has the stores."""

_ASCII = r"A-Za-z0-9._~!$&'()*+,;=:@ -"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True)
class StoreAddress:
    """A repository's address in parts. `bucket` is "" for a folder. `path` has no slash at its ends."""

    scheme: str
    bucket: str
    path: str

    @property
    def prefix(self) -> str:
        """The beginning of the keys in a bucket: "" or ending in a slash."""
        return f"{self.path}/" if self.path else ""


def parse_address(url: str) -> StoreAddress:
    """Return the parts of the address. ValueError says which part cannot be used."""
    if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("url must not contain an account or a password; use credentials_file")
    if not any(re.match(pattern, url) for pattern in STORE_ADDRESSES.values()):
        raise ValueError(f"url {url!r} is neither {' nor '.join(STORE_ADDRESSES)}")
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if scheme == "s3" and _BUCKET.fullmatch(bucket) is None:
        raise ValueError(
            f"url {url!r}: {bucket!r} is not the name of a bucket (letters, digits, dots, hyphens, underscores);"
            " set the host and port of the provider as s3.endpoint"
        )
    if bad := _unusable(path):
        raise ValueError(f"url {url!r} contains {bad!r}, which cannot be part of a repository's address")
    folders = path.removesuffix("/").split("/")
    if path and not {"", ".", ".."}.isdisjoint(folders):
        raise ValueError(f"url {url!r}: no folder in it may be empty, '.' or '..'")
    if scheme == "file" and not path:
        raise ValueError(f"url {url!r} names no folder")
    return StoreAddress(scheme, bucket, "/".join(folders))


def _unusable(path: str) -> str:
    """Return the first character that cannot be part of a path in an address; "" if there is none."""
    return next(
        (c for c in path if c != "/" and (not re.match(f"[{_ASCII}]", c) if c.isascii() else not c.isprintable())), ""
    )
