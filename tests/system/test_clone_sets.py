"""Several servers from one moment: independent, or wired as a source and its replicas."""

from __future__ import annotations

import time

import pytest

from .in_guest import Lab, ask, connect, everything, run, zfs

pytestmark = pytest.mark.usefixtures("first")


def test_a_set_replicates_from_its_first_clone_and_not_from_the_source(lab: Lab) -> None:
    made = lab.zsnapdb(
        "clone",
        "create",
        "main",
        "--name",
        "team",
        "--count",
        "3",
        "--topology",
        "replication",
        "--profile",
        "tiny",
        "--json",
    ).json
    try:
        assert [(m["name"], m["part"]) for m in made["members"]] == [
            ("team-1", "source"),
            ("team-2", "replica"),
            ("team-3", "replica"),
        ]
        assert len({m["backup_id"] for m in made["members"]}) == 1
        assert made["arrival_seconds"] < 240
        clones = [{"clone": m, "user": m["user"], "password": m["password"]} for m in made["members"]]
        with connect(clones[0]) as source, connect(clones[1]) as one, connect(clones[2]) as two:
            assert ask(one, "SHOW DATABASES LIKE 'zsnapdb%'") == []
            ask(source, "CREATE TABLE ledger.arrived (id INT PRIMARY KEY)")
            ask(source, "INSERT INTO ledger.arrived VALUES (42)")
            deadline = time.monotonic() + 300
            for replica in (one, two):
                while ask(replica, "SHOW TABLES FROM ledger LIKE 'arrived'") == [] or ask(
                    replica, "SELECT * FROM ledger.arrived"
                ) != [(42,)]:
                    assert time.monotonic() < deadline
                assert ask(replica, "SELECT @@GLOBAL.read_only")[0][0] == 1
            assert len({ask(server, "SELECT @@server_id")[0][0] for server in (source, one, two)}) == 3
            # After a stop (or a reboot) both keep their parts, and both are still separate from their origin.
            for name in ("team-1", "team-2"):
                assert lab.zsnapdb("clone", "stop", name).code == 0
                again = lab.zsnapdb("clone", "start", name)
                assert again.code == 0, again.stderr
            with connect(clones[0]) as source_again, connect(clones[1]) as one_again:
                ask(source_again, "INSERT INTO ledger.arrived VALUES (43)")
                while ask(one_again, "SELECT COUNT(*) FROM ledger.arrived") != [(2,)]:
                    assert time.monotonic() < deadline + 300
        assert lab.sql("SHOW TABLES FROM ledger LIKE 'arrived'") == []
        anchor = "tank/zsnapdb/clones/team-2"
        assert zfs("get", "-H", "-o", "value", "zsnapdb:set", anchor) == ["team replica"]
    finally:
        done = lab.zsnapdb("clone", "destroy", "team", "--json")
        assert done.code == 0, done.stderr
        assert {item["clone"]["part"] for item in done.json["clones"][:-1]} <= {"replica"}, "the source goes last"


@pytest.mark.any_server
def test_a_set_is_whole_or_not_there(lab: Lab) -> None:
    first = lab.zsnapdb("clone", "create", "main", "--name", "half-2", "--no-start")
    assert first.code == 0, first.stderr
    try:
        was = everything()
        done = lab.zsnapdb("clone", "create", "main", "--name", "half", "--count", "2", "--profile", "tiny")
        assert done.code == 8, done.stderr
        assert everything() == was
        assert run("ls", "/var/lib/zsnapdb/clones/half-1").code != 0
    finally:
        assert lab.zsnapdb("clone", "destroy", "half-2").code == 0


@pytest.mark.any_server
def test_what_makes_no_set_is_refused_before_anything_is_touched(lab: Lab) -> None:
    was = everything()
    for words in (
        ("--count", "1", "--topology", "replication"),
        ("--topology", "replication"),
        ("--count", "0"),
        ("--count", "2", "--no-start"),
    ):
        assert lab.zsnapdb("clone", "create", "main", "--name", "none", *words).code == 2
    plan = lab.zsnapdb("clone", "create", "main", "--name", "planned", "--count", "2", "--plan", "--json").json
    assert plan["names"] == ["planned-1", "planned-2"]
    assert everything() == was
