"""The settings of a backup are an option file: every setting is in it once, and no value is more than its line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.recorded_variables import releases, variables_of
from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.server_copy.recorded_settings import recorded_settings
from zsnapdb.planning.server_copy.source_facts import LONGEST_LINE, OPTIONS

LINE = re.compile(r'[a-z][a-z0-9_.]*=([A-Za-z0-9_,.+:=@-]*|"([^"\\\\]|\\\\.)*")')
RUN_CODE = ("init_file", "init_connect", "plugin_dir", "secure_file_priv", "wsrep_notify_cmd", "keyring_file_data")


@given(st.dictionaries(st.sampled_from(("sql_mode", "tmpdir", "datadir", "x", "log_error", *RUN_CODE)), st.text()))
def test_each_line_is_one_quoted_setting_or_a_comment(variables: dict[str, str]) -> None:
    settings = recorded_settings(variables, 7)
    text = settings.option_file(Flavour.MYSQL, "about")
    assert text.splitlines() == text.split("\n")[:-1]
    for line in text.splitlines():
        assert not line or line[0] in "#[" or LINE.fullmatch(line), line
        assert len(line.encode()) <= LONGEST_LINE + 2
    active = {line.partition("=")[0].removeprefix("loose_") for line in settings.lines}
    assert not active & {"server_id", *RUN_CODE}
    assert "server_id=7" in settings.unchecked


@given(st.text(st.characters(exclude_categories=("C", "Z")), max_size=50))
def test_a_quoted_value_is_read_back_as_it_was(value: str) -> None:
    (line,) = recorded_settings({"sql_mode": value}, 7).lines
    read = line.partition("=")[2]
    if read.startswith('"'):
        read = re.sub(r"\\(.)", r"\1", read[1:-1])
    assert read == value


def test_the_binlog_is_named_by_its_base_name() -> None:
    variables = {"log_bin": "ON", "log_bin_basename": "/srv/log/binlog", "relay_log_basename": "/srv/log/relay"}
    assert recorded_settings(variables, 7).lines == ('log_bin="/srv/log/binlog"', 'relay_log="/srv/log/relay"')


def test_no_option_is_set_twice_or_without_a_value() -> None:
    variables = {"tx_isolation": "SERIALIZABLE", "transaction_isolation": "SERIALIZABLE", "tmpdir": "", "sql_mode": ""}
    assert recorded_settings(variables, 7).lines == ("sql_mode=", "transaction_isolation=SERIALIZABLE")


def test_every_active_line_is_an_option_of_the_server() -> None:
    """Else the server would not start with the file."""
    for release in releases():
        known = variables_of(release)
        for name in known:
            found = recorded_settings({name: "1"}, 7)
            options = {line.partition("=")[0] for line in found.lines}
            options = {one for one in options if not one.startswith("loose_")} - {"default_time_zone"}
            assert all(known.get(one, one == OPTIONS.get(name)) for one in options), (release, name, found.lines)


@pytest.mark.parametrize("variable", ["x\nplugin_load=evil", "[mysqld]", "a b"])
def test_a_name_that_is_none_is_refused(variable: str) -> None:
    settings = recorded_settings({variable: "1"}, 7)
    assert (settings.lines, len(settings.refused)) == ((), 1)
