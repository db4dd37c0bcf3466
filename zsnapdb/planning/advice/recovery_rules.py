"""Rules about the bad day: what `undo`, `rescue` and `rewind` need of the server's accounts and of this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from zsnapdb.planning.advice.facts import AdviceFacts
from zsnapdb.planning.advice.rule import Area, Hit, Rule
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok
from zsnapdb.planning.family import family

_NEEDS = {
    "undo": ("recovery-account",),
    "rescue into the server": ("recovery-account", "plugins"),
    "rewind": ("rewind-control", "plugins"),
    "drill": ("server program", "drill", "plugins"),
    "clone": ("server program", "plugins"),
}
"""The findings that say why a command of a bad day would be refused, or need more words."""


def possible(findings: Iterable[FitnessFinding]) -> FitnessFinding:
    """Return what will be possible on a bad day with these findings of an instance, and which finding says why not."""
    against = {finding.what for finding in findings if finding.severity is not Severity.OK}
    missing = {name: [what for what in needs if what in against] for name, needs in _NEEDS.items()}
    text = ", ".join(name for name, why in missing.items() if not why) or "nothing"
    why_not = "; ".join(f"{name}: see {why[0]}" for name, why in missing.items() if why)
    return ok("bad day", f"possible as it is: {text}{f'; {why_not}' if why_not else ''}")


def _account(facts: AdviceFacts) -> Iterable[Hit]:
    ways = facts.recovery
    if ways is None or ways.lets_root_in:
        return
    yield Hit("root is not let in by the socket: `rescue --into-instance` and `undo --apply` need --user")
    if facts.privileges is not None and "TRIGGER" not in facts.privileges:
        user, _, host = ways.account.rpartition("@")
        yield Hit(
            f"`undo` needs --user too: {ways.account} does not see triggers",
            f"GRANT TRIGGER ON *.* TO `{user}`@`{host}`",
        )


def _rewind(facts: AdviceFacts) -> Iterable[Hit]:
    ways = facts.recovery
    if ways is None:
        return
    if ways.no_control:
        yield Hit(ways.no_control, "set control.unit of the instance, or control.stop and control.start")
    kind = family(facts.server.flavour)
    if not kind.has_uuid and not ways.has_server_id_file:
        file = f"{kind.option_folder}/zz-zsnapdb.cnf"
        yield Hit(
            f"a rewound {kind.title} needs a new server_id, and nothing says where it is written",
            f'set control.server_id_file = "{file}", a new file in a folder that its option files include',
        )


RECOVERY_RULES = (
    Rule(
        "recovery-account",
        Area.RECOVERY,
        "An account that may write is known for `rescue --into-instance` and `undo`.",
        "The account of zsnapdb only reads, on purpose. These commands log in as root by the socket: nothing has to be"
        " remembered at three in the morning. An undo has to see triggers, or no transaction is undone.",
        'refman 8.4, "Socket Peer-Credential Pluggable Authentication", "The INFORMATION_SCHEMA TRIGGERS Table";'
        ' MariaDB manual, "Authentication Plugin - Unix Socket"',
        "let root in by the socket, or have a file with the password of another account at hand; a rescue into a file"
        " works without",
        _account,
    ),
    Rule(
        "rewind-control",
        Area.RECOVERY,
        "`zsnapdb rewind` knows how the server is stopped and started, and where MariaDB gets its new server_id.",
        "A rewind stops the server, exchanges its datasets and starts it again. With its old server_id MariaDB would"
        " write GTIDs a second time.",
        'MariaDB manual, "Global Transaction ID"; systemctl(1)',
        "set it in [instance.NAME.control]",
        _rewind,
    ),
)
