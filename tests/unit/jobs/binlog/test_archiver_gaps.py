"""A binlog that cannot be archived is reported as a gap, and archiving goes on."""

from __future__ import annotations

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import UUID


def test_a_binlog_purged_before_it_was_archived_is_a_gap_and_archiving_goes_on(server: Server) -> None:
    server.commit(3)
    server.look()
    for _ in range(3):
        server.rotate()
        server.commit(2)
    server.remove("binlog.000001", "binlog.000002")
    result = server.look()
    assert (result.new_incarnation, len(result.gaps)) == (None, 1)
    assert f"{UUID}:4-5" in result.gaps[0]
    files = server.check(whole=False).files
    assert [(f.name, f.gap is not None) for f in files] == [
        ("binlog.000001", False),
        ("binlog.000003", True),
        ("binlog.000004", False),
    ]
    assert server.look().gaps == ()


def test_a_purged_binlog_that_was_archived_to_its_last_transaction_is_no_gap(server: Server) -> None:
    server.commit(3)
    server.look()
    server.rotate()
    server.commit(2)
    server.remove("binlog.000001")
    assert server.look().gaps == ()
    server.check(whole=False)


def test_an_encrypted_binlog_is_left_out_and_said(server: Server) -> None:
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.files["binlog.000002"].data[:4] = b"\xfdbin"
    server.write()
    result = server.look()
    assert result.blocked is None
    assert ["encrypted" in problem for problem in result.problems] == [True]
    assert ["encrypted" in gap for gap in result.gaps] == [True]
    assert [f.name for f in server.load().files] == ["binlog.000001", "binlog.000003"]
    server.newest.data[:4] = b"\xfdbin"
    server.write()
    assert "encrypted" in str(server.archiver().look().blocked)


def test_a_damaged_binlog_is_left_out_and_said(server: Server) -> None:
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.files["binlog.000001"].data[10] ^= 1
    server.write()
    result = server.look()
    assert ["format" in problem or "checksum" in problem for problem in result.problems] == [True]
    assert [f.name for f in server.load().files] == ["binlog.000002"]


def test_a_listed_binlog_that_is_not_there_is_a_gap(server: Server) -> None:
    server.commit(2)
    server.rotate()
    server.commit(2)
    server.rotate()
    (server.folder / "binlog.000002").unlink()
    result = server.look()
    assert ["the file is missing" in gap for gap in result.gaps] == [True]
