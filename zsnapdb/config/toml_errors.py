"""Reader of TOML. An error names its line, the mistake and the repair; values of secrets are not shown."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.quantities import binary_size
from zsnapdb.config.agent import CRON_NICKNAMES

_SECRET = re.compile(
    r"pass|secret|token|key|canar|webhook|ping|(^|\.)(run|script|command|start|stop|arguments|options|client|sql)$",
    re.IGNORECASE,
)
"""Keys whose values are secrets, or commands whose arguments may be secrets."""
_KEY = r"(?P<key>[\w-]+(?:\.[\w-]+)*)"
_UNQUOTED = re.compile(rf"{_KEY}\s*=\s*(?P<value>[^\s,{{}}\[\]\"'#][^,{{}}\[\]\"'#]*)")
_HALF_QUOTED = (
    re.compile(rf"{_KEY}\s*=\s*[\"'](?P<value>[^\"'#]*)(?:#.*)?$"),
    re.compile(rf"{_KEY}\s*=\s*(?P<value>[^\s\"'\[{{][^\"'#\[{{]*)[\"']\s*(?:#.*)?$"),
)
"""A value with a quote only before it, and only after it."""
_OTHER_QUOTES = "\u2018\u2019\u201a\u201c\u201d\u201e\u201f\xab\xbb`"
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NOTHING = ("none", "null", "nil")


@dataclass(frozen=True)
class TomlMistake:
    """A mistake in a TOML text: its line from 1, a sentence about it, and its repair."""

    line: int
    problem: str
    repair: str


def read_toml(text: str, name: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raise ConfigError with `name`, the line and its repair if it is invalid."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        mistake = explain_toml(text, str(error))
        raise ConfigError(
            f"{name} is not valid TOML: line {mistake.line}: {mistake.problem}",
            hint=f"line {mistake.line}: {mistake.repair}",
        ) from None


@dataclass(frozen=True)
class _Place:
    """The place of an error: all lines, its line from 1, its column from 0, and tomllib's words.

    `begin` is the line where its statement begins.
    """

    lines: list[str]
    number: int
    column: int
    words: str
    begin: int

    @property
    def line(self) -> str:
        return self.lines[self.number - 1]

    @property
    def rest(self) -> str:
        """The line from the column, without a comment."""
        return self.line[self.column :].partition("#")[0].strip()


def explain_toml(text: str, message: str) -> TomlMistake:
    """Return the mistake in a text that tomllib refused with this message."""
    lines = text.replace("\r\n", "\n").split("\n")
    words, _, position = message.rpartition(" (at ")
    found = re.search(r"line ([0-9]+), column ([0-9]+)", position)
    if found is not None:
        number = min(int(found[1]), len(lines))
        place = _Place(lines, number, int(found[2]) - 1, words, _open_statement(lines[: number - 1]) or number)
    else:
        number = _open_statement(lines) or len(lines)
        place = _Place(lines, number, len(lines[number - 1]), words or message, number)
    for explanation in _EXPLANATIONS if place.begin == place.number else (_list_or_table,):
        if (said := explanation(place)) is not None:
            return TomlMistake(place.number, *said)
    problem = place.words[:1].lower() + place.words[1:]
    return TomlMistake(place.number, problem, "put texts in quotes, and write each key in its own line")


_Said = tuple[str, str] | None
"""A problem and its repair. None: it is another mistake."""


def _open_statement(lines: list[str]) -> int:
    """Return the line of a statement that goes on after these lines. 0: the last one is complete."""
    if _is_complete("\n".join(lines)):
        return 0
    statement, start = "", 1
    for number, line in enumerate(lines, 1):
        start = start if statement else number
        statement += f"{line}\n"
        statement = "" if _is_complete(statement) else statement
    return start if statement else 0


def _is_complete(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _repeated_section(place: _Place) -> _Said:
    name = _header(place.line)
    if name is None or not place.words.startswith("Cannot"):
        return None
    first = next((n for n, line in enumerate(place.lines[: place.number - 1], 1) if _header(line) == name), None)
    if first is None:
        return f"{name} exists already in another form", "put its keys where the table is, and remove this line"
    return (
        f"the section {name} exists twice (first: line {first})",
        f"put its keys into the first section, in line {first}, and remove this line",
    )


def _header(line: str) -> str | None:
    """Return the header of a section without spaces. None if the line is none."""
    found = re.match(r"\s*(\[[^\]]+\]+)", line)
    return re.sub(r"\s", "", found[1]) if found is not None else None


def _repeated_key(place: _Place) -> _Said:
    if inline := re.match(r"Duplicate inline table key '([\w-]+)'", place.words):
        return f"{inline[1]} is in the table twice", f"keep one value of `{inline[1]}`"
    found = re.match(rf"\s*{_KEY}\s*=", place.line)
    if found is None or not place.words.startswith("Cannot"):
        return None
    key = found["key"]
    for number in range(place.number - 1, 0, -1):
        line = place.lines[number - 1]
        if _header(line) is not None:
            break
        if re.match(rf"\s*{re.escape(key)}\s*=", line):
            return f"{key} has a value already (line {number})", f"keep one of the lines {number} and {place.number}"
    return f"{key} has a value already", "write all keys of the table in one place"


def _header_error(place: _Place) -> _Said:
    if not re.match(r"\s*\[", place.line) or "]" not in place.words:
        return None
    is_list = place.line.lstrip().startswith("[[")
    name = ".".join(re.findall(r"[\w-]+", place.line.partition("#")[0].partition("]")[0]))
    written = f"[[{name}]]" if is_list else f"[{name}]"
    return "the header of a section is not complete", f"write `{written}`" if name else "write its name in brackets"


def _foreign_comment(place: _Place) -> _Said:
    if re.match(r"\s*(//|;|--|/\*)", place.line):
        return "this is no comment", "begin a comment with `#`"
    return None


def _missing_equals(place: _Place) -> _Said:
    if not place.words.startswith("Expected '='"):
        return None
    key = re.match(rf"\s*{_KEY}", place.line)
    if key is None or "=" in place.line:
        return "the key is not one word", "write one word before `=`"
    return f"there is no `=` after {key['key']}", f"write `=` between `{key['key']}` and its value"


def _missing_value(place: _Place) -> _Said:
    found = re.match(rf"\s*{_KEY}\s*=\s*,?\s*(#.*)?$", place.line)
    return (f"{found['key']} has no value", "write one, or remove the line") if found is not None else None


def _comma(place: _Place) -> _Said:
    if place.rest == ",":
        return "a comma follows the value", "remove the comma at the end of the line"
    if place.rest.startswith(","):
        return "a comma follows the value", "write each key in its own line, without commas"
    return None


def _half_quoted(place: _Place) -> _Said:
    for pattern in _HALF_QUOTED:
        if found := pattern.search(place.line):
            key, value = found["key"], found["value"].strip()
            return f"a quote of {key} is missing", _corrected_line(key, _quoted(key, value), value, "close the quotes")
    if place.words.startswith("Illegal character"):
        return "the quotes are not closed", "write a quote at the end of the text"
    return None


def _unquoted(place: _Place) -> _Said:
    for found in _UNQUOTED.finditer(place.line):
        if not found.start("value") <= place.column <= found.end("value"):
            continue
        key, value = found["key"], found["value"].strip()
        bare = value.strip(_OTHER_QUOTES).strip()
        if "=" in value:
            return "the line has several keys", "write each key in its own line"
        if bare.lower() in ("true", "false"):
            return f"the value of {key} is not in small letters", f"write `{key} = {bare.lower()}`"
        if bare.lower() in _SWITCHES:
            also = f', or `{key} = "off"` if the setting is a text' if bare.lower() == "off" else ""
            return f"{key} is neither true nor false", f"write `{key} = {_SWITCHES[bare.lower()]}`{also}"
        if bare.lower() in _NOTHING:
            also = f', or write `{key} = "none"`' if bare.lower() == "none" else ""
            return f"{key} has no value", f"remove the line{also}"
        if (number := _number(bare)) is not None:
            return f"the value of {key} is no number of TOML", _corrected_line(
                key, number, bare, "write a plain number"
            )
        if re.match(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]", bare):
            return f"{key} is no valid date", "write a day such as 2027-01-31"
        if _is_complete(f"key = {value}"):
            continue
        repair = _corrected_line(key, _quoted(key, bare), bare, f"put the value of `{key}` in quotes")
        return f"the value of {key} is not in quotes", repair
    return None


def _number(value: str) -> str | None:
    """Return a number without zeros in front and with a digit before the point. None if it is another value."""
    if re.fullmatch(r"0+[0-9]+", value):
        return str(int(value))
    return f"0{value}" if re.fullmatch(r"\.[0-9]+", value) else None


def _quoted(key: str, value: str) -> str:
    """Return the value as a text of TOML, in the form that zsnapdb accepts."""
    if value.lower().endswith("b"):
        value = binary_size(value) or value
    if key.rpartition(".")[2] == "cron":
        value = CRON_NICKNAMES.get(value, value)
    return json.dumps(value, ensure_ascii=False)


def _corrected_line(key: str, value: str, read: str, without: str) -> str:
    """Return how the key is written. If `read` may be a secret, return the advice `without` a value."""
    if _SECRET.search(key) or "=" in read or re.search(r"://.*@", read) or not read.isprintable() or not read:
        return without
    return f"write `{key} = {value}`"


def _list_or_table(place: _Place) -> _Said:
    start = place.line[: place.column]
    if place.words.startswith("Invalid initial character for a key part") and "{" in start:
        if place.rest.startswith("}"):
            return "a comma stands before `}`", "remove the comma before `}`"
        if not place.rest:
            return "the table in braces continues on the next line", "write the table in one line, or as a section"
    if "inline table" in place.words:
        return "the table in braces is not closed", "write commas between its keys, and `}` at the end of the same line"
    is_open = place.words.startswith("Invalid value") and place.column >= len(place.line.rstrip())
    if "array" in place.words or is_open:
        problem = f"the list in line {place.begin} is not closed"
        return problem, "write commas between its values, and `]` after the last one"
    if place.words.startswith("Invalid value") and ("[" in start or place.begin != place.number):
        return "a text in the list is not in quotes", 'put each text of the list in quotes, such as `["one", "two"]`'
    return None


_EXPLANATIONS: tuple[Callable[[_Place], _Said], ...] = (
    _repeated_section,
    _repeated_key,
    _header_error,
    _foreign_comment,
    _missing_equals,
    _missing_value,
    _comma,
    _half_quoted,
    _unquoted,
    _list_or_table,
)
"""Each is asked in this order; the first answer counts."""
