"""Which instances begin no job now, because their servers are being replaced and are down."""

from __future__ import annotations

from collections.abc import Mapping

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.steps import exchanges, move_state
from zsnapdb.planning.health.facts import ExchangedServer


def held_back(settings: Settings) -> Mapping[str, str]:
    """Return the instances whose jobs wait, each with the reason and both ways out.

    While a restore that replaces the server is prepared, production goes on, and so do its jobs. Nothing is held back
    because of what cannot be read: a job that fails says more than one that never begins.
    """
    reasons = {}
    for name in settings.instance:
        try:
            reason = _reason(Instance.of(settings, name))
        except (ZsnapdbError, OSError):
            continue
        if reason:
            reasons[name] = reason
    return reasons


def _reason(instance: Instance) -> str:
    for exchange in exchanges.under_way(instance):
        onward, back = exchange.commands
        if exchange.server is ExchangedServer.AWAY:
            return "its server is down while a rewind, or a restore in its place, is at work"
        if exchange.server is ExchangedServer.LEFT:
            return (
                "its server is down, and a rewind, or a restore in its place, did not end:"
                f" `{onward}` goes on, `{back}` gives it up"
            )
    if move_state.is_moved(instance.settings.socket):
        return "its server is down, and the move of its files did not end: `zsnapdb setup` with the same words goes on"
    return ""
