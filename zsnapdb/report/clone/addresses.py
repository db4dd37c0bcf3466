"""View of the ports that clones keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.clone.address import KeptPort, KeptPorts, route_of
from zsnapdb.planning.clone.addresses import KeptRoute
from zsnapdb.report.parts import Part, Table, TabularView


class KeptPortFields(TypedDict):
    """A port: the clone that keeps it (null: none), where it must lead, and where HAProxy leads it (null: nowhere)."""

    port: int
    clone: str | None
    wanted: str | None
    leads: str | None
    right: bool


class AddressesDocument(TypedDict):
    """The ports that clones keep. `error`: why HAProxy does not say where they lead."""

    ports: list[KeptPortFields]
    error: str | None


def _text(route: KeptRoute | None) -> str | None:
    return f"{route.host}:{route.port}" if route is not None else None


def _fields(kept: KeptPort) -> KeptPortFields:
    clone = kept.clone
    return {
        "port": kept.port,
        "clone": clone.label if clone is not None else None,
        "wanted": _text(route_of(clone)) if clone is not None else None,
        "leads": _text(kept.seen),
        "right": kept.is_right,
    }


@dataclass(frozen=True)
class AddressesView(TabularView):
    """The ports that clones keep."""

    known: KeptPorts
    kind: ClassVar[str] = "clone-addresses"

    def parts(self) -> Sequence[Part]:
        known = self.known
        rows = []
        for one in map(_fields, known.ports):
            state = "right" if one["right"] else "unknown" if known.error is not None else "wrong"
            rows.append((str(one["port"]), one["clone"] or "-", one["wanted"] or "-", one["leads"] or "-", state))
        table = Table(("PORT", "CLONE", "MUST LEAD TO", "LEADS TO", "STATE"), rows, "no clone keeps a port")
        return [table, *([known.error.message] if known.error is not None else [])]

    def fields(self) -> AddressesDocument:
        error = self.known.error
        return {"ports": [_fields(one) for one in self.known.ports], "error": error.message if error else None}
