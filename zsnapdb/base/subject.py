"""Somebody on whose behalf a service runs a command: an account, a person by mail address, or a project of a CI."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator

SUBJECT_VARIABLE = "ZSNAPDB_SUBJECT"
"""The environment variable by which a service that works for others says for whom it runs a command."""
ISSUER_VARIABLE = "ZSNAPDB_SUBJECT_ISSUER"
"""The environment variable that says who vouched for that subject, if it was an issuer of id tokens."""
FORMS = "unix:ACCOUNT, user:MAIL-ADDRESS or ci:PROJECT/PATH"
_PATTERN = re.compile(
    r"unix:[A-Za-z_][A-Za-z0-9_.-]{0,31}"
    r"|user:[A-Za-z0-9][A-Za-z0-9._%+-]{0,39}@[A-Za-z0-9][A-Za-z0-9.-]{0,49}"
    r"|ci:[A-Za-z0-9][A-Za-z0-9._-]{0,39}(/[A-Za-z0-9][A-Za-z0-9._-]{0,39}){0,7}"
)
_ISSUER = re.compile(r"https://[!-~]{1,1000}")
_MOST = 100
"""The longest owner of a clone (`jobs/copies/properties.py`)."""


def is_subject(text: str) -> bool:
    """Whether the text names a subject."""
    return len(text) <= _MOST and _PATTERN.fullmatch(text) is not None


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError(f"is no subject: {FORMS}")
    return text


Subject = Annotated[str, AfterValidator(_subject)]


def current_subject() -> str:
    """Return the subject for whom this process runs, as its environment says; "" if it says none.

    Only root can give a variable to a command that runs as root: `zsnapdb-clone` and the rule of sudo pass none on.
    """
    given = os.environ.get(SUBJECT_VARIABLE, "")
    return given if is_subject(given) else ""


def current_issuer() -> str:
    """Return the issuer of id tokens that vouched for the subject of this process; "" if its environment says none."""
    given = os.environ.get(ISSUER_VARIABLE, "")
    return given if current_subject() and _ISSUER.fullmatch(given) is not None else ""
