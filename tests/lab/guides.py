"""The commands in pages of the documentation that a comment marks as tried, and what the pages say they print.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MARKED = re.compile(
    r"^<!-- tried: (?P<where>[a-z, ]+) -->\n```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_PROMPT = "# "
_GENERAL: tuple[tuple[str, str], ...] = (
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{4}\b", "ID"),
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[\d:,-]+)?", "GTIDS"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| UTC)?", "TIME"),
    (r"(?<=:)[\w-]+(?=@127\.0\.0\.1)", "SECRET"),
    (r"\bzfs-(?:kmod-)?\d\S*", "RELEASE"),
    (r"\b\d+(?:\.\d+){2}(?:-[\w+.~]+)?", "VERSION"),
    (r"\b\d+(?:\.\d+)? (?:[KMGT]iB|B)\b", "SIZE"),
    (r"\b\d+(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:s|min|h)\b)*", "DURATION"),
    (r"\d+(?:\.\d+)?", "N"),
    (r"[ \t]+", " "),
)
"""What differs between two runs of the same commands, in this order, and what stands for it when they are compared."""


@dataclass(frozen=True)
class GuideExchange:
    """A command, and the lines that a page says it prints."""

    command: str
    answer: tuple[str, ...]


@dataclass(frozen=True)
class GuideBlock:
    """A marked block of a page: where it was tried, and its text."""

    where: str
    body: str

    @property
    def lines(self) -> list[str]:
        """The commands of a block of a shell, as they are printed."""
        return [line for line in self.body.split("\n") if line.strip()]

    @property
    def exchanges(self) -> list[GuideExchange]:
        """The commands of a block of a console, with their answers. An empty line ends an answer."""
        parts = [part for part in re.split(rf"^{_PROMPT}", self.body, flags=re.MULTILINE) if part.strip()]
        return [_exchange(part) for part in parts]


def _exchange(part: str) -> GuideExchange:
    command, _, answer = part.partition("\n")
    return GuideExchange(command, tuple(answer.rstrip("\n").split("\n")) if answer.strip() else ())


def blocks(page: str, where: str) -> list[GuideBlock]:
    """Return the blocks of a page that are tried there, in their order."""
    return [GuideBlock(match["where"], match["body"]) for match in _MARKED.finditer(page) if match["where"] == where]


def general(line: str) -> str:
    """Return a line without what differs from run to run: ids, times, sizes, versions, numbers, widths of columns."""
    for pattern, word in _GENERAL:
        line = re.sub(pattern, word, line)
    return line.strip()


def written_anew(page: str, where: str, answer: Callable[[str], str]) -> str:
    """Return the page with new answers in the console blocks that are tried there. `answer` runs a command."""

    def block(match: re.Match[str]) -> str:
        if match["where"] != where:
            return match.group()
        told = "\n\n".join(_told(GuideBlock(where, match["body"]), answer))
        return f"<!-- tried: {where} -->\n```{match['kind']}\n{told}\n```"

    return _MARKED.sub(block, page)


def _told(block: GuideBlock, answer: Callable[[str], str]) -> Iterator[str]:
    for exchange in block.exchanges:
        yield f"{_PROMPT}{exchange.command}\n{answer(exchange.command)}".rstrip("\n")
