"""Final check of a round of `hands`: every acknowledged row is in a server that a reported command starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.campaigns.support.hand_site import FILLED, SERVER, Facts, Ran, Site
from tests.lab.host import LabError

EXPECTED = {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 75, 130, 137, 143}
"""Exit codes with a meaning (zsnapdb/base/errors.py), and those of a command killed by a signal."""
SCALES = ("doctor", "status")
"""Commands with their own scale, on which 1 has a meaning."""
SAYS_RUNS = r"the old server runs|old server was started again|and the server runs|runs again, at"
SAYS_STOPPED = r"the (old )?server is stopped"
SAYS_UNTOUCHED = r"nothing was replaced|the running server was not touched"
START = "the site's start"
ENDS = r"^zsnapdb (rewind main --resume|restore main --(resume|abandon)( --target \S+)?)"


def claims(ran: Ran, before: Facts, after: Facts, volumes: tuple[str, ...]) -> list[str]:
    """Return the wrong statements of a command. `volumes`: the GUIDs of the live server before the verb."""
    wrong = []
    if "Traceback" in ran.text:
        wrong.append(f"{ran.words[:2]} ended with a traceback: {ran.text[-600:]}")
    if ran.code is None or ran.code == 137:
        return wrong
    if ran.code not in EXPECTED and not (ran.code == 1 and ran.words[0] in SCALES):
        wrong.append(f"{' '.join(ran.words)} ended with {ran.code}: {ran.stderr[-400:]}")
    if re.search(SAYS_RUNS, ran.text) and not after.serving:
        wrong.append(f"it says that the server runs, and none does: {ran.stderr[-400:]}")
    if re.search(SAYS_STOPPED, ran.text) and after.serving:
        wrong.append(f"it says that the server is stopped, and it runs: {ran.stderr[-400:]}")
    if re.search(SAYS_UNTOUCHED, ran.text) and after.guids not in (before.guids, volumes):
        wrong.append(f"it says that nothing was replaced, and {before.guids} became {after.guids}")
    return wrong


@dataclass
class Truth:
    """The rows that must be found: acknowledged ones, except those that a reap was allowed to remove.

    `volumes` are the GUIDs of the live server's volumes before the verb. `kept` are the rows up to the point,
    `left_out` those between the point and the start of the verb.
    """

    volumes: tuple[str, ...]
    kept: frozenset[int]
    left_out: frozenset[int]
    may_go: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)
    is_finished: bool = False

    def finished(self, acknowledged: set[int], live: set[int]) -> None:
        """Record that a verb that moves the server has finished: the other rows are those of a replaced server."""
        self.is_finished = True
        self.replaced |= acknowledged - live - self.kept

    def reaped(self) -> None:
        """Record that datasets that a finished verb replaced may be destroyed."""
        if self.is_finished:
            self.may_go |= self.replaced


class Judge:
    """Looks for every acknowledged row, with the commands that zsnapdb reports."""

    def __init__(self, site: Site, truth: Truth, documented: Sequence[str]) -> None:
        self.site = site
        self.truth = truth
        self.documented = documented
        self.ran: list[Ran] = []

    def run(self, *words: str) -> Ran:
        ran = self.site.zsnapdb(*words)
        self.ran.append(ran)
        return ran

    def verdict(self, earlier: Sequence[Ran]) -> list[str]:
        """Return the problems; none if reported commands bring up every row, and the server answers.

        Reported commands and the site's own start are executed until that is so. A command that only the documentation
        has is tried last: it may show that no row is lost, but still counts as a problem.
        """
        # A user first frees space in a full pool: no server starts in one, and that loses nothing.
        self.site.sh(f"zfs list {FILLED} >/dev/null 2>&1 && zfs destroy {FILLED} || :")
        wanted = self.site.acknowledged.numbers - self.truth.may_go
        wrong: list[str] = []
        tried: list[str] = []
        named: list[str] = []
        live, missing = self._look(wanted, everywhere=False)
        if missing or live is None:
            named = self._named(earlier)
        written = " ".join(("zsnapdb", *self.documented))
        for step in (*named, START, *([written, START] if written not in named else [])):
            if not missing and live is not None:
                break
            if step == START:
                self._start()
            else:
                before = self.site.facts()
                ran = self._carry_out(step)
                wrong += claims(ran, before, self.site.facts(), self.truth.volumes)
            tried.append(step)
            live, missing = self._look(wanted, everywhere=step == START)
        if not missing and live is not None:
            if written in tried and written not in named:
                wrong.append(f"NOT NAMED: `{written}` brings it up; tried before {tried}")
            return wrong + (self._inexact(live) if self.truth.is_finished else [])
        guids = {row["guid"] for row in self.site.facts().datasets}
        if not self.truth.is_finished and not set(self.truth.volumes) <= guids:
            wrong.append("DESTROYED: datasets of the live server are gone")
        if missing:
            wrong.append(f"LOST {len(missing)} of {len(wanted)} rows, {min(missing)} to {max(missing)}; tried {tried}")
        if live is None:
            wrong.append(f"LEFT DOWN: no server answers; tried {tried}")
        return wrong

    def _named(self, earlier: Sequence[Ran]) -> list[str]:
        """Return the reported commands that end the operation in progress: those of doctor now, then the last ones."""
        looks = [self.run("doctor", "main"), self.run("status", "main")]
        hints = [hint for ran in (*looks, *reversed(earlier)) for hint in ran.hints if re.match(ENDS, hint)]
        # Commands that resume come before those that abandon.
        return sorted(dict.fromkeys(hints), key=lambda hint: "--abandon" in hint)

    def _carry_out(self, command: str) -> Ran:
        words = command.split()[1:]
        if words[0] == "rewind":
            words += [word for word in ("--yes", "--no-backup") if word not in words]
        return self.run(*words)

    def _look(self, wanted: set[int], *, everywhere: bool) -> tuple[set[int] | None, set[int]]:
        """Return the rows of the live server (None: it is down), and the wanted rows that are missing everywhere.

        Clones of replaced servers are searched while a server runs, and in any case with `everywhere`.
        """
        live = self._live()
        missing = wanted - (live or set())
        if missing and (live is not None or everywhere):
            missing -= self._elsewhere(missing)
        return live, missing

    def _start(self) -> None:
        if not self.site.facts().serving:
            self.site.guest.run([SERVER, "start"], timeout=280)

    def _live(self) -> set[int] | None:
        """Return the rows of the live server; None if it is down."""
        try:
            return self.site.rows()
        except LabError:
            return None

    def _elsewhere(self, missing: set[int]) -> set[int]:
        """Return the rows in clones of the replaced servers that zsnapdb reports."""
        found: set[int] = set()
        for restore_id in self.site.facts().replaced:
            if missing - found:
                found |= self.site.rows_of_clone(restore_id) or set()
        return found

    def _inexact(self, live: set[int]) -> list[str]:
        wrong = []
        if self.truth.kept - live:
            wrong.append(f"the server at the point lacks {sorted(self.truth.kept - live)[:5]}")
        if self.truth.left_out & live:
            wrong.append(f"the server at the point has {sorted(self.truth.left_out & live)[:5]} of after it")
        return wrong
