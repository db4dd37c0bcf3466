"""All rules of `doctor`, and their findings about an instance. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from zsnapdb.base.errors import ConfigError
from zsnapdb.planning.advice import dataset_rules, server_rules
from zsnapdb.planning.advice.facts import AdviceFacts, Rule, RuleFinding
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok

AREAS: Mapping[str, tuple[Rule, ...]] = {
    "Datasets": dataset_rules.RULES,
    "Pool": dataset_rules.POOL_RULES,
    "Memory and module": server_rules.MEMORY_RULES,
    "Server": server_rules.RULES,
    "Recovery": server_rules.RECOVERY_RULES,
}
"""The rules of each area. The documentation page of the rules has a section for each area."""
RULES = tuple(rule for rules in AREAS.values() for rule in rules)
"""Every rule. To add a rule, add a check and a line in the list of its area."""


@dataclass(frozen=True)
class Silence:
    """The configured silence of a rule, with its reason and its last day (UTC)."""

    rule: str
    reason: str
    until: date


def find_rule(rule_id: str) -> Rule | None:
    """Return the rule that has this id; None if there is no such rule."""
    return next((rule for rule in RULES if rule.id == rule_id), None)


def check_silences(silences: Sequence[Silence]) -> None:
    """Raise ConfigError if a silence names an unknown rule, or a rule whose findings prevent backups."""
    for silence in silences:
        rule = find_rule(silence.rule)
        if rule is None:
            raise ConfigError(
                f"doctor.silenced names the rule {silence.rule!r}, which does not exist",
                hint=f"choose from {', '.join(known.id for known in RULES)}",
            )
        if rule.severity is Severity.UNFIT:
            raise ConfigError(
                f"doctor.silenced names the rule {silence.rule!r}: findings that prevent a backup cannot be silenced",
                hint="remove that section",
            )


def judge_advice(facts: AdviceFacts, silences: Sequence[Silence]) -> tuple[FitnessFinding, ...]:
    """Return all findings of rules, one for each unreadable fact, and one that counts the rules without findings.

    Silenced findings are included with the severity OK. A silence has no effect after its last day.
    """
    findings: list[FitnessFinding] = []
    holding = 0
    for rule in RULES:
        hits = tuple(rule.check(facts))
        holding += not hits
        findings += [_finding(rule, hit, silences, facts.at.date()) for hit in hits]
    findings += [ok("advice", f"not judged: {text}") for text in facts.unread]
    return (*findings, ok("advice", f"{holding} of {len(RULES)} rules found nothing"))


def _finding(rule: Rule, hit: RuleFinding, silences: Sequence[Silence], today: date) -> FitnessFinding:
    silence = next((silence for silence in silences if silence.rule == rule.id), None)
    if silence is not None and today <= silence.until:
        detail = f"{hit.fact} (silenced until {silence.until}: {silence.reason})"
        return FitnessFinding(Severity.OK, rule.id, detail, rule=rule.id)
    over = f" (it was silenced until {silence.until}: {silence.reason})" if silence is not None else ""
    return FitnessFinding(rule.severity, rule.id, hit.fact + over, hit.fix or rule.fix, rule.id, hit.change)
