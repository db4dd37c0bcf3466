"""View of the ports that clones keep."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.documents.clone import AddressesDocument
from zsnapdb.jobs.clone.address import KeptPorts
from zsnapdb.report.view import Part, Table, TabularView


class AddressesView(TabularView, kind="clone-addresses", document=AddressesDocument, read_from="known"):
    """The ports that clones keep."""

    known: KeptPorts

    def parts(self) -> Sequence[Part]:
        known = self.known
        rows = []
        for one in known.ports:
            state = "right" if one.is_right else "unknown" if known.error is not None else "wrong"
            clone = one.clone.label if one.clone is not None else "-"
            rows.append((str(one.port), clone, str(one.wanted or "-"), str(one.seen or "-"), state))
        table = Table(("PORT", "CLONE", "MUST LEAD TO", "LEADS TO", "STATE"), rows, "no clone keeps a port")
        return [table, *([known.error.message] if known.error is not None else [])]
