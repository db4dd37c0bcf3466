"""Error codes and exit codes are few, distinct and documented."""

from __future__ import annotations

from pathlib import Path

from zsnapdb import errors
from zsnapdb.errors import ZsnapdbError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, ZsnapdbError)]
README = (Path(__file__).parents[2] / "README.md").read_text()


def test_every_code_is_its_own() -> None:
    codes = [c.code for c in CLASSES]
    assert len(set(codes)) == len(codes)


def test_only_a_special_case_shares_the_exit_code_of_its_parent() -> None:
    own = [c for c in CLASSES if "exit_code" in vars(c)]
    assert len({c.exit_code for c in own}) == len(own)


def test_every_exit_code_stands_in_the_readme() -> None:
    for c in CLASSES:
        assert f"| {c.exit_code} |" in README, c


def test_an_error_prints_its_hint_on_a_line_of_its_own() -> None:
    assert str(ZsnapdbError("it broke", hint="mend it")) == "it broke\nhint: mend it"
    assert str(ZsnapdbError("it broke")) == "it broke"
