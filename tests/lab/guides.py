"""Marked commands in documentation pages, with the output that the pages show for them.

<!-- tried: bare host -->
```sh
apt-get install -y python3-venv      # each line is a command
```

<!-- tried: guest -->
```console
# zsnapdb list main
BACKUP ...
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_MARKED = re.compile(
    r"^<!-- tried: (?P<where>[a-z, ]+) -->\n```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PROMPT = "# "
_NAMES: tuple[tuple[str, str], ...] = (
    (r"\b\d{8}[Tt]\d{6}[Zz]-[0-9a-f]{4}\b", "ID"),
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[\d:,-]+)?", "GTIDS"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| UTC)?", "TIME"),
)
"""Patterns of names that differ in each run, with their placeholders."""
_NAME = re.compile("|".join(pattern for pattern, _ in _NAMES))
_GENERAL: tuple[tuple[str, str], ...] = (
    *_NAMES,
    (r"\bage1[0-9a-z]{58}\b|[0-9A-Za-z+/]{43}=", "KEY"),
    (r"(?<=:)[\w.-]+(?=@127\.0\.0\.1)", "SECRET"),
    (r"\bzfs-(?:kmod-)?\d\S*", "RELEASE"),
    (r"\b\d+(?:\.\d+){2}(?:-[\w+.~]+)?", "VERSION"),
    (r"\b\d+(?:\.\d+)? (?:[KMGT]iB|B)\b", "SIZE"),
    (r"\b\d+(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)*", "DURATION"),
    (r"\d+(?:\.\d+)?", "N"),
    (r"[ \t]+", " "),
)
"""Patterns of text that differs between two runs, in order of replacement, with the placeholders for a comparison."""


@dataclass(frozen=True)
class GuideExchange:
    """A command, and its output lines as a page shows them."""

    command: str
    answer: tuple[str, ...]


@dataclass(frozen=True)
class GuideBlock:
    """A marked block of a page: the place where it is tried, and its text."""

    where: str
    body: str

    @property
    def lines(self) -> list[str]:
        """The commands of a shell block, as they are printed."""
        return [line for line in self.body.split("\n") if line.strip()]

    @property
    def exchanges(self) -> list[GuideExchange]:
        """The commands of a console block, with their answers. An empty line ends an answer."""
        parts = [part for part in re.split(rf"^{_PROMPT}", self.body, flags=re.MULTILINE) if part.strip()]
        return [_exchange(part) for part in parts]


def _exchange(part: str) -> GuideExchange:
    command, _, answer = part.partition("\n")
    return GuideExchange(command, tuple(answer.rstrip("\n").split("\n")) if answer.strip() else ())


def blocks(page: str, where: str) -> list[GuideBlock]:
    """Return the blocks of a page that are tried at this place, in order."""
    return [GuideBlock(match["where"], match["body"]) for match in _MARKED.finditer(page) if match["where"] == where]


def general(line: str) -> str:
    """Return a line without the values of one run: ids, times, sizes, versions, numbers, column widths."""
    for pattern, word in _GENERAL:
        line = re.sub(pattern, word, line)
    return line.strip()


def new_names(said: Sequence[str], happened: Sequence[str]) -> dict[str, str]:
    """Return this run's names for the names in a page, from the answer lines that are otherwise equal."""
    lines = SequenceMatcher(
        None, [general(line) for line in said], [general(line) for line in happened], autojunk=False
    )
    names: dict[str, str] = {}
    for same in lines.get_matching_blocks():
        for number in range(same.size):
            old, new = said[same.a + number], happened[same.b + number]
            names |= zip(_NAME.findall(old), _NAME.findall(new), strict=False)
    return names


def written_anew(page: str, where: str, answer: Callable[[str], str]) -> str:
    """Return the page with new answers in its console blocks for this place. `answer` runs a command.

    Names that earlier commands created are replaced in later commands with those of this run.
    """
    names: dict[str, str] = {}

    def block(match: re.Match[str]) -> str:
        if match["where"] != where:
            return match.group()
        answers = "\n\n".join(_told(GuideBlock(where, match["body"]), answer, names))
        return f"<!-- tried: {where} -->\n```{match['kind']}\n{answers}\n```"

    return _MARKED.sub(block, page)


def _told(block: GuideBlock, answer: Callable[[str], str], names: dict[str, str]) -> Iterator[str]:
    for exchange in block.exchanges:
        command = _NAME.sub(lambda name: names.get(name.group(), name.group()), exchange.command)
        happened = answer(command)
        names.update(new_names(exchange.answer, happened.split("\n")))
        yield f"{_PROMPT}{command}\n{happened}".rstrip("\n")
