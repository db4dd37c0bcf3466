"""A command waits for what was named, no longer than allowed, and says what it saw."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.mysql.test_greeting import GREETING, answering
from tests.unit.support.machine_pool import MemoryHypervisor
from zsnapdb.base.errors import CommandTimeout, PreflightError, UsageError
from zsnapdb.jobs.vm import create
from zsnapdb.jobs.vm.create import ReadyKind, ReadyMarker
from zsnapdb.planning.vm.domain import parse
from zsnapdb.vm.hypervisor import MachineState

GOLD = (Path(__file__).parents[2] / "planning" / "vm" / "golden" / "base.xml").read_text()
UUID = parse(GOLD).uuid


class _AtAddresses(MemoryHypervisor):
    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.of_guest = addresses
        self.add(GOLD, MachineState.RUNNING)

    def addresses(self, uuid: str) -> tuple[str, ...]:
        return self.of_guest


def wait(hypervisor: MemoryHypervisor, port: int, tmp_path: Path, patience: float) -> None:
    marker = ReadyMarker(ReadyKind.SERVER, port=port)
    create.wait_until_ready(hypervisor, "pxc1", UUID, marker, tmp_path / "log", patience)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [("server", "server:3306"), ("server:3307", "server:3307"), ("agent", "agent"), ("serial:a:b", "serial:a:b")],
)
def test_what_is_waited_for_is_named_as_the_command_line_takes_it(text: str, words: str) -> None:
    assert create.ready_marker(text).words == words


@pytest.mark.parametrize("text", ["", "server:", "server:0", "server:70000", "server:x", "tcp", "serial:", "agent:1"])
def test_what_cannot_be_waited_for_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not say what to wait for"):
        create.ready_marker(text)


def test_a_machine_is_ready_when_its_server_greets_on_one_of_its_addresses(tmp_path: Path) -> None:
    with answering(GREETING) as port:
        wait(_AtAddresses("127.0.0.3", "127.0.0.2"), port, tmp_path, 30)


@pytest.mark.parametrize(("sent", "address"), [(b"SSH-2.0-x\r\n", "127.0.0.2"), (GREETING, "127.0.0.3")])
def test_a_machine_whose_server_does_not_greet_is_not_ready_and_its_addresses_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, address: str
) -> None:
    monkeypatch.setattr(create, "_GREETING_SECONDS", 0.1)
    with answering(sent) as port, pytest.raises(CommandTimeout, match=f"No server greeted at {address}"):
        wait(_AtAddresses(address), port, tmp_path, 0.2)


def test_guest_with_many_silent_addresses_takes_no_more_than_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "_GREETING_SECONDS", 0.4)
    began = time.monotonic()
    with answering(b"") as port, pytest.raises(CommandTimeout):
        wait(_AtAddresses(*["127.0.0.2"] * 40), port, tmp_path, 0.5)
    assert time.monotonic() - began < 5


def test_a_machine_without_a_known_address_is_not_ready_and_this_is_said(tmp_path: Path) -> None:
    with pytest.raises(CommandTimeout, match="libvirt knows no address of it"):
        wait(_AtAddresses(), 3306, tmp_path, 0)


def test_a_server_is_not_waited_for_where_this_host_has_no_address() -> None:
    marker = create.ready_marker("server")
    with pytest.raises(PreflightError, match="no address on the network"):
        create.refuse_unreachable(marker, "network zsnapdb-isolated")
    create.refuse_unreachable(marker, "bridge br0")
    create.refuse_unreachable(create.ready_marker("agent"), "network zsnapdb-isolated")
