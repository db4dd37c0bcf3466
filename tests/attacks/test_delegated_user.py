"""People who may run `zsnapdb-clone` as root try to run programs, configurations and scripts of their own as root.

The lab has no sudo: what the shipped rule grants is done here, root runs the program with words and variables of the
attacker. More variables pass than sudo would let through.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.in_guest import CONFIG, Done, Lab, everything, run, zfs

pytestmark = pytest.mark.usefixtures("first")

ANN, BOB = "games", "news"
"""Two accounts that every Debian has, without rights."""
WRAPPER = ("/opt/venv/bin/python", "-c", "from zsnapdb.cli.sudo_cli import main; main()")


@dataclass(frozen=True)
class Evil:
    """A program that leaves a mark of the account that ran it, and a configuration that names it."""

    program: Path
    config: Path
    mark: Path


@pytest.fixture
def evil(tmp_path: Path) -> Evil:
    mark, program, config = tmp_path / "mark", tmp_path / "mysqld", tmp_path / "evil.toml"
    program.write_text(f"#!/bin/sh\nid -u >> {mark}\nexit 1\n")
    program.chmod(0o755)
    text, count = re.subn(r'(?m)^binary = ".*"$', f'binary = "{program}"', CONFIG.read_text())
    assert count == 1
    config.write_text(text)
    return Evil(program, config, mark)


def as_person(name: str, *words: str, **variables: str) -> Done:
    """Run `sudo zsnapdb-clone WORDS` of an account, as the shipped rule does."""
    account = pwd.getpwnam(name)
    own = {"SUDO_UID": str(account.pw_uid), "SUDO_GID": str(account.pw_gid), "SUDO_USER": name}
    return run("env", "-i", *(f"{key}={value}" for key, value in {**variables, **own}.items()), *WRAPPER, *words)


def naive(*words: str, **variables: str) -> Done:
    """Run `sudo zsnapdb clone WORDS`, as a rule for `zsnapdb clone *` does."""
    return run("zsnapdb", "clone", *words, env=variables)


@pytest.fixture(scope="module")
def of_ann(lab: Lab, first: dict[str, Any]) -> Iterator[str]:
    made = as_person(ANN, "create", "main", "ann")
    assert made.code == 0, made.stderr
    yield "ann"
    assert as_person(ANN, "destroy", "ann").code == 0


def test_a_rule_for_zsnapdb_clone_runs_a_program_of_the_caller_as_root(evil: Evil) -> None:
    """Why there is a program of its own: without it these attacks succeed."""
    naive("create", "main", "--name", "naive", "--config", str(evil.config), "--plan")
    naive("create", "main", "--name", "naive", "--binary", str(evil.program))
    naive("create", "main", "--name", "naive", ZSNAPDB_CLONE_CREATE_BINARY=str(evil.program))
    assert evil.mark.exists()
    assert "0" in evil.mark.read_text().split()


def test_no_word_and_no_variable_names_a_configuration_a_program_or_an_owner(evil: Evil) -> None:
    before = everything()
    program, config = str(evil.program), str(evil.config)
    create = ("create", "main", "evil")
    for words in (
        (*create, "--config", config),
        (*create, f"--config={config}"),
        (*create, "--conf", config),
        ("--config", config, *create),
        (*create, "--binary", program),
        (*create, f"--bin={program}"),
        (*create, "--ttl", f"--binary={program}"),
        (*create, "--", "--config", config),
        (*create, "--owner", "root"),
        (*create, "--bind", "0.0.0.0"),
        (*create, "--admin"),
        (*create, "--from", "live"),
        ("create", f"--config={config}", "evil"),
        ("create", "main", "../evil"),
        ("clone", *create),
        ("restore", "main"),
        ("login", "ann", "--plugin-dir=/tmp"),
    ):
        done = as_person(ANN, *words)
        assert (done.code, done.stdout) == (2, ""), words
    assert not evil.mark.exists()
    assert everything() == before


def test_variables_of_the_caller_are_not_read(evil: Evil, of_ann: str) -> None:
    variables = {
        "ZSNAPDB_CONFIG": str(evil.config),
        "ZSNAPDB_CLONE_START_BINARY": str(evil.program),
        "ZSNAPDB_CLONE_START_CONFIG": str(evil.config),
        "_ZSNAPDB_COMPLETE": "complete_bash",
        "PATH": str(evil.program.parent),
    }
    assert as_person(ANN, "stop", of_ann, **variables).code == 0
    done = as_person(ANN, "start", of_ann, **variables)
    assert done.code == 0, done.stderr
    assert not evil.mark.exists()


def test_a_clone_and_its_login_are_for_its_owner_alone(of_ann: str) -> None:
    for command, *options in (("login",), ("login", "--new"), ("stop",), ("reset",), ("extend",), ("destroy",)):
        done = as_person(BOB, command, of_ann, *options)
        none = as_person(BOB, command, "nobodys", *options)
        assert done.code == none.code == 2, command
        assert done.stderr == none.stderr.replace("nobodys", of_ann), command
        assert ANN not in done.stderr, command
    assert of_ann not in as_person(BOB, "list").stdout
    assert of_ann in as_person(ANN, "list").stdout
    file = Path(as_person(ANN, "login", of_ann).stdout.strip().removeprefix("--defaults-file="))
    former = file.read_text()
    assert as_person(ANN, "login", of_ann, "--new").stdout.strip() == f"--defaults-file={file}"
    assert file.read_text() != former
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (pwd.getpwnam(ANN).pw_uid, 0o400)
    for name, can_read in ((ANN, True), (BOB, False)):
        account = pwd.getpwnam(name)
        ids = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
        assert (run("setpriv", *ids, "cat", str(file)).code == 0) is can_read
        assert run("setpriv", *ids, "ls", str(file.parent)).code != 0


def test_a_person_without_sudo_is_told_that_they_may_not(lab: Lab) -> None:
    account = pwd.getpwnam(ANN)
    ids = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    os.chmod(CONFIG, 0o600)
    for words in (WRAPPER, ("zsnapdb", "clone"), ("zsnapdb",)):
        done = run("setpriv", *ids, *words, "list")
        assert done.code in (3, 4), done.stderr
        assert "you may not" in done.stderr
        assert "sudo" in done.stderr


@pytest.fixture
def small(lab: Lab) -> Iterator[None]:
    """Clones may write 192 MiB."""
    before = CONFIG.read_text()
    CONFIG.write_text(f'{before}\n[clones]\nquota = "192MiB"\n')
    yield
    CONFIG.write_text(before)


def with_private_umask(*words: str) -> tuple[str, ...]:
    """Return the words of a command that begins with the mask of a careful shell."""
    return ("sh", "-c", 'umask 077; exec "$@"', "sh", *words)


def filled(file: Path, most: int) -> int:
    """Return how many bytes the file took before its dataset had no more room, or `most`."""
    written, refused = 0, errno.EDQUOT
    with file.open("wb", buffering=0) as out:
        while written < most:
            try:
                written += out.write(os.urandom(1 << 20))
                os.fsync(out.fileno())
            except OSError as error:
                refused = error.errno or 0
                break
    assert refused in (errno.EDQUOT, errno.ENOSPC)
    return written


def test_nobody_takes_the_space_of_production_through_a_clone(lab: Lab, small: None) -> None:
    """The clone was made under `umask 077`, which kept servers from their own folders before."""
    account = pwd.getpwnam(ANN)
    own = (f"SUDO_UID={account.pw_uid}", f"SUDO_GID={account.pw_gid}", f"SUDO_USER={ANN}")
    made = run(*with_private_umask("env", "-i", *own, *WRAPPER, "create", "main", "full"))
    assert made.code == 0, made.stderr
    (clone,) = [one for one in lab.zsnapdb("clone", "list", "--json").json["clones"] if one["name"] == "full"]
    assert clone["quota"] == 192 << 20
    written = filled(Path(clone["mount"]) / "data" / "filler", 400 << 20)
    assert written < 256 << 20
    lab.sql("CREATE TABLE ledger.goes_on (id INT PRIMARY KEY)")
    lab.sql("DROP TABLE ledger.goes_on")
    assert as_person(ANN, "extend", "full", "--quota", "1GiB").code == 2
    assert as_person(ANN, "reset", "full").code == 0
    assert lab.zsnapdb("clone", "extend", "full", "--quota", "1GiB", "--json").json["clone"]["quota"] == 1 << 30
    assert as_person(ANN, "destroy", "full").code == 0


def test_a_commit_is_for_the_owner_of_its_clone_and_for_its_instance(lab: Lab, of_ann: str) -> None:
    commit = lab.zsnapdb("clone", "commit", of_ann, "-m", "what Ann wrote", "--json").json["id"]
    taken = as_person(BOB, "create", "main", "bob", f"--from={commit}")
    nothing = f"{commit[:-4]}{'0000' if commit[-4:] != '0000' else '1111'}"
    unknown = as_person(BOB, "create", "main", "bob", f"--from={nothing}")
    assert (taken.code, taken.stderr) == (unknown.code, unknown.stderr.replace(nothing, commit))
    assert taken.code != 0
    assert ANN not in taken.stderr
    assert as_person(ANN, "create", "main", "second", f"--from={commit}", "--plan").code == 0
    access = 'socket = "/run/mysqld/mysqld.sock"\nuser = "zsnapdb"\npassword_file = "/etc/zsnapdb/main.password"'
    both = lab.changed(("[instance.main]", f'[instance.other]\n{access}\nrepository = "s3"\n\n[instance.main]'))
    refused = lab.zsnapdb("clone", "create", "other", f"--from={commit}", "--plan", config=both)
    assert (refused.code, "of instance main, not of other" in refused.stderr) == (4, True), refused.stderr


def test_a_restore_under_a_private_umask_works(lab: Lab) -> None:
    words = ("zsnapdb", "restore", "main", "--to", "latest", "--target", "tank/umasked", "--from", "auto")
    done = run(*with_private_umask(*words), env={"ZSNAPDB_CONFIG": str(CONFIG)})
    assert done.code == 0, done.stderr
    zfs("destroy", "-r", "tank/umasked")


def received() -> list[str]:
    return [name for name in zfs("list", "-H", "-o", "name") if name.startswith("tank/zsnapdb/received/")]


def test_what_is_received_for_a_person_is_within_the_floor_and_goes_with_the_last_clone(lab: Lab) -> None:
    """Floor and quota are judged before a byte is received; nothing stays when the clones of old moments are gone."""
    backup = lab.zsnapdb("backup", "--json").json["backup"]
    for volume in backup["volumes"]:
        zfs("destroy", f"{volume['dataset']}@zsnapdb-{backup['backup_id']}")
    create = ("clone", "create", "main", "--from", backup["backup_id"], "--owner", ANN, "--no-start", "--name")
    caused = {"ZSNAPDB_CAUSED_BY": ANN}
    before, (free, logical) = everything(), map(int, zfs("get", "-Hpo", "value", "available,logicalused", "tank"))
    # There is room for what the clone itself needs, but not for what must be received for it.
    limits = {
        "clones.free_floor": f'free_floor = "{free - (16 << 20)}B"',
        "clones.received_per_owner": 'received_per_owner = "1B"',
    }
    for limit, terms in limits.items():
        config = lab.changed(("[repository.s3]", f"[clones]\n{terms}\n\n[repository.s3]"))
        for words in ((*create, "refused"), (*create, "refused", "--plan")):
            refused = run("zsnapdb", *words, "--config", str(config), env=caused)
            assert (refused.code, limit in refused.stderr) == (4, True), refused.stderr
        assert everything() == before, "nothing was received, and nothing made for it"
    assert logical, "the pool has data"

    for name in ("first-old", "second-old"):
        assert as_person(ANN, "create", "main", name, f"--from={backup['backup_id']}", "--no-start").code == 0
    (anchor,) = {"/".join(name.split("/")[:4]) for name in received()}
    facts = zfs("get", "-Hpo", "value", "zsnapdb:caused-by,quota,reservation,used", anchor)
    assert (facts[0], facts[2]) == (ANN, "0")
    assert int(facts[3]) <= int(facts[1]), "the set is under a quota, and what was promised is given back"
    aged = str(lab.changed(("[repository.s3]", '[clones]\nmax_age = "25h"\n\n[repository.s3]')))
    for longer in (("extend", "first-old", "--ttl", "2d"), ("protect", "first-old", "--for", "2d")):
        assert "clones.max_age" in run("zsnapdb", "clone", *longer, "--config", aged, env=caused).stderr
        assert run("zsnapdb", "clone", *longer, "--config", aged).code == 0, "root has no such limit"
    assert run("zsnapdb", "clone", "protect", "first-old", "--for", "0s").code == 0
    # Taking turns holds a set no longer: the age of each clone counts from the first clone that still has the set.
    old = "tank/zsnapdb/clones/first-old"
    (begun,) = zfs("get", "-Hpo", "value", "zsnapdb:begun", old)
    zfs("set", "zsnapdb:begun=2026-01-01T00:00:00Z", old)
    again = as_person(ANN, "create", "main", "third-old", f"--from={backup['backup_id']}", "--no-start")
    assert (again.code, "clones.max_age" in again.stderr) == (4, True), again.stderr
    zfs("set", f"zsnapdb:begun={begun}", old)
    few = str(lab.changed(("[repository.s3]", "[clones]\ntotal = 2\n\n[repository.s3]")))
    full = run("zsnapdb", *create, "third-old", "--config", few, env=caused | {"ZSNAPDB_AUDIENCE": ANN})
    assert (full.code, "already has 2 clones, the limit in `clones.total`" in full.stderr) == (4, True), full.stderr
    assert as_person(ANN, "destroy", "first-old").code == 0
    assert received(), "the other clone is made of it"
    assert as_person(ANN, "destroy", "second-old").code == 0
    assert not received()
    assert everything() == before
    assert lab.zsnapdb("backup").code == 0
