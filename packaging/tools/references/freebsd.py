"""The page about FreeBSD."""

from __future__ import annotations

from zsnapdb.planning.setup.freebsd import THREE_DATASETS, TUNABLES, FreeBsdDataset, FreeBsdTunable

_HEAD = """# FreeBSD

**Nothing on this page was tried.** zsnapdb runs on Linux: it reads `/proc` and `/sys`, and its sandbox of servers on
copies is made of Linux namespaces. This page is made from the program's data (`make references`), for people who
compare hosts or read older notes.

## Three datasets

A note on MySQL on FreeBSD's ZFS lays a server out like this. zsnapdb backs up any set of datasets in one pool, so also
this one, where it is met on Linux. `zsnapdb setup` makes two datasets.

| dataset | properties | setting of the server | remark |
|---|---|---|---|
"""
_NAMES = """
## Names

What Linux has as parameters of a module (`/sys/module/zfs/parameters`), FreeBSD has as names of `sysctl` and
`/boot/loader.conf`.

| on Linux | on FreeBSD | older name there | meaning | rules of the doctor | source |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    datasets = "\n".join(_dataset(part) for part in THREE_DATASETS)
    names = "\n".join(_tunable(part) for part in TUNABLES)
    return f"{_HEAD}{datasets}\n{_NAMES}{names}\n"


def _dataset(part: FreeBsdDataset) -> str:
    properties = ", ".join(f"`{name}={value}`" for name, value in part.dataset.properties.items())
    return _row(f"`{part.dataset.name}`", properties, f"`{part.setting}`", part.remark)


def _tunable(part: FreeBsdTunable) -> str:
    rules = ", ".join(f"[{rule}](doctor.md#{rule})" for rule in part.rules)
    return _row(_code(part.linux), _code(part.name), _code(part.older), part.meaning, rules, part.source)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _code(name: str) -> str:
    return f"`{name}`" if name else ""
