"""Errors in the configuration: TOML mistakes, undefined names, invalid values, and unknown keys with similar keys."""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.pattern_words import problem_of_value
from zsnapdb.base.patterns import INSTANCE
from zsnapdb.base.quantities import WRITTEN, binary_size
from zsnapdb.config.services import CRON_NICKNAMES

_SECRET = re.compile(
    r"pass|secret|token|key|canar|webhook|ping|(^|\.)(run|script|command|start|stop|arguments|options|client|sql)$",
    re.IGNORECASE,
)
"""Keys whose value is a secret, or a command whose arguments may be secrets."""
_KEY = r"(?P<key>[\w-]+(?:\.[\w-]+)*)"
_UNQUOTED = re.compile(rf"{_KEY}\s*=\s*(?P<value>[^\s,{{}}\[\]\"'#][^,{{}}\[\]\"'#]*)")
_HALF_QUOTED = (
    re.compile(rf"{_KEY}\s*=\s*[\"'](?P<value>[^\"'#]*)(?:#.*)?$"),
    re.compile(rf"{_KEY}\s*=\s*(?P<value>[^\s\"'\[{{][^\"'#\[{{]*)[\"']\s*(?:#.*)?$"),
)
"""Patterns of a value with a quote only at its start, and of a value with a quote only at its end."""
_OTHER_QUOTES = "\u2018\u2019\u201a\u201c\u201d\u201e\u201f\xab\xbb`"
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NOTHING = ("none", "null", "nil")


@dataclass(frozen=True)
class TomlMistake:
    """A mistake in a TOML text: its line (from 1), a sentence that describes it, and how to repair it."""

    line: int
    problem: str
    repair: str


