"""The templates of the pages. Their values are untrusted text, so all are escaped, for HTML and for terminals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.base.untrusted_text import printed
from zsnapdb.serve.page_rows import clock_time


class PageTemplates:
    """Renders pages. A missing value raises an error; it is never rendered as an empty text."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("zsnapdb.serve", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalized,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "bytes": size,
            "clock": clock_time,
            "duration": format_duration,
            "words": _with_code,
            "lines": "\n".join,
        }

    def page(self, template: str, values: Mapping[str, object]) -> str:
        """Return the rendered page."""
        return self._environment.get_template(template).render(values)


def style_sheet() -> bytes:
    """Return the style sheet of all pages."""
    return resources.files("zsnapdb.serve").joinpath("templates/style.css").read_bytes()


def _finalized(value: object) -> object:
    # The output of a macro is escaped already; a second time would show the marks.
    return printed(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _with_code(text: str) -> Markup:
    """Return a message with text between backticks as code.

    It is escaped first, so it contains no markup of its own.
    """
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printed(text)))))  # noqa: S704


_CODE = re.compile(r"`([^`\n]+)`")
