"""A copy of a backup is checked against what its manifest says of the server."""

from __future__ import annotations

from tests.unit.support.manifests import manifest
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import GtidSet
from zsnapdb.jobs.clone.sources import origin_in
from zsnapdb.repository.manifest import server_source
from zsnapdb.repository.manifest_source import PositionPart

UUID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def test_a_copy_may_have_all_gtids_of_its_backup_also_those_in_no_binlog() -> None:
    whole = manifest()
    source = server_source(whole)
    gtids = f"{UUID}:1-7"
    on_mysql = source.model_copy(
        update={
            "server": source.server.model_copy(update={"flavour": Flavour.MYSQL, "version": "8.4.6"}),
            "position": PositionPart(binlog_file="binlog.000001", binlog_offset=4, gtids=gtids, source="tail"),
        }
    )
    assert origin_in(whole.model_copy(update={"source": on_mysql})).unlogged_gtids == GtidSet.parse(gtids)


def test_mariadb_has_no_gtids_outside_its_binlogs() -> None:
    assert origin_in(manifest()).unlogged_gtids is None
