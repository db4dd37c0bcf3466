"""The subject for whom root runs this command: limits of subjects count what the command makes to him.

Only root can give a variable to a command that runs as root: `zsnapdb-clone` and the rule of sudo pass none on.
"""

from __future__ import annotations

import os

from zsnapdb.base import subject
from zsnapdb.jobs.copies.properties import owner_text

CAUSER_VARIABLE = "ZSNAPDB_CAUSED_BY"
"""The environment variable with the account for which `zsnapdb-clone` runs a command."""


def current_causer() -> str:
    """Return the subject of this process, as a copy names its owner; "" for an administrator.

    PreflightError if the environment names a subject that no copy can name: he is no administrator.
    """
    given = os.environ.get(CAUSER_VARIABLE) or os.environ.get(subject.SUBJECT_VARIABLE)
    return owner_text(given) if given is not None else ""
