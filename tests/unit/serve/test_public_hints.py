"""Hints that reach holders of tokens name no command of root, whichever error the hints belong to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.unit.test_layering import MODULES
from zsnapdb.serve.helper_messages import FailureAnswer, RefusedRequest, no_such, problem_of, require
from zsnapdb.serve.public_hints import ASK, public_hint
from zsnapdb.serve.roles import CloneOwnership, Role, VerbKind, decide

COMMAND = re.compile(r"`zsnapdb [a-z]|(?<![\w-])--[a-z]")


def hints() -> Iterator[str]:
    """Yield every hint in the source; each value in it is `x`."""
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    yield node.value.value
                elif isinstance(node.value, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.value.values
                    )


HINTS = sorted({*hints()} - {""})


def test_no_hint_for_a_subject_names_a_command_of_root() -> None:
    assert len(HINTS) > 500
    for hint in HINTS:
        shown = problem_of(FailureAnswer(code="x", message="x", hint=hint, exit_code=1)).hint
        assert shown
        named = [one for one in shown.split("; ") if COMMAND.search(one) and "administrator" not in one]
        assert not named, (hint, shown)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("run `zsnapdb clone start small`", "start the clone small"),
        ("see `zsnapdb list`", "see the restorable times and snapshot sets of the instance"),
        ("`--to x` restores that backup alone", ASK),
        ("choose another name, or run `zsnapdb clone destroy dev2`", "choose another name"),
        ("choose another name; run `zsnapdb reap`", "choose another name"),
        ("extend its lease first, for example by 1h", "extend its lease first, for example by 1h"),
        (
            "run `zsnapdb clone stop ci`, then `zsnapdb clone start ci` for a new password",
            "stop the clone ci, then start the clone ci for a new password",
        ),
    ],
)
def test_public_hint_keeps_what_a_subject_can_do(hint: str, expected: str) -> None:
    assert public_hint(hint) == expected


def test_operator_without_login_is_not_sent_for_another_role() -> None:
    decision = decide(Role.OPERATOR, VerbKind.CLONE_LOGIN, CloneOwnership.OTHERS)
    with pytest.raises(RefusedRequest, match="only the owner") as refused:
        require(decision, "clone", "mine")
    assert refused.value.failure.hint == "ask the owner of the clone, or create a clone of your own"
    assert "GET /api/v1/clones" in no_such("clone", "x").failure.hint
