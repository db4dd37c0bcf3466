"""Page of the rules of `zsnapdb doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from zsnapdb.planning.advice.catalogue import AREAS, RULES
from zsnapdb.planning.advice.facts import Rule
from zsnapdb.planning.backup.fitness import Severity

_HEAD = f"""# Doctor

`zsnapdb doctor` checks everything that a backup needs. It also checks the {len(RULES)} rules on this page, which
concern MySQL and MariaDB on ZFS. The rules use facts that zsnapdb reads from this host: the ZFS properties of the
datasets, the output of `zpool`, `/sys/module/zfs/parameters`, `/proc/spl/kstat/zfs/arcstats` and the server variables.
If `doctor` cannot read a fact, it prints a message about this fact, and does not check the rules that need it.

`doctor` ends with exit code 1 if it finds only warnings, and with exit code 2 if a finding prevents backups.
`zsnapdb doctor --format json` prints the fact, the reason, the source and the fix of each finding.
`zsnapdb doctor --format nagios` prints one line for Nagios and compatible monitoring systems.

## Silence a rule

If a rule does not fit your host, silence the rule in the configuration, with a reason and a last day. `doctor` still
prints the findings of the silenced rule, together with your reason, but counts the findings as ok. After the last day,
the findings of the rule count as warnings again. You cannot silence a rule that prevents backups.

```toml
[[doctor.silenced]]
rule = "memory"
reason = "the ARC shrinks fast enough on this host: watched since spring"
until = 2027-06-30  # the last day
instance = "main"   # omit this line to silence the rule for every instance
```
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_index(), *(line for area in AREAS for line in _section(area))]).rstrip() + "\n"


def _index() -> Iterator[str]:
    yield "## All rules"
    yield ""
    yield "| rule | correct state |"
    yield "|---|---|"
    for rule in RULES:
        yield f"| [{rule.id}](#{rule.id}) | {rule.title} |"
    yield ""


def _section(area: str) -> Iterator[str]:
    yield f"## {area}"
    yield ""
    for rule in AREAS[area]:
        yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    severity = "prevents backups" if rule.severity is Severity.UNFIT else "warning"
    yield f"### {rule.id}"
    yield ""
    yield rule.title
    yield ""
    yield f"- Severity: {severity}."
    yield f"- Reason: {rule.reason}"
    yield f"- Fix: {rule.fix}."
    yield f"- Source: {rule.source}."
    yield ""
