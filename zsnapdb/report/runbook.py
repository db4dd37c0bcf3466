"""Views of a runbook as Markdown, HTML and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from zsnapdb import __version__
from zsnapdb.base.quantities import format_duration
from zsnapdb.documents.restore import RunbookDocument
from zsnapdb.jobs.restore.runbook import Runbook
from zsnapdb.planning.restore.runbook import RunbookPage
from zsnapdb.report.view import View


def _duration_text(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return format_duration(round(seconds)) if seconds >= 1 else "under 1 s"


def _total(book: Runbook) -> str:
    known = [entry.seconds for entry in book.entries if entry.seconds is not None]
    unknown = len(book.entries) - len(known)
    more = f", and {unknown} step(s) of unknown length" if unknown else ""
    return f"{_duration_text(sum(known)) if known else 'unknown'}{more if known else ''}, by {book.drills} drill(s)"


def _facts(book: Runbook) -> list[str]:
    plan, point = book.plan, book.plan.point
    lines = [f"DAMAGED: {damage.describe()}. This restore will probably fail." for damage in book.damage]
    lines += [
        (
            f"Written {plan.created:%Y-%m-%d %H:%M:%S} UTC by zsnapdb {__version__} from the repository {book.url} (id"
            f" {plan.repository}), for `{plan.requested}`."
        ),
        f"Base: backup {plan.backup_id}, {plan.flavour} {plan.server_version}, server_id {plan.server_id}.",
    ]
    if point.last is not None:
        lines.append(f"Last transaction included: {point.last.describe()}.")
    if point.following is not None:
        lines.append(f"First transaction left out: {point.following.describe()}.")
    if point.gtids is not None:
        lines.append(f"The restored server has exactly these GTIDs: {point.gtids or '(no transactions)'}")
    lines += list(point.notes)
    lines.append(_signers(book))
    lines.append(f"Expected duration: {_total(book)}.")
    return lines


def _signers(book: Runbook) -> str:
    """Return instructions for verifying the backups on a host with a new configuration."""
    if not book.signers:
        return "Nobody signs: a host without this one's records believes whoever can write to the repository."
    keys = ", ".join(f'"{key}"' for key in book.signers)
    return (
        f"Signed by {', '.join(book.signers)}. On a host with a new configuration, set `signers = [{keys}]` under"
        f" `[repository.{book.repository}.encryption]` and run `zsnapdb verify {book.plan.instance}`: nothing else is"
        " believed then."
    )


_BEFORE = (
    (
        "This host needs: root, OpenZFS with the pool, the server program of that series, zsnapdb, its configuration,"
        " and the files that the configuration names (credentials of the repository; the identity if backups are"
        " encrypted). This host needs neither the old server nor its datasets."
    ),
    (
        'A command failed if its exit status is not 0. Then do not continue; follow the section "If it fails" of the'
        " step. You may run the same command again at any time."
    ),
)


def markdown(book: Runbook) -> str:
    """Return the runbook as Markdown.

    Blocks marked `sh` are commands to type; blocks marked `text` are their output.
    """
    plan = book.plan
    lines = [
        f"# Restore {plan.instance} to {plan.layout.top}",
        "",
        *(f"- {fact}" for fact in _facts(book)),
        "",
        "## Whom to call",
        "",
    ]
    lines += [f"- {contact}" for contact in book.contacts] or [
        "- nobody is configured: set `[site] contacts` in the configuration"
    ]
    lines += ["", "## Before you start", "", *(line for text in _BEFORE for line in (text, ""))]
    for look in book.before:
        lines += _block(look.command, look.expected)
    for number, entry in enumerate(book.entries, 1):
        lines += _markdown_entry(number, len(book.entries), entry, book)
    return "\n".join(lines)


def _block(command: str, expected: str | None) -> Iterator[str]:
    yield from ("```sh", command, "```", "")
    if expected is not None:
        yield from ("prints", "", "```text", expected, "```", "")


def _markdown_entry(number: int, count: int, entry: RunbookPage, book: Runbook) -> Iterator[str]:
    yield from (
        f"## Step {number} of {count}: {entry.title}",
        "",
        f"Expected: {_duration_text(entry.seconds)}. Begun at ______, done at ______",
        "",
    )
    yield from _block(entry.command, None)
    yield from ("What it does:", "", *(f"- `{line}`" for line in entry.underneath), "")
    if entry.looks:
        yield from ("Check:", "")
        for look in entry.looks:
            yield from _block(look.command, look.expected)
    yield from ("If it fails:", "", *(f"- {line}" for line in (*entry.if_not, *_call(book))), "")


def _call(book: Runbook) -> list[str]:
    return [f"Still stuck: call {book.contacts[0]}."] if book.contacts else []


_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em"
    " auto}pre{background:#eee;padding:.6em;overflow-x:auto}section{page-break-inside:avoid}"
)


def html(book: Runbook) -> str:
    """Return the runbook as one HTML page for printing. The page needs no other files."""
    plan = book.plan
    title = escape(f"Restore {plan.instance} to {plan.layout.top}")
    parts = [
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta'
            f' charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head><body>'
        ),
        f"<h1>{title}</h1>",
    ]
    parts.append(_list(_facts(book)))
    parts += [
        "<h2>Whom to call</h2>",
        _list(book.contacts or ("nobody is configured: set [site] contacts in the configuration",)),
    ]
    parts += [
        "<h2>Before you start</h2>",
        *(f"<p>{escape(text)}</p>" for text in _BEFORE),
        *(_pre(look.command, look.expected) for look in book.before),
    ]
    for number, entry in enumerate(book.entries, 1):
        parts += [f"<section><h2>Step {number} of {len(book.entries)}: {escape(entry.title)}</h2>"]
        parts += [
            f"<p>Expected: {_duration_text(entry.seconds)}. Begun at ______, done at ______</p>",
            _pre(entry.command, None),
        ]
        parts += ["<p>What it does:</p>", _list(entry.underneath)]
        if entry.looks:
            parts += ["<p>Check:</p>", *(_pre(look.command, look.expected) for look in entry.looks)]
        parts += ["<p>If it fails:</p>", _list((*entry.if_not, *_call(book))), "</section>"]
    return "\n".join([*parts, "</body></html>"])


def _pre(command: str, expected: str | None) -> str:
    more = f"\n<p>prints</p>\n<pre>{escape(expected)}</pre>" if expected is not None else ""
    return f'<pre class="sh">{escape(command)}</pre>{more}'


def _list(items: list[str] | tuple[str, ...]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


class RunbookView(View, kind="runbook", document=RunbookDocument, read_from="book"):
    """A runbook as Markdown or as an HTML page."""

    book: Runbook
    as_html: bool = False

    def text(self) -> str:
        return html(self.book) if self.as_html else markdown(self.book)
