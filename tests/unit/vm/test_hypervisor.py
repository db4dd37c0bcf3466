"""The adapter of libvirt, on libvirt's own test driver: a hypervisor in memory."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.planning.vm.test_clone_domain import FIRST
from tests.unit.planning.vm.test_restored_domain import IDENTITY
from zsnapdb.base.errors import CommandError, CommandTimeout, PreflightError
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.clone_domain import clone_xml, new_domain
from zsnapdb.planning.vm.restored_domain import is_of_restore, restored
from zsnapdb.vm.hypervisor import ISOLATED_NETWORK, Hypervisor, MachineState, connected

with_libvirt = pytest.mark.skipif(
    importlib.util.find_spec("libvirt") is None, reason="the extra zsnapdb[vm] (libvirt-python) is not installed"
)
URI = "test:///default"


@pytest.fixture
def hypervisor() -> Iterator[Hypervisor]:
    with connected(URI) as opened:
        yield opened


def _domain(name: str = "pxc1") -> str:
    base = new_domain("base", {"vda": "/dev/null"}, 64 << 20, 1, kind="test")
    # The test driver knows the machine type of its own guests only.
    base = base.replace(' machine="q35"', "").replace('arch="x86_64"', 'arch="i686"')
    base = base.replace("<genid>00000000-0000-0000-0000-000000000000</genid>", "")
    return clone_xml(base, replace(FIRST, name=name, nvram=None))


@with_libvirt
def test_a_clone_is_defined_started_found_by_its_mark_and_forgotten(hypervisor: Hypervisor) -> None:
    hypervisor.define(_domain())
    known = hypervisor.find(FIRST.uuid)
    assert known is not None
    assert (known.state, known.domain.name) == (MachineState.OFF, "pxc1")
    assert known.domain.is_marked(FIRST.name, FIRST.uuid, FIRST.dataset)
    assert [disk.source for disk in known.domain.volumes] == [FIRST.disks["vda"]]
    hypervisor.make_isolated_network()
    hypervisor.start(FIRST.uuid)
    hypervisor.start(FIRST.uuid)
    assert hypervisor.named("pxc1").state is MachineState.RUNNING
    assert not hypervisor.agent_answers(FIRST.uuid)
    assert hypervisor.shut_down(FIRST.uuid, 10)
    hypervisor.start(FIRST.uuid)
    hypervisor.power_off(FIRST.uuid)
    hypervisor.power_off(FIRST.uuid)
    hypervisor.undefine(FIRST.uuid)
    hypervisor.undefine(FIRST.uuid)
    assert hypervisor.find(FIRST.uuid) is None


@with_libvirt
def test_what_libvirt_refuses_is_an_error_with_its_words_and_prints_nothing(
    hypervisor: Hypervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="defining a domain at test:///default"):
        hypervisor.define("<domain type='test'/>")
    with pytest.raises(PreflightError, match="no domain"):
        hypervisor.start("00000000-0000-4000-8000-00000000000f")
    with pytest.raises(PreflightError, match="no domain nothing"):
        hypervisor.named("nothing")
    assert capfd.readouterr() == ("", "")


@with_libvirt
def test_the_isolated_network_has_no_address_and_leads_nowhere(hypervisor: Hypervisor) -> None:
    hypervisor.make_isolated_network()
    hypervisor.make_isolated_network()
    assert ISOLATED_NETWORK in hypervisor.networks()
    network = hypervisor._connection.networkLookupByName(ISOLATED_NETWORK)
    text = network.XMLDesc(0)
    assert network.isActive()
    assert "<forward" not in text
    assert "<ip " not in text
    network.destroy()
    network.undefine()
    hypervisor._connection.networkDefineXML(
        f"<network><name>{ISOLATED_NETWORK}</name><forward mode='nat'/><ip address='10.9.9.1' prefix='24'/></network>"
    )
    with pytest.raises(PreflightError, match="is not isolated"):
        hypervisor.make_isolated_network()
    hypervisor._connection.networkLookupByName(ISOLATED_NETWORK).undefine()


@with_libvirt
def test_a_libvirt_that_does_not_answer_is_an_error_with_its_address(tmp_path: Path) -> None:
    with (
        pytest.raises(PreflightError, match="connecting to libvirt at qemu"),
        connected(f"qemu:///system?socket={tmp_path}/none"),
    ):
        pass


def test_without_its_library_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libvirt", None)
    with pytest.raises(PreflightError) as caught, connected(URI):
        pass
    assert "libvirt-python" in caught.value.hint


@with_libvirt
def test_a_machine_that_its_guest_shut_down_is_told_apart_from_one_that_lost_its_power(hypervisor: Hypervisor) -> None:
    hypervisor.define(_domain())
    assert not hypervisor.named("pxc1").was_shut_down
    hypervisor.start(FIRST.uuid)
    running = hypervisor.named("pxc1")
    assert (running.state, running.was_shut_down) == (MachineState.RUNNING, False)
    assert [disk.source for disk in hypervisor.as_it_runs(FIRST.uuid).volumes] == [FIRST.disks["vda"]]
    assert hypervisor.shut_down(FIRST.uuid, 10)
    assert hypervisor.named("pxc1").was_shut_down
    hypervisor.start(FIRST.uuid)
    hypervisor.power_off(FIRST.uuid)
    known = hypervisor.named("pxc1")
    assert (known.state, known.was_shut_down) == (MachineState.OFF, False)


@with_libvirt
def test_an_agent_that_cannot_be_asked_is_an_error_of_the_package(hypervisor: Hypervisor) -> None:
    hypervisor.define(_domain())
    hypervisor.start(FIRST.uuid)
    with pytest.raises(CommandError, match="asking the guest agent of the domain"):
        hypervisor.ask_agent(FIRST.uuid, guest_agent_messages.STATUS, 0.1)


@with_libvirt
def test_a_restored_domain_is_defined_and_known_by_its_restore(hypervisor: Hypervisor) -> None:
    made = restored(_domain(), IDENTITY, ISOLATED_NETWORK)
    hypervisor.define(made.xml)
    known = hypervisor.find(IDENTITY.uuid)
    assert known is not None
    assert (known.domain.name, known.state, known.domain.mark) == (IDENTITY.name, MachineState.OFF, None)
    assert is_of_restore(known.xml, IDENTITY.restore_id)
    assert "<link state='down'/>" in known.xml


class Busy(Exception):
    """What the library raises while another job holds the domain."""

    def get_error_code(self) -> int:
        return BusyLibrary.VIR_ERR_OPERATION_TIMEOUT


class BusyLibrary:
    """A library whose only domain is held by another job for a number of calls."""

    VIR_ERR_OPERATION_TIMEOUT = 68
    VIR_DOMAIN_PAUSED, VIR_DOMAIN_PAUSED_STARTING_UP = 3, 11
    libvirtError = Busy  # noqa: N815 - the library's own name

    def __init__(self, calls: int, state: tuple[int, int] = (1, 1)) -> None:
        self.calls = calls
        self.runs = True
        self.now = state

    def state(self) -> list[int]:
        return [*self.now]

    def name(self) -> str:
        return "pxc1"

    def lookupByUUIDString(self, _uuid: str) -> BusyLibrary:  # noqa: N802
        return self

    def isActive(self) -> bool:  # noqa: N802
        return self.runs

    def destroy(self) -> None:
        self.calls -= 1
        if self.calls >= 0:
            raise Busy("cannot acquire state change lock")
        self.runs = False


def test_a_domain_that_another_job_of_libvirt_holds_is_ended_when_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zsnapdb.vm.hypervisor._POLL_SECONDS", 0)
    library = BusyLibrary(2)
    Hypervisor(library, library, URI).power_off(FIRST.uuid)
    assert not library.runs
    monkeypatch.setattr("zsnapdb.vm.hypervisor._BUSY_SECONDS", 0)
    library = BusyLibrary(2)
    with pytest.raises(CommandError, match=r"ending a domain .* state change lock"):
        Hypervisor(library, library, URI).power_off(FIRST.uuid)


def test_a_domain_that_libvirt_never_ends_to_start_is_an_error_at_once_which_says_what_to_do() -> None:
    library = BusyLibrary(2, (BusyLibrary.VIR_DOMAIN_PAUSED, BusyLibrary.VIR_DOMAIN_PAUSED_STARTING_UP))
    with pytest.raises(CommandTimeout, match="pxc1 is being started") as raised:
        Hypervisor(library, library, URI).power_off(FIRST.uuid)
    assert library.calls == 1
    assert "remove /run/libvirt/qemu/pxc1.xml" in str(raised.value.hint)
