"""Bucket credentials that are read again after a refusal, because an agent may have renewed them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import botocore.session
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials

from zsnapdb.base.errors import ConfigError
from zsnapdb.store.s3_parts import S3Credentials

_USED = "zsnapdb-credentials"
_REFUSED = (400, 401, 403)
"""HTTP statuses of refused credentials. An answer to HEAD has no more specific code."""


class RenewedCredentials(Credentials):
    """Credentials that sign requests until the provider refuses them. Then `read` returns newer ones.

    Threads may share it: a request is never signed with a mix of two credentials.
    """

    def __init__(self, first: S3Credentials, read: Callable[[], S3Credentials | None]) -> None:
        super().__init__(first.key_id, first.secret, first.token, "zsnapdb")
        self._now = first
        self._read = read
        self._lock = threading.Lock()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        now = self._now
        return ReadOnlyCredentials(now.key_id, now.secret, now.token, None)

    def load_credentials(self) -> RenewedCredentials:
        """Return these credentials: they are the only provider of their session."""
        return self

    def note_use(self, context: dict[str, Any], **_: object) -> None:
        """Record the credentials of a call before it starts (event handler)."""
        context[_USED] = self._now

    def is_renewed(
        self, response: tuple[Any, Any] | None, request_dict: dict[str, Any], attempts: int, **_: object
    ) -> int | None:
        """Return 0 (repeat immediately) if the refused credentials were renewed (event handler after an answer).

        None leaves the decision to the client. A request is repeated once.
        """
        if attempts > 1 or response is None or response[0].status_code not in _REFUSED:
            return None
        with self._lock:
            used = request_dict["context"].get(_USED)
            if used == self._now:
                try:
                    self._now = self._read() or self._now
                except ConfigError:
                    # The provider's refusal is a better error than that of a file that is just being written.
                    return None
            return 0 if used != self._now else None


def credentials_of_session(core: botocore.session.Session) -> S3Credentials | None:
    """Return the credentials that botocore finds on this host. None if it finds none, or renews them itself."""
    found = core.get_credentials()
    if found is None or isinstance(found, RefreshableCredentials):
        return None
    key_id, secret, token, *_ = found.get_frozen_credentials()
    return S3Credentials(key_id, secret, token) if key_id and secret else None


def use_credentials(core: botocore.session.Session, credentials: RenewedCredentials) -> None:
    """Let the session sign with these credentials."""
    core.register_component("credential_provider", cast(Any, credentials))


def watch_refusals(client: Any, credentials: RenewedCredentials) -> None:
    """Let the client repeat a refused request once if the credentials were renewed in the meantime."""
    client.meta.events.register("before-call.s3", credentials.note_use)
    client.meta.events.register_first("needs-retry.s3", credentials.is_renewed)
