"""Facts about a pool from the output of `zpool`: its state, devices, scrubs and trims."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.planning.advice.facts import DeviceFacts, PoolFacts
from zsnapdb.zfs.command import rows, run

_TIMEOUT = 20.0
_PROPERTIES = ("health", "capacity", "fragmentation", "autotrim")
_SECTIONS = {"logs": "log", "cache": "cache", "spares": "spare", "special": "special", "dedup": "dedup"}
"""Section titles of `zpool status`, each with the role of the devices below it (zpoolconcepts(7))."""
_GROUP = re.compile(r"(mirror|raidz[0-9]?|draid\S*|replacing|spare)-[0-9]+")
_SCRUBBED = re.compile(r"scrub repaired .* on (\w{3} \w{3} +[0-9]+ [0-9][0-9]:[0-9][0-9]:[0-9][0-9] [0-9]{4})")
_CLEAN = "No known data errors"


@dataclass
class PoolStatus:
    """The parsed text of `zpool status`."""

    devices: list[DeviceFacts] = field(default_factory=list)
    untrimmed: list[str] = field(default_factory=list)
    scan: str = ""
    errors: str = ""


def read_pool(pool: str, created: datetime | None) -> PoolFacts:
    """Return the facts about an imported pool. Raises CommandError if `zpool` does not answer within 20 seconds.

    `created`: creation time of the pool's root dataset.
    """
    exact = _properties(pool)
    status = parse_status(run(["zpool", "status", "-P", "-p", "-t", pool], timeout=_TIMEOUT), pool)
    scrubbed = _SCRUBBED.search(status.scan)
    return PoolFacts(
        name=pool,
        health=exact["health"],
        created=created,
        capacity=_percent(exact["capacity"]),
        fragmentation=_percent(exact["fragmentation"]),
        autotrim={"on": True, "off": False}.get(exact["autotrim"]),
        ashifts=_ashifts(pool),
        devices=tuple(status.devices),
        # The time has the format of ctime(3), which is local time in the C locale.
        last_scrub=datetime.strptime(scrubbed.group(1), "%a %b %d %H:%M:%S %Y").astimezone(UTC) if scrubbed else None,
        is_scrub_known=bool(scrubbed) or status.scan in ("", "none requested"),
        untrimmed=tuple(status.untrimmed),
        errors="" if status.errors in ("", _CLEAN) else status.errors,
    )


def _properties(pool: str) -> dict[str, str]:
    argv = ["zpool", "get", "-H", "-p", "-o", "property,value", ",".join(_PROPERTIES), pool]
    return {name: value for name, value in rows(argv, timeout=_TIMEOUT)}  # noqa: C416 - a row is a list


def _percent(text: str) -> int | None:
    number = text.removesuffix("%")
    return int(number) if number.isdecimal() else None


def _ashifts(pool: str) -> dict[str, int]:
    """Return the ashift of each device whose ashift is known.

    The result is empty before OpenZFS 2.2, which introduced this property.
    """
    try:
        listed = rows(["zpool", "get", "-H", "-p", "-o", "name,value", "ashift", pool, "all-vdevs"], timeout=_TIMEOUT)
    except ZsnapdbError:
        return {}
    return {name: int(value) for name, value in listed if value.isdecimal() and int(value) > 0}


def parse_status(text: str, pool: str) -> PoolStatus:
    """Return the parsed output of `zpool status -P -p -t` for one pool (zpool-status(8)). Unknown lines are skipped.

    Devices are indented by two spaces more than their group or section.
    """
    status = PoolStatus()
    role, group, group_depth = "data", "", 0
    for line in text.split("\n"):
        label, _, rest = line.strip().partition(": ")
        if not line.startswith("\t"):
            if label == "scan":
                status.scan = rest.strip()
            elif label == "errors":
                status.errors = rest.strip()
            continue
        words = line[1:].split()
        depth = len(line[1:]) - len(line[1:].lstrip(" "))
        if not words or words[0] in ("NAME", pool):
            continue
        if depth == 0:
            role, group = _SECTIONS.get(words[0], role), ""
        elif _GROUP.fullmatch(words[0]):
            group, group_depth = words[0], depth
        elif len(words) > 1:
            group = group if depth > group_depth else ""
            status.devices.append(DeviceFacts(words[0], role, group, words[1]))
            if "(untrimmed)" in line:
                status.untrimmed.append(words[0])
    return status
