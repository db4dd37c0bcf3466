"""The operating system account of the servers of clones: whether it exists, and is apart from that of the source."""

from __future__ import annotations

import os
import pwd

from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import CloneSettings, ServerSettings
from zsnapdb.mysql.process import server

_MAKE = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin"


def check(source: ServerSettings, clones: CloneSettings) -> None:
    """Raise PreflightError unless servers of clones can run under their account.

    A configured account must exist and must not reach the files of the source by ordinary permissions: it is neither
    root nor the account of the source's server, and is in none of that account's own groups.
    """
    name = clones.server_user
    if name is None:
        server.account(source.user)
        return
    try:
        own = pwd.getpwnam(name)
    except KeyError:
        raise PreflightError(
            f"the account {name} of clones.server_user does not exist", hint=f"make it: `{_MAKE} {name}`"
        ) from None
    # A host that only has clones may lack the account of the source.
    others = [entry for entry in pwd.getpwall() if entry.pw_name in ("root", source.user)]
    if own.pw_uid in (0, *(other.pw_uid for other in others)):
        raise PreflightError(
            f"the account {name} of clones.server_user is that of {'root' if own.pw_uid == 0 else source.user}",
            hint=f"name an account of its own, such as one made by `{_MAKE} zsnapdb-clone`",
        )
    if {0, *(other.pw_gid for other in others)} & set(os.getgrouplist(name, own.pw_gid)):
        raise PreflightError(
            f"the account {name} of clones.server_user is in a group of {source.user} or root: it could read files of"
            " the source",
            hint=f"see `id {name}`, and take it out of these groups",
        )
