"""Random values for a copy of a server: its server id and the passwords of its accounts."""

from __future__ import annotations

import secrets

from pydantic import SecretStr


def fresh_server_id() -> int:
    """Return a random server id from the upper half of the range, which people rarely use."""
    return 2**31 + secrets.randbelow(2**31 - 1)


def fresh_password() -> SecretStr:
    """Return a new password. Its last characters satisfy validate_password and simple_password_check.

    Servers on copies have the password rules of their source, so there are several characters of each kind. MySQL
    accepts at most 32 characters for a replication source (refman 8.4, "CHANGE REPLICATION SOURCE TO").
    """
    return SecretStr(secrets.token_urlsafe(16) + "-._bB7cC8A")
