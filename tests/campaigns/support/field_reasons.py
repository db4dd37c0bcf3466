"""Refusals of the campaign `field`: causes that a round knows to be true of its server and host."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.campaigns.support.field_callers import Calls
from tests.campaigns.support.field_host import Mounting, Site
from tests.campaigns.support.field_truth import Truth

REFUSED = (3, 4, 8)
"""Exit codes of a refusal before any change."""


@dataclass(frozen=True)
class Facts:
    """A round's knowledge of its server and host. `drift` are the settings that changed between backup and point."""

    site: Site
    calls: Calls
    truth: Truth
    drift: tuple[str, ...]


@dataclass(frozen=True)
class Reason:
    """A cause of a refusal: its text in the message, the verbs that it stops, and whether it is true."""

    name: str
    words: str
    verbs: tuple[str, ...]
    is_true: Callable[[Facts], bool]


_EVERY = ("backup", "clone", "drill", "query", "rescue", "restore", "point", "rewind")
_REPLAY = ("point", "query", "rescue", "rewind", "clone")
REASONS: tuple[Reason, ...] = (
    Reason(
        "redo log is not flushed at commit",
        r"innodb_flush_log_at_trx_commit",
        ("backup", "snapshot"),
        lambda facts: facts.truth.variables.get("innodb_flush_log_at_trx_commit") == "0",
    ),
    Reason(
        "mount namespace of the command",
        r"namespace|container",
        _EVERY,
        lambda facts: facts.calls.has_own_mounts,
    ),
    Reason(
        "legacy mounts",
        r"legacy",
        ("rewind",),
        lambda facts: facts.site.mounting is Mounting.LEGACY,
    ),
    Reason(
        "compressed pages past the ARC",
        r"direct=disabled",
        ("rewind",),
        lambda facts: any("page_compressed" in shown.lower() for shown in facts.truth.objects.values()),
    ),
    Reason(
        "the default engine was another one between backup and point, or the server left it out of its binlog",
        r"another storage engine than|without the options of the table",
        _REPLAY,
        lambda facts: (
            "default_storage_engine" in facts.drift or "ANSI" in facts.truth.variables.get("sql_mode", "").split(",")
        ),
    ),
)
"""All valid refusals. Any other one, or one whose cause is not true of the round, is a fault."""


def judge(verb: str, code: int, message: str, facts: Facts) -> str | None:
    """Return the true reason of a refusal, or None."""
    if code not in REFUSED:
        return None
    for reason in REASONS:
        if verb in reason.verbs and re.search(reason.words, message, re.IGNORECASE) and reason.is_true(facts):
            return reason.name
    return None
