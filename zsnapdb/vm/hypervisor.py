"""The connection to libvirt. Only this module imports libvirt's library (extra `zsnapdb[vm]`).

zsnapdb identifies a domain by its UUID and never by its name alone. `planning/vm/domain.py` reads the XML that libvirt
returns.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zsnapdb.base.errors import CommandError, CommandTimeout, DamagedError, PreflightError, how_to_install
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.domain import Domain, parse

ISOLATED_NETWORK = "zsnapdb-isolated"
"""The default network of clones: a bridge without address, forwarding or name server."""
_POLL_SECONDS = 0.2
_ADDRESS_SECONDS = 2.0
_BUSY_SECONDS = 120.0
"""Seconds for which another libvirt job may lock a domain before zsnapdb reports an error."""
_ISOLATED_XML = (
    f"<network><name>{ISOLATED_NETWORK}</name><bridge name='zsnapdb0' stp='off' delay='0'/><mac "
    "address='52:54:00:00:00:01'/></network>"
)


class MachineState(StrEnum):
    """The state of a domain."""

    RUNNING = "running"
    OFF = "off"
    OTHER = "other"
    MISSING = "missing"


@dataclass(frozen=True)
class KnownDomain:
    """A libvirt domain: its definition for the next start, and its state.

    `was_shut_down` is True if the domain is off because its guest shut down (VIR_DOMAIN_SHUTOFF_SHUTDOWN).
    """

    domain: Domain
    xml: str
    state: MachineState
    was_shut_down: bool = False


class Hypervisor:
    """An open connection to libvirt. Use `connected` to open one."""

    def __init__(self, library: Any, connection: Any, uri: str) -> None:
        self._library = library
        self._connection = connection
        self._uri = uri

    def domains(self) -> list[KnownDomain]:
        """Return all domains, running or not. Domains that are removed during the query are omitted."""
        known = []
        for handle in self._call("listing the domains", self._connection.listAllDomains):
            with contextlib.suppress(self._library.libvirtError):
                known.append(self._known(handle))
        return known

    def _known(self, handle: Any) -> KnownDomain:
        text = handle.XMLDesc(self._library.VIR_DOMAIN_XML_INACTIVE)
        number, reason = handle.state()
        states = {
            self._library.VIR_DOMAIN_RUNNING: MachineState.RUNNING,
            self._library.VIR_DOMAIN_SHUTOFF: MachineState.OFF,
        }
        state = states.get(number, MachineState.OTHER)
        ended = state is MachineState.OFF and reason == self._library.VIR_DOMAIN_SHUTOFF_SHUTDOWN
        return KnownDomain(parse(text), text, state, ended)

    def as_it_runs(self, uuid: str) -> Domain:
        """Return the running domain, including disks that were attached since its start."""
        handle = self._required(uuid)
        return parse(self._call(f"reading the domain {uuid}", lambda: handle.XMLDesc(0)))

    def find(self, uuid: str) -> KnownDomain | None:
        """Return the domain with the UUID; None if no domain has it."""
        handle = self._handle(uuid)
        return None if handle is None else self._call(f"reading the domain {uuid}", lambda: self._known(handle))

    def named(self, name: str) -> KnownDomain:
        """Return the domain with this name. Raises PreflightError if no domain has it."""
        for known in self.domains():
            if known.domain.name == name:
                return known
        raise PreflightError(f"libvirt at {self._uri} has no domain {name}", hint="see `virsh list --all`")

    def define(self, xml: str) -> None:
        """Define the domain. libvirt first validates the XML against its schema, so no part is ignored."""
        self._call("defining a domain", lambda: self._connection.defineXMLFlags(xml, self._define_flags()))

    def _define_flags(self) -> int:
        # libvirt's test driver refuses this flag.
        return 0 if self._uri.startswith("test:") else int(self._library.VIR_DOMAIN_DEFINE_VALIDATE)

    def start(self, uuid: str) -> None:
        """Start the domain. If the domain is already running, do nothing."""
        handle = self._required(uuid)
        if not self._call(f"reading the domain {uuid}", handle.isActive):
            self._call(f"starting the domain {uuid}", handle.create)

    def shut_down(self, uuid: str, patience: float) -> bool:
        """Ask the guest to shut down. Return whether the domain is off after `patience` seconds."""
        handle = self._required(uuid)
        deadline = time.monotonic() + patience
        while self._call(f"reading the domain {uuid}", handle.isActive):
            if time.monotonic() >= deadline:
                return False
            with contextlib.suppress(self._library.libvirtError):
                handle.shutdown()
            time.sleep(_POLL_SECONDS)
        return True

    def power_off(self, uuid: str) -> None:
        """Power the domain off. If the domain is off or does not exist, do nothing."""
        handle = self._handle(uuid)
        if handle is not None and self._call(f"reading the domain {uuid}", handle.isActive):
            self._when_free("ending a domain", handle, lambda: self._end(handle))

    def _end(self, handle: Any) -> None:
        try:
            handle.destroy()
        except self._library.libvirtError:
            if handle.isActive():
                raise

    def _when_free(self, doing: str, handle: Any, act: Callable[[], object]) -> None:
        """Call `act`, and repeat the call while another libvirt job locks the domain.

        After a restart, libvirt takes a long time to find its QEMU processes. libvirt itself waits 30 s for the
        domain's lock (VIR_ERR_OPERATION_TIMEOUT). If the domain is still starting after that time, the error is raised
        immediately. Such a domain stays locked if libvirt was killed between writing the domain's status and creating
        the QEMU process (libvirt 11.3, observed in the lab).
        """
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                act()
            except self._library.libvirtError as error:
                busy = error.get_error_code() == self._library.VIR_ERR_OPERATION_TIMEOUT
                if busy and self._is_starting(handle):
                    raise self._never_started(doing, handle) from error
                if not busy or time.monotonic() >= deadline:
                    raise self._error(doing, error) from error
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _is_starting(self, handle: Any) -> bool:
        starting = [self._library.VIR_DOMAIN_PAUSED, self._library.VIR_DOMAIN_PAUSED_STARTING_UP]
        return bool(self._call("reading the state of a domain", handle.state) == starting)

    def _never_started(self, doing: str, handle: Any) -> CommandTimeout:
        name = self._call("reading the name of a domain", handle.name)
        return CommandTimeout(
            f"{doing} at {self._uri}: libvirt says that the domain {name} is being started and cannot be changed",
            hint="try again. If QEMU has no process for it, libvirt was killed while it started the domain: stop"
            f" libvirt's daemon, remove /run/libvirt/qemu/{name}.xml, start the daemon, and run the command again",
        )

    def undefine(self, uuid: str) -> None:
        """Undefine the domain, and remove its NVRAM file and saved state. If the domain does not exist, do nothing."""
        handle = self._handle(uuid)
        if handle is not None:
            flags = (
                self._library.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
                | self._library.VIR_DOMAIN_UNDEFINE_NVRAM
                | self._library.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
            )
            if self._uri.startswith("test:"):
                flags = 0
            self._when_free(f"removing the domain {uuid}", handle, lambda: handle.undefineFlags(flags))

    def agent_answers(self, uuid: str) -> bool:
        """Whether the agent inside the guest currently answers."""
        try:
            guest = importlib.import_module("libvirt_qemu")
            return bool(guest.qemuAgentCommand(self._required(uuid), '{"execute": "guest-ping"}', 2, 0))
        except (self._library.libvirtError, ImportError):
            return False

    def ask_agent(self, uuid: str, command: str, seconds: float) -> str:
        """Send a command in JSON to the agent inside the guest, and return the agent's answer.

        virDomainFSFreeze has no time limit, so zsnapdb sends the agent's own commands. Raises CommandError if the guest
        has no agent or the agent refuses the command. Raises CommandTimeout if the agent does not answer within
        `seconds` (at least one).
        """
        doing = f"asking the guest agent of the domain {uuid}"
        try:
            guest = importlib.import_module("libvirt_qemu")
        except ImportError as error:
            raise CommandError(f"{doing}: {error}", hint="install Debian's package python3-libvirt") from error
        handle = self._required(uuid)
        return str(self._call(doing, lambda: guest.qemuAgentCommand(handle, command, max(1, math.ceil(seconds)), 0)))

    def addresses(self, uuid: str) -> tuple[str, ...]:
        """Return the guest's addresses from its agent, from a DHCP lease or from the host's ARP table.

        virDomainInterfaceAddresses waits for an agent without limit, so the agent is queried separately.
        """
        handle = self._required(uuid)
        addresses: set[str] = set()
        with contextlib.suppress(CommandError, DamagedError):
            addresses |= set(
                guest_agent_messages.addresses(self.ask_agent(uuid, guest_agent_messages.INTERFACES, _ADDRESS_SECONDS))
            )
        for source in ("LEASE", "ARP"):
            number = getattr(self._library, f"VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_{source}")
            with contextlib.suppress(self._library.libvirtError):
                for interface in handle.interfaceAddresses(number, 0).values():
                    addresses |= {str(item["addr"]) for item in interface["addrs"] or ()}
        return tuple(sorted(address for address in addresses if _is_reachable(address)))

    def networks(self) -> tuple[str, ...]:
        """Return the names of libvirt's networks, active or not."""
        return tuple(network.name() for network in self._call("listing networks", self._connection.listAllNetworks))

    def make_isolated_network(self) -> None:
        """Define and start the isolated network, unless it is running.

        The network only connects clones with each other.

        Raises PreflightError if a different network has this name.
        """
        known = {n.name(): n for n in self._call("listing networks", self._connection.listAllNetworks)}
        network = known.get(ISOLATED_NETWORK)
        if network is None:
            network = self._call(
                "defining the isolated network", lambda: self._connection.networkDefineXML(_ISOLATED_XML)
            )
        text = self._call("reading the isolated network", lambda: network.XMLDesc(0))
        if "<forward" in text or "<ip " in text:
            raise PreflightError(
                f"the network {ISOLATED_NETWORK} is not isolated: it has an address or forwards",
                hint=f"see `virsh net-dumpxml {ISOLATED_NETWORK}`; remove the network, or name one with --network",
            )
        if not network.isActive():
            self._call(f"starting the network {ISOLATED_NETWORK}", network.create)

    def _handle(self, uuid: str) -> Any:
        try:
            return self._connection.lookupByUUIDString(uuid)
        except self._library.libvirtError as error:
            if error.get_error_code() == self._library.VIR_ERR_NO_DOMAIN:
                return None
            raise self._error(f"finding the domain {uuid}", error) from error

    def _required(self, uuid: str) -> Any:
        handle = self._handle(uuid)
        if handle is None:
            raise PreflightError(f"libvirt at {self._uri} has no domain {uuid}", hint="see `virsh list --all --uuid`")
        return handle

    def _call(self, doing: str, act: Any) -> Any:
        try:
            return act()
        except self._library.libvirtError as error:
            raise self._error(doing, error) from error

    def _error(self, doing: str, error: Exception) -> CommandError:
        text = " ".join(str(error).split())
        if "timed out" in text:
            return CommandTimeout(f"{doing} at {self._uri}: {text}", hint="see the log of libvirt")
        return CommandError(f"{doing} at {self._uri}: {text}", hint="see the log of libvirt and `virsh list --all`")


def _is_reachable(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_link_local)


@contextlib.contextmanager
def connected(uri: str) -> Iterator[Hypervisor]:
    """Connect to libvirt for the block. Raises PreflightError if the library is missing or libvirt does not answer."""
    try:
        library = importlib.import_module("libvirt")
    except ImportError as error:
        raise PreflightError(
            f"virtual machines need the Python library of libvirt, which cannot be imported: {error}",
            hint=f"{how_to_install('libvirt-python')}, or Debian's package python3-libvirt",
        ) from error
    # The library prints every error to stderr, unless it has an error handler.
    library.registerErrorHandler(lambda _context, _error: None, None)
    try:
        connection = library.open(uri)
    except library.libvirtError as error:
        raise PreflightError(
            f"connecting to libvirt at {uri}: {' '.join(str(error).split())}",
            hint="start libvirt (`systemctl start libvirtd`), or set vms.uri",
        ) from error
    try:
        yield Hypervisor(library, connection, uri)
    finally:
        with contextlib.suppress(library.libvirtError):
            connection.close()
