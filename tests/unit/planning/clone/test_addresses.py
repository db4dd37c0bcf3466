"""Ports that clones keep: what HAProxy says is read strictly, and it is told to end every session of before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.config.services import AddressSettings
from zsnapdb.planning.clone.kept_ports import KeptRoute, choose, configuration, read_state, switching

SETTINGS = AddressSettings(first_port=24000, last_port=24009)
HEAD = (
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state"
    " bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr"
    " srv_agent_addr srv_agent_port\n"
)
"""As HAProxy 2.6.12 printed it."""


def line(
    backend: str = "zsnapdb_24000", address: str = "127.0.0.1", run: int = 2, admin: int = 0, port: int = 1
) -> str:
    return f"3 {backend} 1 clone {address} {run} {admin} 1 1 5 1 0 0 0 0 0 0 - {port} - 0 0 - - 0\n"


def test_a_port_leads_where_haproxy_says_if_its_server_is_in_use() -> None:
    text = HEAD + line(port=23070) + line("zsnapdb_24001", run=0, admin=1) + line("web", port=80) + "\n"
    assert read_state(text, SETTINGS.ports) == {24000: KeptRoute("127.0.0.1", 23070), 24001: None}


@pytest.mark.parametrize(
    ("run", "admin", "leads"),
    [(2, 4, True), (0, 5, False), (2, 5, False), (2, 1, False), (0, 4, False), (1, 0, False), (2, 8, False)],
)
def test_a_port_that_was_disabled_at_the_start_leads_once_its_server_is_ready(
    run: int, admin: int, leads: bool
) -> None:
    """HAProxy 3.0.11 printed 2 and 4 for a server that was made ready, and 0 and 5 before."""
    route = KeptRoute("127.0.0.1", 23070) if leads else None
    assert read_state(HEAD + line(run=run, admin=admin, port=23070), SETTINGS.ports) == {24000: route}


def test_ports_of_another_range_are_not_looked_at() -> None:
    assert read_state(HEAD + line("zsnapdb_25000") + line("zsnapdb_1e3") + line("zsnapdb_"), SETTINGS.ports) == {}


@pytest.mark.parametrize(
    "text", ["", "1\n", "2\n# be_name\n", HEAD.replace("srv_port", "port"), HEAD + "3 zsnapdb_24000"]
)
def test_an_answer_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="server state"):
        read_state(text, SETTINGS.ports)


@given(st.text())
def test_whatever_answers_leads_to_a_port_or_is_an_error(text: str) -> None:
    try:
        known = read_state(HEAD + text, SETTINGS.ports)
    except ValueError:
        return
    assert set(known) <= set(SETTINGS.ports)


def test_sessions_end_between_the_old_way_and_the_new_one() -> None:
    commands = switching(24000, KeptRoute("127.0.0.1", 23070))
    shut = commands.index("shutdown sessions server zsnapdb_24000/clone")
    assert commands.index("set server zsnapdb_24000/clone state maint") < shut
    assert shut < commands.index("set server zsnapdb_24000/clone addr 127.0.0.1 port 23070")
    assert commands[-1] == "set server zsnapdb_24000/clone state ready"
    assert switching(24000, None)[-1] == "shutdown sessions server zsnapdb_24000/clone"


def test_a_haproxy_that_starts_leads_where_it_must_at_once() -> None:
    text = configuration(SETTINGS, "127.0.0.1", {24003: KeptRoute("127.0.0.1", 23071)}, "haproxy")
    assert "listen zsnapdb_24003\n    bind 127.0.0.1:24003\n    server clone 127.0.0.1:23071\n" in text
    assert text.count("disabled") == 9
    assert "mode 600 level admin" in text


def test_a_clone_gets_the_lowest_port_that_nobody_keeps_and_none_where_all_are_kept() -> None:
    assert choose(SETTINGS.ports, {24000, 24002}) == 24001
    assert choose(SETTINGS.ports, set(SETTINGS.ports)) is None
