"""Roles of tokens, and the groups of roles that verbs name."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Role of the holder of a token.

    viewer: reads instances and own clones. developer: has its own clones. operator: has all rights on all clones.
    auditor: reads everything and changes nothing.
    """

    VIEWER = "viewer"
    DEVELOPER = "developer"
    OPERATOR = "operator"
    AUDITOR = "auditor"


ALL = frozenset(Role)
SEES_ALL = frozenset({Role.OPERATOR, Role.AUDITOR})
CHANGES = frozenset({Role.DEVELOPER, Role.OPERATOR})
"""Roles that may also read data of a clone, such as a log or a difference, because they may have its login."""
