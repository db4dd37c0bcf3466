"""Known damage in texts and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.planning.damage import KnownDamage


def chain_lines(chains: Mapping[str, Sequence[KnownDamage]]) -> list[str]:
    """Return a line for each damage, and one for each other backup whose chain has it.

    `chains` maps the ids of backups to the damage of their chains.
    """
    each = dict.fromkeys(damage for damages in chains.values() for damage in damages)
    lines = [f"damaged: {damage.describe()}" for damage in each]
    for backup_id, damages in chains.items():
        names = [damage.name for damage in damages if damage.name != backup_id]
        if names:
            lines.append(f"damaged: backup {backup_id} needs {', '.join(dict.fromkeys(names))}")
    return lines
