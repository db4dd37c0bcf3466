"""A tunnel leads to the server of the clone, and no word of others is an option of ssh."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.errors import ConsistencyError, UsageError
from zsnapdb.planning.clone.client_commands import tunnel_to


@pytest.mark.parametrize(
    ("address", "forward"),
    [
        ("127.0.0.1", "127.0.0.1:4000:127.0.0.1:23070"),
        ("0.0.0.0", "127.0.0.1:4000:127.0.0.1:23070"),
        ("*", "127.0.0.1:4000:127.0.0.1:23070"),
        ("10.0.0.7", "127.0.0.1:4000:10.0.0.7:23070"),
        ("::1", "127.0.0.1:4000:[::1]:23070"),
    ],
)
def test_tunnel_listens_on_loopback_and_leads_to_the_server(address: str, forward: str) -> None:
    words = tunnel_to("ann@db1", 4000, address, 23070).arguments("/usr/bin/ssh")
    assert words[words.index("-L") + 1] == forward
    assert words[0] == "/usr/bin/ssh"
    assert words[-2:] == ["--", "ann@db1"]
    assert "-N" in words


@given(st.text(max_size=12) | st.sampled_from(["-oProxyCommand=x", "--", "a b", "db1\n", "", "$(x)", "a;b"]))
def test_host_is_one_word_and_no_option(via: str) -> None:
    try:
        words = tunnel_to(via, 4000, "127.0.0.1", 23070).arguments("ssh")
    except UsageError:
        return
    assert words[-1] == via
    assert not via.startswith("-")
    assert via.isprintable()
    assert not set(via) & set(" ;$()`'\"\\/|&<>")


@given(st.text(max_size=12) | st.sampled_from(["127.0.0.1:22", "x:1:y", "-x", "", "a b"]), st.integers(-2, 1 << 17))
def test_address_of_the_service_is_one_host(address: str, port: int) -> None:
    try:
        words = tunnel_to("db1", 4000, address, port).arguments("ssh")
    except (ConsistencyError, UsageError):
        return
    forward = words[words.index("-L") + 1]
    assert forward.startswith("127.0.0.1:4000:")
    assert forward.endswith(f":{port}")
    host = forward.removeprefix("127.0.0.1:4000:").removesuffix(f":{port}")
    assert ":" not in host or host == f"[{address}]"
