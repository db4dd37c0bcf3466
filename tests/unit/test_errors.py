"""Error codes and exit codes are few, distinct and documented."""

from __future__ import annotations

import re

from zsnapdb.base import errors
from zsnapdb.base.errors import (
    CLOSED_PIPE,
    EXIT_CODES,
    INTERRUPTED,
    AmbiguousPointError,
    PreflightError,
    UnknownNameError,
    UsageError,
    ZsnapdbError,
)

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ZsnapdbError)]


def test_every_code_is_its_own() -> None:
    codes = [c.code for c in CLASSES]
    assert len(set(codes)) == len(codes)


def test_only_a_special_case_shares_the_exit_code_of_its_parent() -> None:
    # What the command line names and is not there, or fits several things, is a usage error whoever finds it.
    own = [c for c in CLASSES if "exit_code" in vars(c) and (c is UsageError or c.exit_code != UsageError.exit_code)]
    assert len({c.exit_code for c in own}) == len(own)
    assert {c for c in CLASSES if c.exit_code == UsageError.exit_code} == {
        UsageError,
        UnknownNameError,
        AmbiguousPointError,
    }


def test_the_tree_is_drawn_with_every_class_below_its_parent() -> None:
    above: dict[int, str] = {}
    drawn: dict[str, tuple[str, int]] = {}
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^    ([│├└─ ]*)(\w+) +(\d+)   ?\S", line):
            depth = len(match[1]) // 4
            above[depth] = match[2]
            drawn[match[2]] = (above.get(depth - 1, ""), int(match[3]))
    assert drawn == {
        c.__name__: (c.__bases__[0].__name__ if c is not ZsnapdbError else "", c.exit_code) for c in CLASSES
    }


def test_every_exit_code_has_its_meaning_in_one_table() -> None:
    assert {c.exit_code for c in CLASSES} | {0, INTERRUPTED, CLOSED_PIPE} == set(EXIT_CODES)


def test_the_end_of_a_command_has_the_code_of_its_error() -> None:
    ends = [PreflightError("x"), KeyboardInterrupt(), KeyError("x")]
    assert [errors.exit_code(end) for end in ends] == [4, 130, 1]
    assert [errors.error_class(end) for end in ends] == ["preflight", "interrupted", "internal"]


def test_an_error_prints_its_hint_on_a_line_of_its_own() -> None:
    assert str(ZsnapdbError("it broke", hint="mend it")) == "it broke\nhint: mend it"
    assert str(ZsnapdbError("it broke")) == "it broke"
