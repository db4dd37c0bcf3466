"""The caller for whom a service runs a command: an account, a person by mail address, or a CI project."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator

SUBJECT_VARIABLE = "ZSNAPDB_SUBJECT"
"""Environment variable with the subject for whom a service runs a command."""
ISSUER_VARIABLE = "ZSNAPDB_SUBJECT_ISSUER"
"""Environment variable with the issuer of id tokens that authenticated the subject, if there was one."""
FORMS = "unix:ACCOUNT, user:MAIL-ADDRESS or ci:PROJECT/PATH"
_PATTERN = re.compile(
    r"unix:[A-Za-z_][A-Za-z0-9_.-]{0,31}"
    r"|user:[A-Za-z0-9][A-Za-z0-9._%+-]{0,39}@[A-Za-z0-9][A-Za-z0-9.-]{0,49}"
    r"|ci:[A-Za-z0-9][A-Za-z0-9._-]{0,39}(/[A-Za-z0-9][A-Za-z0-9._-]{0,39}){0,7}"
)
_ISSUER = re.compile(r"https://[!-~]{1,1000}")
_MOST = 100
"""Longest owner name of a clone (`jobs/copies/properties.py`)."""


def is_subject(text: str) -> bool:
    """Whether the text names a subject."""
    return len(text) <= _MOST and _PATTERN.fullmatch(text) is not None


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError(f"is not a subject: {FORMS}")
    return text


Subject = Annotated[str, AfterValidator(_subject)]


def is_same(one: str, other: str) -> bool:
    """Return whether both names count as one. An issuer may change the case of a mail address or a project."""
    return one.casefold() == other.casefold()


def current_subject() -> str:
    """Return the subject of this process from its environment; "" if there is none.

    Only root can set the variable for a command of root: `zsnapdb-clone` and the sudo rule do not pass it on.
    """
    given = os.environ.get(SUBJECT_VARIABLE, "")
    return given if is_subject(given) else ""


def current_issuer() -> str:
    """Return the issuer of id tokens that authenticated this process's subject; "" if there is none."""
    given = os.environ.get(ISSUER_VARIABLE, "")
    return given if current_subject() and _ISSUER.fullmatch(given) is not None else ""
