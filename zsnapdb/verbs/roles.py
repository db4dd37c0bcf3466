"""Who asks: the roles of tokens, and the groups of them that verbs name."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What the holder of a token is.

    viewer: reads instances and own clones. developer: has clones of its own. operator: may all with all clones.
    auditor: reads everything, changes nothing.
    """

    VIEWER = "viewer"
    DEVELOPER = "developer"
    OPERATOR = "operator"
    AUDITOR = "auditor"


ALL = frozenset(Role)
SEES_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})
CHANGES = frozenset({Role.DEVELOPER, Role.OPERATOR})
"""Also who may have words of a clone's data, such as a log or a difference: he may have its login."""
