"""The record of a binlog's tail gives back what was written, and nothing if it cannot be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import GtidPosition, GtidSet
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record import binlog_tail_record
from zsnapdb.mysql.binlog.tail import KnownTail

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TAILS = {
    Flavour.MYSQL: KnownTail("binlog.000007", 4711, GtidSet.parse(f"{UUID}:1-7:9"), f"{UUID}:9", "0" * 64),
    Flavour.MARIADB: KnownTail("binlog.000007", 4711, GtidPosition.parse("0-1-270,5-2-9"), None, "f" * 64),
}


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Site(tmp_path / "store").instance()


def file(instance: Instance) -> Path:
    return instance.host.tails / f"{instance.name}.json"


@pytest.mark.parametrize("flavour", Flavour)
def test_a_tail_is_read_as_it_was_written_and_by_nobody_else(instance: Instance, flavour: Flavour) -> None:
    binlog_tail_record.write(instance, flavour, TAILS[flavour])
    assert binlog_tail_record.read(instance, flavour) == TAILS[flavour]
    assert file(instance).stat().st_mode & 0o777 == 0o600
    assert file(instance).parent.stat().st_mode & 0o777 == 0o700


def test_there_is_no_tail_before_the_first(instance: Instance) -> None:
    assert binlog_tail_record.read(instance, Flavour.MYSQL) is None


def test_the_tail_of_a_server_of_the_other_family_is_none(instance: Instance) -> None:
    binlog_tail_record.write(instance, Flavour.MYSQL, TAILS[Flavour.MYSQL])
    assert binlog_tail_record.read(instance, Flavour.MARIADB) is None


@pytest.mark.parametrize(
    "change", [("4711", "3"), (UUID, "not-a-uuid"), ("0" * 64, "0"), ('"file"', '"field"'), ("}", "")]
)
def test_a_record_that_cannot_be_read_is_none(instance: Instance, change: tuple[str, str]) -> None:
    binlog_tail_record.write(instance, Flavour.MYSQL, TAILS[Flavour.MYSQL])
    text = file(instance).read_text()
    assert change[0] in text
    file(instance).write_text(text.replace(*change))
    assert binlog_tail_record.read(instance, Flavour.MYSQL) is None


def test_a_link_in_the_place_of_a_record_is_not_followed(instance: Instance, tmp_path: Path) -> None:
    binlog_tail_record.write(instance, Flavour.MYSQL, TAILS[Flavour.MYSQL])
    away = tmp_path / "away.json"
    file(instance).rename(away)
    file(instance).symlink_to(away)
    assert binlog_tail_record.read(instance, Flavour.MYSQL) is None
    before = away.read_text()
    binlog_tail_record.write(instance, Flavour.MARIADB, TAILS[Flavour.MARIADB])
    assert away.read_text() == before
    assert binlog_tail_record.read(instance, Flavour.MARIADB) == TAILS[Flavour.MARIADB]


def test_a_host_that_cannot_keep_the_record_goes_on(instance: Instance) -> None:
    instance.host.tails.parent.mkdir(parents=True, exist_ok=True)
    instance.host.tails.write_text("a file in the place of the folder")
    binlog_tail_record.write(instance, Flavour.MYSQL, TAILS[Flavour.MYSQL])
    assert binlog_tail_record.read(instance, Flavour.MYSQL) is None
