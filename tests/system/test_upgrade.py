"""An upgrade is rehearsed on an ephemeral clone; here to the very same version, which must change nothing."""

from __future__ import annotations

import json

import pytest

from .in_guest import Lab, everything


@pytest.fixture(autouse=True, scope="module")
def newest_on_the_host(lab: Lab) -> None:
    """The newest backup has its snapshots on the host, so that a clone of it receives nothing that stays."""
    assert lab.zsnapdb("backup").code == 0


def test_a_rehearsal_reports_what_it_did_and_detects_a_result_that_differs(lab: Lab) -> None:
    was = everything()
    binary = "/opt/mysql/bin/mysqld" if lab.flavour == "mysql" else "/usr/sbin/mariadbd"
    config = lab.changed(
        (
            'repository = "s3"\n',
            'repository = "s3"\nupgrade_queries = ["SELECT COUNT(*), SUM(balance) FROM ledger.accounts"]\n',
        )
    )
    done = lab.zsnapdb(
        "clone",
        "upgrade-test",
        "main",
        "--binary",
        binary,
        "--query",
        "SELECT UUID()",
        "--query",
        "SELECT 1",
        "--json",
        config=config,
    )
    assert done.code == 11, done.stderr
    result = json.loads(done.stdout)
    assert result["old_version"] == result["new_version"]
    assert [query["equal"] for query in result["queries"]] == [True, False, True]
    assert result["problems"] == ["`SELECT UUID()`: the result differs from the result before the upgrade"]
    assert "ledger.accounts" in [table["table"] for table in result["tables"]]
    assert all(table["good"] for table in result["tables"])
    assert [phase["name"] for phase in result["phases"]][2:5] == ["clean shutdown", "start the new version", "upgrade"]
    assert everything() == was


# No server of either flavour is started.
@pytest.mark.any_server
def test_what_is_no_newer_server_program_is_refused_by_name_before_a_clone_is_made(lab: Lab) -> None:
    was = everything()
    for binary in ("/bin/false", "/nowhere/mysqld"):
        done = lab.zsnapdb("clone", "upgrade-test", "main", "--binary", binary)
        assert done.code == 4, done.stderr
        assert binary in done.stderr
    assert everything() == was
