"""Builds the commands with which a person reaches a clone: the interactive client, and an ssh tunnel. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ConsistencyError, UsageError

_VIA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]{0,253}")
"""A host, USER@HOST, or a name in ssh_config(5). ssh would treat an argument that begins with `-` as an option."""
_ADDRESS = re.compile(r"[0-9A-Za-z][0-9A-Za-z.%-]{0,253}|[0-9A-Fa-f:.]{2,45}")
_EVERY = ("*", "::", "0.0.0.0")  # noqa: S104 - it is recognised, and not listened on
_LAST_PORT = 65535
LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Tunnel:
    """A port on this computer, and the host and port to which the ssh server forwards the connections to this port."""

    via: str
    local_port: int
    host: str
    port: int

    def arguments(self, program: str) -> list[str]:
        """Return the ssh command.

        The ssh command runs no program on the other host, and fails if the port cannot be forwarded.
        """
        host = f"[{self.host}]" if ":" in self.host else self.host
        forward = f"{LOCAL_HOST}:{self.local_port}:{host}:{self.port}"
        options = ("-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=30")
        return [program, "-N", "-T", *options, "-L", forward, "--", self.via]


def tunnel_to(via: str, local_port: int, bind_address: str, port: int) -> Tunnel:
    """Return the tunnel to a server that listens on this address and port of the host `via`.

    Raises:
        UsageError: `via` is not a valid host, or a port is invalid
        ConsistencyError: the address is invalid
    """
    if _VIA.fullmatch(via) is None:
        raise UsageError(f"{via!r} is not an SSH host", hint="give HOST, USER@HOST, or a name of ~/.ssh/config")
    for number in (local_port, port):
        if not 0 < number <= _LAST_PORT:
            raise UsageError(f"{number} is not a port", hint=f"give a number from 1 to {_LAST_PORT}")
    host = LOCAL_HOST if bind_address in _EVERY else bind_address
    if _ADDRESS.fullmatch(host) is None:
        raise ConsistencyError("the service did not report an address of the clone", hint="give the port with --port")
    return Tunnel(via, local_port, host, port)


_ADDRESSES = ("host", "port", "socket", "protocol", "dns-srv-name", "pipe", "shared-memory-base-name")
_FILES = (
    *("defaults-file", "defaults-extra-file", "defaults-group-suffix", "login-path", "no-defaults", "no-login-paths"),
    "print-defaults",
)
_CHECKS = ("init-command", "init-command-add")
_PREFIXES = ("loose-", "enable-", "skip-", "disable-", "maximum-")
_SHORTEST = {"host": "ho", "port": "por", "socket": "so", "protocol": "pro", "pipe": "pip"}
_LETTERS = "hPSW"
"""The letters of the options that set the server's address."""
_LETTERS_WITH_VALUE = "eDu#pT"
"""The letters of options whose value may follow in the same argument.

`_LETTERS_WITH_NEXT` contains the letters of options whose value is the next argument.
"""
_LETTERS_WITH_NEXT = "eDu"


def client_arguments(program: str, options: str, host: str, port: int, words: Sequence[str]) -> list[str]:
    """Return the whole command: the option file, then the user's arguments, and last the address of the clone.

    The client uses the last value of an option, so no argument can change the address. Raises UsageError if an argument
    sets an address.
    """
    for word in _options_in(words):
        if _leads_elsewhere(word):
            raise UsageError(
                f"{word.partition('=')[0]} cannot be used with a clone: the client connects only to the clone",
                hint="leave it out; for another server start its client yourself",
            )
    address = [f"--host={host}", f"--port={port}", "--protocol=tcp"]
    end = list(words).index("--") if "--" in words else len(words)
    return [program, f"--defaults-file={options}", *words[:end], *address, *words[end:]]


def _options_in(words: Sequence[str]) -> list[str]:
    """Return the arguments that a client reads as options, without the values of these options."""
    found, is_value = list[str](), False
    for word in words:
        if word == "--":
            break
        if not is_value and word.startswith("-") and word != "-":
            found.append(word)
        is_value = not is_value and _takes_next(word)
    return found


def _takes_next(word: str) -> bool:
    if word.startswith("--"):
        return word in (
            *("--execute", "--database", "--user", "--default-character-set", "--delimiter", "--tee", "--prompt"),
        )
    has_value = any(letter in _LETTERS_WITH_VALUE for letter in word[1:-1])
    return word.startswith("-") and word[-1] in _LETTERS_WITH_NEXT and not has_value


def _leads_elsewhere(word: str) -> bool:
    if word.startswith("--"):
        return _is_name_of(word[2:].partition("=")[0].replace("_", "-"), (*_ADDRESSES, *_FILES, *_CHECKS))
    for letter in word[1:]:
        if letter in _LETTERS:
            return True
        if letter in _LETTERS_WITH_VALUE:
            return False
    return False


def _is_name_of(name: str, options: Sequence[str]) -> bool:
    """Return whether the name is one of these options or an abbreviation of one (refman 8.4, "Using Options")."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return any(option.startswith(name) and len(name) >= len(_SHORTEST.get(option, option[:4])) for option in options)
