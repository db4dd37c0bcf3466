"""Judges the lifecycle rules of a bucket that change objects of the repository. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.planning.backup.fitness import FitnessFinding, warning


def judge_lifecycle(moving: Sequence[str], removing: Sequence[str]) -> list[FitnessFinding]:
    """Return a warning for each rule that removes stored objects, or moves them to an archive class.

    `moving` and `removing` contain the names of these rules.
    """
    removals = [
        warning(
            "lifecycle rule",
            f"the lifecycle rule {rule!r} of the bucket removes objects of the repository; backups that need them are"
            " then lost",
            "limit the rule to noncurrent versions, or to another prefix; `zsnapdb prune` removes expired backups",
        )
        for rule in removing
    ]
    moves = [
        warning(
            "archive class",
            f"the lifecycle rule {rule!r} of the bucket moves objects of the repository to an archive class; a restore"
            " then waits hours for their retrieval",
            "let the rule use GLACIER_IR, or another class with immediate reads",
        )
        for rule in moving
    ]
    return [*removals, *moves]
