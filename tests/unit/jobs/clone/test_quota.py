"""How much a new clone may write: as configured or as asked for, never what production needs, and never by a member."""

from __future__ import annotations

import pytest

from zsnapdb.base.errors import UsageError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.clone import room
from zsnapdb.jobs.clone.delegation import COMMANDS, SERVED, parse
from zsnapdb.planning.clone.room import LEAST

GIB = 1 << 30


def settings(quota: int) -> Settings:
    return Settings.model_construct(instance={}, repository={}, clones=CloneSettings(quota=quota, free_floor=GIB))


@pytest.mark.parametrize(
    ("configured", "wanted", "free", "expected"),
    [
        (20 * GIB, None, 100 * GIB, 20 * GIB),
        (20 * GIB, 5 * GIB, 100 * GIB, 5 * GIB),
        (20 * GIB, 50 * GIB, 100 * GIB, 50 * GIB),
        (20 * GIB, 50 * GIB, 11 * GIB, 10 * GIB),
        (0, None, 100 * GIB, 0),
        (0, 5 * GIB, 100 * GIB, 5 * GIB),
    ],
)
def test_a_new_clone_gets_what_is_asked_for_as_far_as_the_pool_has_it(
    configured: int, wanted: int | None, free: int, expected: int
) -> None:
    assert room.of_new_clone(settings(configured), free, wanted) == expected


def test_less_than_a_server_needs_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs 64\.0 MiB"):
        room.of_new_clone(settings(GIB), 100 * GIB, LEAST - 1)


def test_a_member_of_the_group_names_no_quota_and_the_helper_does() -> None:
    words = ("create", "main", "mine", f"--quota={GIB}")
    with pytest.raises(UsageError, match="unknown option"):
        parse(words, "ann", COMMANDS)
    assert f"--quota={GIB}" in parse(words, "ci:shop/web", SERVED).words
    for hostile in ("0", "-1", "1GiB", "1 --admin", "9" * 20, "1e9"):
        with pytest.raises(UsageError, match="invalid value"):
            parse(("create", "main", "mine", f"--quota={hostile}"), "ci:shop/web", SERVED)
