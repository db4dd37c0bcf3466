"""Shows a clone's login again to the clone's owner, or sets a new password.

The password is stored only in the credentials file of the clone, which root and the server's account can read. The
server itself stores only a hash.
"""

from __future__ import annotations

import contextlib

from zsnapdb.base.errors import ServerError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events, uninterrupted
from zsnapdb.jobs.base.host import Host, fresh_password
from zsnapdb.jobs.clone import credentials, isolated_start, lifecycle, masking_requirement
from zsnapdb.jobs.clone.catalogue import locked_clone, ready, require_lease
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.mysql import accounts
from zsnapdb.planning.clone.isolation import ACCOUNT

_LOCK_SECONDS = 5
"""The time in seconds for which the change of the account waits for a lock that the clone's users hold."""


def known_login(settings: Settings, host: Host, name: str) -> Login:
    """Return the login of the clone; change nothing.

    Raises:
        PreflightError: the server is not running, or the lease of the clone has ended
        ServerError: the credentials file is lost
    """
    info = ready(settings, host, name)
    require_lease(host, info)
    return lifecycle.login(settings, host, name)


def new_login(settings: Settings, host: Host, name: str, events: Events) -> Login:
    """Set a new password for the account of the clone's users, and return the login.

    The account is created again with the clone's rights. Its sessions are ended before and after this step, so that no
    session that used the former password remains. Files of `zsnapdb-clone login` with the former password are removed.

    Raises:
        PreflightError: the server is not running, or the lease of the clone has ended
        ServerError: a session does not end, or another session holds a lock
    """
    with locked_clone(settings, host, name) as info:
        require_lease(host, info)
        masking_requirement.refuse_unmasked(settings, info)
        lifecycle.require_running(info)
        with lifecycle.session(info) as session, uninterrupted(events.warn):
            accounts.end_others(session, ACCOUNT)
            accounts.wait_briefly_for_locks(session, _LOCK_SECONDS)
            clone, password = lifecycle.server_of(settings, info), fresh_password()
            isolated_start.make_users(session, clone, password)
            credentials.write(info.client_file, password, info.bind_address, info.port, clone.copy.settings.user)
            with contextlib.suppress(ServerError):
                # The session was killed. It ends when its transaction has been rolled back.
                accounts.end_others(session, ACCOUNT)
        for known in {info.label, info.id}:
            lifecycle.forget_login(known)
        return Login(info.host, info.client_port, info.process.socket, ACCOUNT, password, info.bind_address)
