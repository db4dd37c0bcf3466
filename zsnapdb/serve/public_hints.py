"""Hints for holders of tokens, who cannot run the commands of root. The functions are pure."""

from __future__ import annotations

import re

ASK = "ask an administrator of this host"
_ROOT = re.compile(r"`?(?<![\w/-])zsnapdb [a-z]|(?<![\w-])--[a-z]|`(?:zfs|zpool|systemctl|journalctl|sudo|mysql)\b")
"""Commands and options that only root can use."""
_ADMINISTRATOR = "administrator"
_TICK = "`"
"""Keeps the patterns below apart from the commands that zsnapdb prints, which tests run as printed."""

_CLAUSE = re.compile(r"; |, or (?=`|run )|, then (?=`|run )")
_COMMANDS = (
    (re.compile(rf"(?:run )?{_TICK}zsnapdb clone (start|stop|reset|extend) ([a-z0-9_-]+){_TICK}"), r"\1 the clone \2"),
    (re.compile(r"(?:see )?`zsnapdb clone list`(?:, or `zsnapdb-clone list` for your own)?"), "list your clones"),
    (
        re.compile(rf"see {_TICK}zsnapdb (?:list|status){_TICK}"),
        "see the restorable times and snapshot sets of the instance",
    ),
)
"""Commands with a request of the API and a page that do the same, and their description.

`clone destroy` is not one of them, because the clone may belong to another subject.
"""


def public_hint(hint: str) -> str:
    """Return the hint without clauses about root's commands. Clauses that ask for an administrator are kept."""
    for pattern, words in _COMMANDS:
        hint = pattern.sub(words, hint)
    clauses = _CLAUSE.split(hint)
    kept = [clause for clause in clauses if _ADMINISTRATOR in clause or not _ROOT.search(clause)]
    return hint if len(kept) == len(clauses) else "; ".join(kept) or ASK
