"""The environment of the programs that zsnapdb starts: that of zsnapdb, without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET = re.compile(r"PASS|SECRET|TOKEN|CREDENTIAL|_PWD$|KEY$|_KEY_ID$|PRIVATE_?KEY|DATABASE_URL|_DSN$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether the name of an environment variable says that its value is a secret, as AWS_SECRET_ACCESS_KEY does."""
    return _SECRET.search(name) is not None


def for_children(**more: str) -> Mapping[str, str]:
    """Return the environment of a program that needs no secret, with the variables `more`."""
    return {name: value for name, value in os.environ.items() if not is_secret_name(name)} | more
