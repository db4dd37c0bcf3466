"""Each option is set by the variable that is named after it, and a variable that no option has is not ignored."""

from __future__ import annotations

import pytest
from typer.main import get_command

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import options
from zsnapdb.cli.app import app


def tree() -> object:
    return get_command(app)


def test_every_variable_is_named_after_its_option_and_its_command() -> None:
    found: dict[str, str] = {}
    for command in options.commands(tree()):
        for parameter in command.params:
            if isinstance(parameter.envvar, str):
                long = next(name for name in parameter.opts if name.startswith("--"))
                end = "_" + long.removeprefix("--").replace("-", "_").upper()
                assert parameter.envvar.endswith(end), (command.name, long, parameter.envvar)
                assert parameter.envvar not in found or parameter.envvar == "ZSNAPDB_CONFIG", found[parameter.envvar]
                assert not parameter.allow_from_autoenv
                found[parameter.envvar] = long
    assert len(found) > 250
    assert {found["ZSNAPDB_DRILL_ALL"], found["ZSNAPDB_BACKUP_WAIT"]} == {"--all", "--wait"}
    assert not options.OTHERS & (found.keys() - {"ZSNAPDB_CONFIG"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ZSNAPDB_BACKUP_WIAT", "ZSNAPDB_BACKUP_WAIT may be the right option"),
        ("ZSNAPDB_BAKCUP_WAIT", "ZSNAPDB_BACKUP_WAIT may be the right option"),
        ("ZSNAPDB_CONFG", "ZSNAPDB_CONFIG may be the right option"),
        ("ZSNAPDB_DRILL_SOMETHING", "lists the options"),
        ("ZSNAPDB_CLONE_CREATE_SOMETHING", "lists the options"),
    ],
)
def test_a_variable_that_no_option_has_is_refused(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        options.refuse_unknown({name: "1"}, tree)
    assert hint in str(refused.value.hint)


def test_variables_of_options_of_hooks_and_of_others_are_accepted() -> None:
    for name in (
        *options.OTHERS,
        "ZSNAPDB_BACKUP_WAIT",
        "ZSNAPDB_VM_BASE_CREATE_MEMORY",
        "ZSNAPDB_VERSION",
        "ZSNAPDBX_Y",
    ):
        options.refuse_unknown({name: "1"}, tree)
