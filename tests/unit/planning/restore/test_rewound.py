"""A server after a rewind is told from the one that was replaced."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.planning.restore.dataset_exchange import differences
from zsnapdb.planning.restore.plan import RestoreLayout, RestorePlan, RestorePoint

PLAN = RestorePlan(
    restore_id="20261120T120000Z-0001",
    instance="main",
    repository="0123",
    requested="latest",
    created=datetime(2026, 11, 20, tzinfo=UTC),
    flavour=Flavour.MYSQL,
    server_version="9.7.4",
    server_id=1,
    server_uuid=None,
    variables={},
    backup_id="20261120T110000Z-0001",
    point=RestorePoint(None),
    layout=RestoreLayout("tank/a", {}, {}, "/mnt/a", {}),
)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def seen(flavour: Flavour, point: str, executed: str, *, wanted: int | None = None, server_id: int = 7) -> list[str]:
    plan = replace(PLAN, flavour=flavour, point=RestorePoint(point))
    return differences(plan, server_id, parse_gtids(flavour, executed), wanted_id=wanted)


@pytest.mark.parametrize("executed", ["0-1-9", "0-7-12", "0-7-12,3-7-1", "0-1-9,4-2-8"])
def test_a_server_at_the_point_that_may_have_written_under_its_new_server_id_is_the_restored_one(executed: str) -> None:
    assert seen(Flavour.MARIADB, "0-1-9", executed, wanted=7) == []


@pytest.mark.parametrize(
    ("executed", "server_id", "words"),
    [
        ("0-1-8", 7, "lacks some of 0-1-9"),
        ("0-1-9", 1, "its server_id is 1, not 7"),
        ("0-1-10", 7, "0-1-10 after the point, which the replaced server may have given"),
        ("0-1-9,3-1-1", 7, "3-1-1 after the point"),
    ],
)
def test_a_server_of_mariadb_with_the_old_identity_or_its_transactions_is_another(
    executed: str, server_id: int, words: str
) -> None:
    (why,) = seen(Flavour.MARIADB, "0-1-9", executed, wanted=7, server_id=server_id)
    assert words in why


def test_a_server_of_mysql_with_a_transaction_that_was_left_out_is_another() -> None:
    assert seen(Flavour.MYSQL, f"{UUID}:1-9", f"{UUID}:1-9,{UUID[:-1]}3:1") == []
    (why,) = seen(Flavour.MYSQL, f"{UUID}:1-9", f"{UUID}:1-8")
    assert "lacks some" in why
