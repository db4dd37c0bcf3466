"""Whether the option file of a move counts: the last value of an option does, and the command line comes last. Pure."""

from __future__ import annotations

import re

_PATH = re.compile(r"(?m)^(?P<name>[a-z_]+) = (?P<path>/.*)$")


def overridden(option_file: str, options: str) -> tuple[str, ...]:
    """Return the paths of the option file that a server would not use, with what it would use. Empty if it uses all.

    `options` is what it would start with, as it prints it (`--print-defaults`), with the words of its command line.
    """
    wrong = []
    for setting in _PATH.finditer(option_file):
        name, path = setting["name"], setting["path"]
        found = list(re.finditer(rf"(?:^|\s)--(?:loose[-_])?{name.replace('_', '[-_]')}=", options))
        rest = options[found[-1].end() :] if found else ""
        if not found:
            wrong.append(f"{name} is not set")
        elif not re.match(rf"{re.escape(path)}/?(?:\s|$)", rest):
            wrong.append(f"{name} = {rest.split(maxsplit=1)[0] if rest.split() else ''}")
    return tuple(wrong)
