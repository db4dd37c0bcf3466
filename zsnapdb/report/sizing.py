"""View of a sizing estimate."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.quantities import format_duration, format_setting, size
from zsnapdb.documents.sizing import SizingDocument
from zsnapdb.planning.sizing.estimate import SizingEstimate
from zsnapdb.planning.sizing.prices import NOTE
from zsnapdb.planning.sizing.rates import BACKUP, RESTORE, STORED
from zsnapdb.report.units import paragraph
from zsnapdb.report.view import View


class SizingView(View, kind="sizing", document=SizingDocument, read_from="estimate"):
    """Hours, memory, objects, requests and money for a server."""

    estimate: SizingEstimate

    def text(self) -> str:
        one, load = self.estimate, self.estimate.workload
        kept = one.kept
        every, full_every = format_setting(load.every), format_setting(load.full_every)
        full, increments, binlogs = map(size, (one.stored_full, one.stored_increments, one.stored_binlogs))
        lines = [
            (
                f"data        {size(load.size)}, {size(round(load.change))} changed and {size(round(load.binlog))} of"
                f" binlog a day"
            ),
            (
                f"backups     every {every}, full every {full_every}; the policy"
                f" keeps at most {kept.full} full, {kept.increments} increments, {kept.days:.0f} days"
            ),
            f"full        {format_duration(one.full_seconds)}, {one.full_objects} objects",
            f"increment   {format_duration(one.increment_seconds)}",
            f"restore     {format_duration(one.restore_seconds)}, without the replay of binlogs",
            f"memory      backup {size(one.backup_memory)}, restore {size(one.restore_memory)}",
            (f"stored      {size(one.stored)}: full {full}, increments {increments}, binlogs {binlogs}"),
            f"objects     {one.objects}",
            f"requests    {one.requests.put:.0f} PUT, {one.requests.list:.0f} LIST, {one.requests.get:.0f} GET a month",
        ]
        for cost in one.costs:
            money = cost.price.currency
            lines.append(
                f"cost        {cost.month:.2f} {money} a month: storage {cost.storage:.2f}, requests"
                f" {cost.requests:.2f}; {cost.restore:.2f} {money} for a restore elsewhere ({cost.price.name},"
                f" {cost.price.date}, {cost.price.source})"
            )
        return "\n".join([*lines, *_basis(load.line)])


def _basis(line: float) -> Sequence[str]:
    """Return the measurements behind the figures."""
    return [
        *paragraph("basis       ", f"a line of {size(round(line))}/s; the slower one of line and program decides"),
        *paragraph("            ", f"backup {size(round(BACKUP.value))}/s: {BACKUP.source}"),
        *paragraph("            ", f"restore {size(round(RESTORE.value))}/s: {RESTORE.source}"),
        *paragraph("            ", f"stored as {STORED.value}: {STORED.source}"),
        *paragraph("            ", NOTE),
    ]
