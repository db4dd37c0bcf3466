"""Finds contradictions between the configuration of an instance and the host on which setup runs. Pure.

Every other existing value simply stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zsnapdb.config.repository import parse_address
from zsnapdb.planning.setup.configuration import SetupSurroundings, place_of
from zsnapdb.planning.setup.facts import FoundServer, SetupAnswers, SetupRefusal
from zsnapdb.planning.setup.layout import command_line

_LOOPBACK = re.compile(r"localhost|::1|127\.[0-9.]+")


def contradictions(
    file: str, around: SetupSurroundings, answers: SetupAnswers, server: FoundServer
) -> Iterator[SetupRefusal]:
    """Yield a refusal for each value of the instance in the configuration file that belongs to another installation."""
    own, name = around.own, answers.instance
    other = f"or set up another instance with --instance NAME ({name} stays)"
    if "vm" in own:
        yield SetupRefusal(
            f"{file} says that the instance {name} is a virtual machine, and setup found {server.sockets[0]}",
            f"give the server another name: --instance NAME ({file} may have several instances)",
        )
        return
    host = str(own.get("host", "localhost"))
    if _LOOPBACK.fullmatch(host) is None:
        why = f"{file} says that the server of {name} is on {host}, and setup found {server.sockets[0]} on this host"
        yield SetupRefusal(why, f"remove host from [instance.{name}] of {file} if the server moved here, {other}")
    socket = own.get("socket")
    if socket is not None and not any(is_same_path(str(socket), known) for known in server.sockets):
        why = f"{file} says socket = {socket} for {name}, and setup found a server that listens on {server.sockets[0]}"
        yield SetupRefusal(
            why, f"start the server of {name}; change socket in [instance.{name}] if it listens there now, {other}"
        )
    volumes = own.get("volumes")
    known = [str(dataset) for dataset in volumes.values()] if isinstance(volumes, dict) else []
    if known and server.dataset not in known:
        where = server.dataset or f"{server.datadir} on {server.filesystem}"
        why = f"{file} says that the files of {name} are on {', '.join(known)}, and setup found them on {where}"
        yield SetupRefusal(
            why, f"remove volumes from [instance.{name}] of {file}: zsnapdb then finds the datasets; {other}"
        )
    if around.is_shared and own:
        yield from _other_repository(file, around, answers)


def _other_repository(file: str, around: SetupSurroundings, answers: SetupAnswers) -> Iterator[SetupRefusal]:
    name, (url, endpoint) = answers.instance, place_of(around.stored_in)
    is_same_store = answers.endpoint in (None, endpoint)
    if _is_same_address(str(url), answers.repository) and is_same_store:
        return
    known, wanted = (
        (str(url), answers.repository)
        if is_same_store
        else (_place(url, endpoint), _place(answers.repository, answers.endpoint))
    )
    removal = command_line(file, "setup", "--remove", "--instance", name)
    yield SetupRefusal(
        f"{file} says that the backups of {name} go to {known}, and the answers say {wanted}",
        f"change [repository.{around.repository}] of {file} if its address is wrong; or run `{removal}` first, which"
        " keeps all backups and keys; `zsnapdb copy` makes a second copy of the backups",
    )


def _place(url: object, endpoint: object) -> str:
    return f"{url} at {endpoint}" if endpoint else f"{url} without an endpoint"


def _is_same_address(known: str, wanted: str) -> bool:
    try:
        return parse_address(known) == parse_address(wanted)
    except ValueError:
        return False


def is_same_path(known: str, found: str) -> bool:
    """Return whether two socket paths are the same. The folder /var/run is a link to /run on every supported system."""
    return known.replace("/var/run/", "/run/", 1) == found.replace("/var/run/", "/run/", 1)