def read_toml(text: str, name: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    If the text is invalid, raise ConfigError with `name`, the line and the repair.
    """
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
    """The location of an error: all lines of the text, the error's line (from 1), its column (from 0), and its message.

    The field `begin` is the line where the invalid statement begins.
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
        """The rest of the line from the error's column on, without a comment."""
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
"""The result of a function for one kind of mistake: the problem and its repair; None for other kinds of mistakes."""


def _open_statement(lines: list[str]) -> int:
    """Return the line of the statement that the given lines leave incomplete; 0 if every statement is complete."""
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
    """Return the header of a section, without spaces; None if the line is not a header."""
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
    """Return the number without leading zeros and with a digit before the point.

    The result is None if the value is not a number.
    """
    if re.fullmatch(r"0+[0-9]+", value):
        return str(int(value))
    return f"0{value}" if re.fullmatch(r"\.[0-9]+", value) else None


def _quoted(key: str, value: str) -> str:
    """Return the value as a TOML string in the form that zsnapdb accepts."""
    if value.lower().endswith("b"):
        value = binary_size(value) or value
    if key.rpartition(".")[2] == "cron":
        value = CRON_NICKNAMES.get(value, value)
    return json.dumps(value, ensure_ascii=False)


def may_be_secret(key: str) -> bool:
    """Return whether the value of the setting may be a secret, or a command whose arguments may be secrets."""
    return _SECRET.search(key) is not None


def _corrected_line(key: str, value: str, read: str, without: str) -> str:
    """Return the correct spelling of key and value.

    If the value `read` may be a secret, return the advice `without`, which contains no value.
    """
    if may_be_secret(key) or "=" in read or re.search(r"://.*@", read) or not read.isprintable() or not read:
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
"""These functions are called in this order, and the first result that is not None is used."""


S = TypeVar("S", bound=BaseModel)


def _section_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model of the section at `path` below `model`. In a table of sections, any name is accepted."""
    if not path:
        return model
    known = model.model_fields.get(str(path[0]))
    if known is None:
        return None
    annotation, rest = known.annotation, path[1:]
    if get_origin(annotation) is dict:
        annotation, rest = get_args(annotation)[1], rest[1:]
    elif get_origin(annotation) is tuple:
        annotation, rest = get_args(annotation)[0], rest[1:]
    elif get_origin(annotation) is UnionType:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _section_at(annotation, rest)
    return None


_OTHER_WORDS = {
    r"(local_)?retention.*|keep_?(last|hourly|daily|weekly|monthly|yearly|within)": (
        "retention is `keep = { daily = 14 }` of a repository or instance"
    ),
    r"(aws_|s3_)?(access_key|secret_(access_)?key)(_id)?": (
        "the keys of S3 are in the file that `s3.credentials_file` names"
    ),
    r"schedules?|cron|backup_(schedule|time|every)": (
        'schedules are in the table agent of an instance: `agent.backup = { cron = "0 3 * * *" }`'
    ),
    r"archive(_binlogs?)?|binlog_archive|pitr": "`agent.archive = true` of an instance archives its binlogs",
    r"datasets?|data_?dir|zfs|pool_name": (
        'datasets are `volumes = { parent = "tank/mysql", data = "tank/mysql/data" }` of an instance'
    ),
    r"bucket|prefix|path|folder|type": (
        'the address of a repository is `url = "s3://bucket/prefix"`, `"azure://account/container/prefix"`,'
        ' `"gs://bucket/prefix"` or `"file:///folder"`'
    ),
    r"(s3_)?((use|force)_)?path_style(_\w+)?|url_style": (
        '`s3.addressing = "path"` of a repository is path style, `"virtual"` is virtual-hosted style'
    ),
    r"pass(word|wd)?": "a password is in the file that `password_file` names",
    r"compress(ion|or)?(_level)?": "compression is `stream = { level = 3 }` of a repository",
    r"e?mail|slack|webhook|notify|notification|alerts?": (
        'receivers are tables: `[notifications.to.ops]` with `email = ["dba@example.com"]` or `webhook = "https://..."`'
    ),
    r"(bw|rate|upload)_?limit|throttle": '`bandwidth = "20MiB"` of a repository limits the bytes sent in a second',
}
"""Patterns of names that other programs and people use for settings, each with zsnapdb's name of the setting."""

_TABLES = {
    "volumes": 'must be a table, such as `volumes = { parent = "tank/mysql", data = "tank/mysql/data" }`',
    "instance": "must be a table for each instance, such as `[instance.main]`",
    "repository": "must be a table for each repository, such as `[repository.s3]`",
}

_KINDS = {
    "bool_type": "must be true or false, without quotes",
    "bool_parsing": "must be true or false, without quotes",
    "string_type": 'must be a text in quotes, such as "main"',
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "tuple_type": 'must be a list, such as ["one", "two"]',
    "path_type": "must be a path in quotes",
    "date_from_datetime_parsing": "must be a day, such as 2027-01-31",
}
"""The description of a value's required type, by pydantic's error type."""


def _plain(item: ErrorDetails, settings: type[BaseModel]) -> str:
    """Describe the error of a value in the terms of a configuration file."""
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        section, key = _section_at(settings, item["loc"]), item["loc"][-1]
        if section is None or len(item["loc"]) == 1:
            return _TABLES.get(str(key), "must be a table")
        return f"must be a table, such as `{key} = {getattr(section, 'example', '{ ... }')}`"
    text = problem_of_value(item).removeprefix("Value error, ").replace("Input should be", "must be")
    return _KINDS.get(item["type"], text)


def _hint(location: tuple[int | str, ...], settings: type[BaseModel]) -> str:
    """Return the right spelling of an unknown setting: a synonym, a similar name, or the same name in another table."""
    key, known = str(location[-1]), _known_keys(settings, location)
    for pattern, advice in _OTHER_WORDS.items():
        is_here = set(re.findall(r"`(\w+_file)`", advice)) <= {*known}
        if is_here and re.fullmatch(pattern, key, re.IGNORECASE):
            return advice
    if near := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return f"did you mean {near[0]!r}?"
    if places := list(_places(settings, key)):
        return f"{key} is a key of {', '.join(places[:3])}"
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(known)}"


def _places(model: type[BaseModel], key: str, path: str = "") -> Iterator[str]:
    """Yield the tables below `model` that have this key."""
    for name, field in model.model_fields.items():
        if name == key and path:
            yield path
        named = get_origin(field.annotation) is dict
        if section := _section_at(model, (name, "NAME") if named else (name,)):
            yield from _places(section, key, ".".join(filter(None, (path, name, "NAME" if named else ""))))


