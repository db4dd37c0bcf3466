"""The check by which a client refuses another server than the one that was meant."""

from __future__ import annotations

from zsnapdb.planning.sql_quoting import only_below, only_on_server

VARIABLES = {"server_uuid": "u'1", "server_id": "7", "datadir": '/srv/a "b"\\c/', "port": "0"}


def test_each_known_variable_is_compared_and_no_value_is_quoted_text() -> None:
    text = only_on_server(VARIABLES, "sql_log_bin = 0")
    for name, value in VARIABLES.items():
        assert f"HEX(CONVERT(@@GLOBAL.{name} USING utf8mb4)) = '{value.encode().hex().upper()}'" in text
        assert value == "7" or value == "0" or value not in text
    assert "hostname" not in text
    assert text.count("SESSION sql_log_bin = 0") == 2
    assert [line for line in text.splitlines() if line.startswith("[")] == ["[mysql]", "[mariadb]"]


def test_a_folder_is_compared_with_its_end() -> None:
    inside = "/srv/clones/"
    expected = f"HEX(CONVERT(LEFT(@@GLOBAL.datadir, {len(inside)}) USING utf8mb4)) = '{inside.encode().hex().upper()}'"
    assert expected in only_below("/srv/clones")
    assert only_below("/srv/clones") == only_below("/srv/clones/")
