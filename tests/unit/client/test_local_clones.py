"""Programs get clones by the commands of the host, whose answers are believed as far as their documents go."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from zsnapdb.client.clones import CloneCommandError, LocalClones
from zsnapdb.client.models import ReachableClone

CLONE = {"name": "mine", "id": "main-3a", "instance": "main", "backup_id": "x", "port": 23070, "masked": False}
CREATED = {"kind": "clone", "clone": CLONE, "user": "zsnapdb_clone", "password": "p/w@", "of_pool": True, "new": 1}


@pytest.fixture
def clones(tmp_path: Path) -> LocalClones:
    """Commands that a script answers: it notes its words, and prints what the test wrote for the verb."""
    script = tmp_path / "script.py"
    script.write_text(
        "import pathlib, sys\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "with open(folder / 'asked', 'a') as file: file.write(' '.join(sys.argv[1:]) + '\\n')\n"
        "for line in sys.stdin if sys.argv[1] == 'keep' else ():\n"
        "    with open(folder / 'asked', 'a') as file: file.write('held: ' + line)\n"
        "    print((folder / 'reset').read_text().partition('\\n')[2], flush=True)\n"
        "code, _, text = (folder / sys.argv[1]).read_text().partition('\\n')\n"
        "print(text)\n"
        "sys.exit(int(code))\n"
    )
    for verb, document in (
        ("create", CREATED),
        ("reset", {"way": "undo", "undone": 2, "reason": None}),
        ("keep", {}),
        ("destroy", {}),
    ):
        answers(tmp_path, verb, document)
    return LocalClones((sys.executable, str(script)))


def answers(folder: Path, verb: str, document: object, code: int = 0) -> None:
    (folder / verb).write_text(f"{code}\n{json.dumps(document)}")


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def test_login_of_clone_is_read_again(clones: LocalClones, tmp_path: Path) -> None:
    made = clones.create("main", "mine")
    address = {"host": "127.0.0.1", "port": 23071, "address": "127.0.0.1:23071", "local_only": True}
    answers(
        tmp_path, "login", {"kind": "clone-login", **address, "user": "zsnapdb_clone", "password": "new", "dsn": ""}
    )
    assert [clones.login(made, new=new).password for new in (False, True)] == ["new", "new"]
    assert clones.login(made).port == 23071
    assert asked(tmp_path)[1:] == ["login mine --json", "login mine --new --json", "login mine --json"]


def test_a_clone_is_made_used_and_destroyed_also_after_an_error(clones: LocalClones, tmp_path: Path) -> None:
    def use() -> None:
        with clones.clone("main", "mine", at="2h", heartbeat=60) as clone:
            assert clone.url == "mysql://zsnapdb_clone:p%2Fw%40@127.0.0.1:23070/"
            assert (clone.of_pool, clones.reset(clone).undone) == (True, 2)
            assert "p/w@" not in repr(clone)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    create = "create main --name mine --at 2h --heartbeat 60s --json"
    assert asked(tmp_path) == [create, "keep mine --json", "held: reset", "destroy mine --json"]


def test_a_process_holds_a_clone_as_long_as_it_is_used_and_is_not_needed_for_a_reset(
    clones: LocalClones, tmp_path: Path
) -> None:
    with clones.clone("main", "mine") as clone:
        answers(tmp_path, "reset", {"error": {"message": "its server does not run", "code": "server"}})
        with pytest.raises(CloneCommandError, match="its server does not run") as caught:
            clones.reset(clone)
        assert caught.value.code == "server"
        answers(tmp_path, "reset", {"way": "replace", "undone": None, "reason": "DDL"})
        kept_reset = clones.reset(clone)
        assert (kept_reset.way, kept_reset.undone, kept_reset.reason) == ("replace", None, "DDL")
    assert clones.reset(clone) == kept_reset
    assert asked(tmp_path)[-2:] == ["destroy mine --json", "reset mine --json"]


def test_each_command_names_the_guid_of_its_clone(clones: LocalClones, tmp_path: Path) -> None:
    answers(tmp_path, "create", {**CREATED, "clone": {**CLONE, "guid": "4711"}})
    address = {"host": "127.0.0.1", "port": 23071, "address": "127.0.0.1:23071", "local_only": True}
    answers(tmp_path, "login", {"kind": "clone-login", **address, "user": "u", "password": "p", "dsn": ""})
    answers(tmp_path, "heartbeat", {})
    with clones.clone("main", "mine") as made:
        clones.login(made)
        clones.beat(made)
    clones.reset(made)
    # `keep` runs next to the others.
    verbs = ["destroy", "heartbeat", "keep", "login", "reset"]
    assert sorted(asked(tmp_path)[1:]) == [f"{verb} mine --guid 4711 --json" for verb in verbs]


def test_later_clone_of_the_same_name_is_not_destroyed(clones: LocalClones, tmp_path: Path) -> None:
    answers(tmp_path, "create", {**CREATED, "clone": {**CLONE, "guid": "4711"}})
    made = clones.create("main", "mine")
    answers(tmp_path, "destroy", {"error": {"message": "there is no clone mine", "code": "unknown-name"}}, 2)
    clones.destroy(made)
    answers(tmp_path, "destroy", {"error": {"message": "ZFS failed", "code": "zfs"}}, 5)
    with pytest.raises(CloneCommandError, match="ZFS failed"):
        clones.destroy(made)


def test_what_a_command_refuses_is_said_with_its_hint_and_code(clones: LocalClones, tmp_path: Path) -> None:
    answers(tmp_path, "create", {"kind": "error", "error": {"message": "clones.total is 5", "hint": "destroy one"}}, 4)
    with pytest.raises(CloneCommandError, match=r"clones\.total is 5\nhint: destroy one") as caught:
        clones.create("main", "mine")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("document", ["x", {}, {**CREATED, "clone": {**CLONE, "port": "many"}}, []])
def test_an_answer_of_another_form_is_refused(clones: LocalClones, tmp_path: Path, document: object) -> None:
    answers(tmp_path, "create", document)
    with pytest.raises(CloneCommandError, match="does not know"):
        clones.create("main", "mine")


def test_a_member_of_the_group_asks_by_sudo_and_names_the_clone_second(tmp_path: Path) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text(f"#!/bin/sh\nprintf '%s ' \"$@\" > {tmp_path}/words\nprintf '%s' '{json.dumps(CREATED)}'\n")
    sudo.chmod(0o700)
    made = LocalClones((str(sudo), "-n", "zsnapdb-clone")).create("main", "mine", heartbeat=60)
    assert isinstance(made, ReachableClone)
    assert (tmp_path / "words").read_text().strip() == "-n zsnapdb-clone create main mine --heartbeat 60s --json"


def test_a_host_without_the_program_is_said() -> None:
    with pytest.raises(CloneCommandError, match="for clones of another host, set ZSNAPDB_URL"):
        LocalClones(("/nonexistent/zsnapdb",)).create("main", "mine")
    assert os.path.exists("/nonexistent") is False
