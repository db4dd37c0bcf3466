"""Whether a server can be started on a copy of the files of another one, by what is known of that server. Pure.

A backup is judged before it is made, so that none is called good that no plan of a restore would accept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import Flavour
from zsnapdb.planning.server_copy.identity import Access, PathMap, ServerIdentity, option_file

_SHOWN = 3
_SOMEBODY = ServerIdentity(
    server_id=1, port=None, folder="/zsnapdb", user="mysql", access=Access.ACCOUNTS, trusts_creators=False
)


def objections_to_files(tablespaces: Sequence[str], links: Sequence[str] = ()) -> tuple[str, ...]:
    """Return why a copy of the files would reach out of itself.

    `tablespaces` are the files that the data dictionary names by absolute paths, `links` the symbolic links of the data
    directory with absolute targets: a server on a copy would open the files of the source.
    """
    found = []
    if tablespaces:
        found.append(
            f"{len(tablespaces)} tablespace(s) have absolute paths in the data dictionary: {_listing(tablespaces)}"
        )
    if links:
        found.append(f"{len(links)} symbolic link(s) of the data directory have absolute targets: {_listing(links)}")
    return tuple(found)


HINT_FOR_FILES = (
    "move these tables into the data directory (rebuild them without DATA DIRECTORY): a server on a copy would open"
    " the source's files"
)


def objections_to_settings(
    flavour: Flavour, variables: Mapping[str, str], mountpoints: Collection[str], options: Sequence[str]
) -> tuple[str, ...]:
    """Return why a copy cannot have the places that the server's settings name; the copy's own settings are written.

    `variables` are those that a manifest records, `mountpoints` those of the volumes, `options` the lines of
    server.options.
    """
    try:
        option_file(flavour, variables, PathMap(tuple((point, point) for point in mountpoints)), _SOMEBODY, options)
    except PreflightError as error:
        return (error.message,)
    return ()


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
