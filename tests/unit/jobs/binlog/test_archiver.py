"""The archiver with files made event by event: the archive is what the server's binlogs are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.support.archived_server import CHUNK, Server
from tests.unit.support.binlog_file import UUID


def test_rotated_files_are_archived_whole_and_the_active_one_up_to_its_last_transaction(server: Server) -> None:
    server.commit(3)
    server.rotate()
    server.commit(2)
    server.newest.gtid(6).query(b"BEGIN")
    server.write()
    result = server.look()
    assert (result.rotated, result.transactions, result.gaps, result.new_incarnation is not None) == (
        ("binlog.000001",),
        5,
        (),
        True,
    )
    files = server.check().files
    assert [(f.is_rotated, f.span.transactions, str(f.gtids), f.first_commit) for f in files] == [
        (True, 3, f"{UUID}:1-3", (1_700_000_011) * 1_000_000),
        (False, 2, f"{UUID}:4-5", (1_700_000_024) * 1_000_000),
    ]


def test_each_round_adds_a_segment_and_rotation_replaces_the_segments_by_the_whole_file(server: Server) -> None:
    archiver = server.archiver()
    for _ in range(4):
        server.commit(2)
        assert archiver.look().transactions == 2
        assert archiver.look().transactions == 0
    assert len(server.check().files[0].segments) == 4
    server.rotate()
    assert archiver.look().rotated == ("binlog.000001",)
    server.check()
    assert not [item for item in server.store.list("main/binlogs/") if "segments/binlog.000001/" in item.key]


def test_many_segments_become_one(server: Server) -> None:
    archiver = server.archiver()
    for _ in range(70):
        server.commit()
        archiver.look()
    assert len(server.check().files[0].segments) == 2 + 70 - 64
    assert len([item for item in server.store.list("main/binlogs/") if "segments/" in item.key]) == 2 + 70 - 64


def test_a_transaction_longer_than_a_chunk_is_cut_and_counts_only_when_whole(server: Server) -> None:
    archiver = server.archiver()
    server.commit(2)
    archiver.look()
    server.commit(1, size=int(2.5 * CHUNK))
    server.commit(2)
    assert archiver.look().transactions == 3
    (file,) = server.check().files
    assert max(s.end - s.start for s in file.segments) <= CHUNK
    server.rotate()
    server.look()
    server.check()


def test_it_goes_on_where_an_earlier_run_ended(server: Server) -> None:
    server.commit(3)
    server.look()
    server.commit(3)
    result = server.look()
    assert (result.new_incarnation, result.transactions, result.gaps) == (None, 3, ())
    assert len(server.check().incarnations) == 1


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["commit", "big", "rotate", "look", "restart"]), max_size=25))
def test_whatever_order_things_happen_in_the_archive_is_the_servers_binlogs(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    server = Server(tmp_path_factory.mktemp("server"))
    archiver = server.archiver()
    for step in steps:
        if step == "commit":
            server.commit()
        elif step == "big":
            server.commit(1, size=CHUNK)
        elif step == "rotate":
            server.rotate()
        elif step == "look":
            archiver.look()
        else:
            archiver = server.archiver()
    assert archiver.look().gaps == ()
    server.check()
