"""The log options. The options may be before or after the command: `zsnapdb -q backup` and `zsnapdb backup -q`."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from zsnapdb.report.log_lines import LogFormat, LogLevel

# These variables have the same names as in zsnapdb/cli/log_writer.py, which reads them.
_LEVEL, _FORMAT, _PROGRESS = "ZSNAPDB_LOG_LEVEL", "ZSNAPDB_LOG_FORMAT", "ZSNAPDB_JSON_PROGRESS"


def _sets(variable: str, fixed: str = "") -> Callable[[Any], Any]:
    """Return an option's callback, which sets an environment variable that child processes inherit."""

    def set_it(value: Any) -> Any:
        if value:
            os.environ[variable] = fixed or str(getattr(value, "value", value))
        return value

    return set_it


def wants_json_progress(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether progress as JSON is requested, by the command line or by an environment variable."""
    return "--json-progress" in words or environment.get(_PROGRESS, "").lower() in ("1", "true", "yes")


VALUED_LOG_OPTIONS = ("--log-level", "--log-format")
"""Log options that take a value."""


def log_options(*, hidden: bool) -> list[Any]:
    """Return new log options for a command. Its help hides them, because the help of `zsnapdb` explains them."""

    def option(text: str, variable: str, *names: str, fixed: str = "") -> Any:
        return typer.Option(
            *names,
            callback=_sets(variable, fixed),
            expose_value=False,
            hidden=hidden,
            show_default=False,
            allow_from_autoenv=False,
            help=text,
        )

    level = option("Lowest level of the lines on stderr.", _LEVEL, "--log-level")
    line_format = option("Format of the log: text, json, or journal (systemd, with fields).", _FORMAT, "--log-format")
    only_warnings = "Write only warnings and errors to stderr, no progress."
    quiet = option(only_warnings, _LEVEL, "--quiet", "-q", fixed=LogLevel.WARNING.value)
    at_the_end = "Also write the exit code and the run id at the end."
    verbose = option(at_the_end, _LEVEL, "--verbose", "-v", fixed=LogLevel.DEBUG.value)
    as_json = "Write log and progress to stderr as lines of JSON."
    progress = option(as_json, _PROGRESS, "--json-progress", fixed="1")

    def command(
        log_level: Annotated[LogLevel | None, level] = None,
        log_format: Annotated[LogFormat | None, line_format] = None,
        quiet: Annotated[bool, quiet] = False,
        verbose: Annotated[bool, verbose] = False,
        json_progress: Annotated[bool, progress] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    known = ("log_level", "log_format", "quiet", "verbose", "json_progress")
    return [parameter for parameter in get_command(app).params if parameter.name in known]
