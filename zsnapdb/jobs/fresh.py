"""Random things that a copy of a server gets: its id, the passwords of its accounts."""

from __future__ import annotations

import secrets

from pydantic import SecretStr


def fresh_server_id() -> int:
    """Return a random server id from the upper half, where hardly anybody numbers servers by hand."""
    return 2**31 + secrets.randbelow(2**31 - 1)


def fresh_password() -> SecretStr:
    """Return a new password; its end satisfies the rules of validate_password."""
    return SecretStr(secrets.token_urlsafe(18) + "-aA9")