def _known_keys(settings: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the allowed keys of the section that contains the last element of `location`."""
    section = _section_at(settings, location[:-1])
    return [part.alias or name for name, part in section.model_fields.items()] if section is not None else []


def every_error(raw: Mapping[str, Any], settings: type[BaseModel]) -> list[ErrorDetails]:
    """Return all errors of a document for the model `settings`.

    The model compares the keys of a section only if each value is valid by itself. So invalid values are removed from a
    copy of the document, and the copy is validated again. If a value was removed from a section, errors of the section
    as a whole are ignored, because the removal may be their only cause.
    """
    rest, errors, incomplete = copy.deepcopy(dict(raw)), dict[tuple[Any, ...], ErrorDetails](), set[tuple[Any, ...]]()
    while True:
        try:
            settings.model_validate(rest, context=WRITTEN)
        except ValidationError as error:
            items = error.errors(include_url=False, include_input=False)
            fresh = [i for i in items if (i["loc"], i["msg"]) not in errors and i["loc"] not in incomplete]
            errors |= {(item["loc"], item["msg"]): item for item in fresh}
            taken = [item for item in fresh if _take_out(rest, item["loc"])]
            incomplete |= {item["loc"][:-1] for item in taken if item["type"] != "extra_forbidden"}
            if taken:
                continue
        return list(errors.values())


def _take_out(document: dict[str, Any], location: tuple[int | str, ...]) -> bool:
    """Remove the value at a location from a document.

    Return whether the location had a value other than a section or list.
    """
    table: Any = document
    for part in location[:-1]:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    if not location or not isinstance(table, dict) or isinstance(table.get(str(location[-1])), dict | list):
        return False
    return table.pop(str(location[-1]), None) is not None


def explain(errors: Iterable[ErrorDetails], settings: type[BaseModel]) -> tuple[str, str]:
    """Return the message and the hint ("" if there is none) for validation errors of a document.

    Unknown keys come first, because an unknown key may be a misspelling of a missing key.
    """
    lines, hints = [], []
    for item in sorted(errors, key=lambda one: one["type"] != "extra_forbidden"):
        where = ".".join(str(part) for part in item["loc"]) or "(file)"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {where}")
            hints.append(_hint(item["loc"], settings))
        elif item["type"] == "missing":
            lines.append(f"missing key {where}")
        else:
            lines.append(f"{where}: {_plain(item, settings)}")
    return "; ".join(lines), "; ".join(dict.fromkeys(hints))


def settings_in(text: str, name: str, model: type[S], example: str) -> S:
    """Return the settings in the TOML text. If the text is invalid, raise ConfigError with `name` and all errors."""
    raw = read_toml(text, name)
    try:
        return model.model_validate(raw, context=WRITTEN)
    except ValidationError:
        message, hint = explain(every_error(raw, model), model)
        raise ConfigError(f"{name}: {message}", hint=hint or example) from None


def unknown_names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each invalid or undefined name of an instance or repository.

    The argument `raw` is the unvalidated TOML document. Values of a wrong type are skipped.
    """
    instances, repositories = _table(raw, "instance"), _table(raw, "repository")
    sentences = [sentence for name, table in instances.items() for sentence in _of_instance(name, table, repositories)]
    silenced = _table(raw, "doctor").get("silenced")
    for rule in silenced if isinstance(silenced, list) else ():
        name = rule.get("instance") if isinstance(rule, dict) else None
        if isinstance(name, str) and name not in instances:
            sentences.append(
                f"doctor.silenced for the rule {rule.get('rule')} names instance {name!r}, which is not configured"
                f"{_choices(instances)}"
            )
    unmasked = _table(raw, "serve").get("unmasked")
    sentences += [
        f"serve.unmasked names instance {name!r}, which is not configured{_choices(instances)}"
        for name in (unmasked if isinstance(unmasked, list) else ())
        if isinstance(name, str) and name not in instances
    ]
    return tuple(sentences)


def invalid_instance_name(name: str) -> tuple[str, ...]:
    """Return a sentence if the name is not allowed for an instance."""
    if re.fullmatch(INSTANCE, name):
        return ()
    return (f"instance name {name!r} is not valid; use at most 48 lower-case letters, digits, - and _",)


def _of_instance(name: str, table: object, repositories: Mapping[str, Any]) -> Iterator[str]:
    yield from invalid_instance_name(name)
    if not isinstance(table, dict):
        return
    own = table.get("repository")
    if isinstance(own, str) and own not in repositories:
        yield f"instance {name} names repository {own!r}, which is not configured{_choices(repositories)}"
    target = _table(_table(table, "agent"), "copy_to").get("to")
    for other in (*_table(_table(table, "objectives"), "copies"), *([target] if isinstance(target, str) else [])):
        if other not in repositories or other == own:
            others = [repository for repository in repositories if repository != own]
            yield f"instance {name} has copies in {other!r}, which is no other configured repository{_choices(others)}"


def _choices(names: Iterable[str]) -> str:
    """Return the configured names in brackets; "" if no names are configured."""
    known = ", ".join(sorted(names))
    return f" (configured: {known})" if known else ""


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = table.get(key)
    return inner if isinstance(inner, dict) else {}
