"""Page of the rules of `zsnapdb doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from zsnapdb.planning.advice.catalogue import AREAS, RULES
from zsnapdb.planning.advice.facts import Rule
from zsnapdb.planning.backup.fitness import Severity

_HEAD = f"""# Doctor

`zsnapdb doctor` checks everything that a backup needs, and what the field advises for MySQL and MariaDB on ZFS. This
page lists the {len(RULES)} rules of that advice. They are about facts that zsnapdb reads from this host: the properties
of the datasets, `zpool`, `/sys/module/zfs/parameters`, `/proc/spl/kstat/zfs/arcstats` and the variables of the server.
A fact that cannot be read is named, and the rules that need it say nothing.

A finding has an exit code: 1 for a warning, 2 for what prevents a backup. `zsnapdb doctor --format json` prints the
fact, the reason, the source and the fix of each finding; `--format nagios` prints one line for Nagios and its
relatives.

## Silence a rule

A rule that does not fit a site is silenced in the configuration, with a reason and a last day. What the rule finds is
still printed, with the reason, and counts as ok. After that day it counts again. What prevents a backup cannot be
silenced.

```toml
[[doctor.silenced]]
rule = "memory"
reason = "the ARC shrinks in time here: watched since spring"
until = 2027-06-30
instance = "main"   # if left out: every instance
```
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *_index(), *(line for area in AREAS for line in _section(area))]).rstrip() + "\n"


def _index() -> Iterator[str]:
    yield "## All rules"
    yield ""
    yield "| rule | what should be |"
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
    severity = "prevents backups" if rule.severity is Severity.UNFIT else "a warning"
    yield f"### {rule.id}"
    yield ""
    yield f"{rule.title} ({severity})"
    yield ""
    yield f"- Reason: {rule.reason}"
    yield f"- Fix: {rule.fix}."
    yield f"- Source: {rule.source}."
    yield ""
