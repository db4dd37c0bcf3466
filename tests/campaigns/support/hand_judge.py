"""Judges a round of the campaign `hands`: every acknowledged row is in a server that one named command starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.campaigns.support.hand_site import FILLED, SERVER, Facts, Ran, Site
from tests.lab.host import LabError

EXPECTED = {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 75, 130, 137, 143}
"""Exit codes with a meaning (zsnapdb/base/errors.py), and those of a command that a signal ended."""
SCALES = ("doctor", "status")
"""Commands with a scale of their own, on which 1 means something."""
SAYS_RUNS = r"the old server runs|old server was started again|and the server runs|runs again, at"
SAYS_STOPPED = r"the (old )?server is stopped"
SAYS_UNTOUCHED = r"nothing was replaced|the running server was not touched"
START = "the site's start"
ENDS = r"^zsnapdb (rewind main --resume|restore main --(resume|abandon)( --target \S+)?)"


def claims(ran: Ran, before: Facts, after: Facts, volumes: tuple[str, ...]) -> list[str]:
    """Return what a command said or did that is not so. `volumes`: the GUIDs of the live server before the verb."""
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
    """What must be found: rows that were acknowledged, but for those that a reap was allowed to remove.

    `volumes` are the GUIDs of the live server's volumes before the verb. `kept` are the rows up to the point,
    `left_out` those between the point and the begin of the verb.
    """

    volumes: tuple[str, ...]
    kept: frozenset[int]
    left_out: frozenset[int]
    may_go: set[int] = field(default_factory=set)
    replaced: set[int] = field(default_factory=set)
    is_finished: bool = False

    def finished(self, acknowledged: set[int], live: set[int]) -> None:
        """A verb that moves says that it is finished: the other rows are those of a replaced server."""
        self.is_finished = True
        self.replaced |= acknowledged - live - self.kept

    def reaped(self) -> None:
        """What a finished verb has replaced may be gone."""
        if self.is_finished:
            self.may_go |= self.replaced


class Judge:
    """Looks for every acknowledged row, with the commands that the tool names."""

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
        """Return what is wrong; nothing if every row is where a named command brings it up, and the server answers.

        What the tool names is done until that is so, and the site's own start. What only the documentation names is
        tried last: that it helps shows that nothing is lost, and is wrong all the same.
        """
        # A person makes room in a full pool first: no server starts in one, and that loses nothing.
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
        """Return the commands that end what is under way: what doctor names now, then what was named last."""
        looks = [self.run("doctor", "main"), self.run("status", "main")]
        hints = [hint for ran in (*looks, *reversed(earlier)) for hint in ran.hints if re.match(ENDS, hint)]
        # What goes on comes before what gives up.
        return sorted(dict.fromkeys(hints), key=lambda hint: "--abandon" in hint)

    def _carry_out(self, command: str) -> Ran:
        words = command.split()[1:]
        if words[0] == "rewind":
            words += [word for word in ("--yes", "--no-backup") if word not in words]
        return self.run(*words)

    def _look(self, wanted: set[int], *, everywhere: bool) -> tuple[set[int] | None, set[int]]:
        """Return the rows of the live server (None: it is down), and which of those wanted are nowhere.

        Clones of replaced servers are looked at while a server runs, and in any case if `everywhere`.
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
        """Return the rows of the server in its place; None if it is down."""
        try:
            return self.site.rows()
        except LabError:
            return None

    def _elsewhere(self, missing: set[int]) -> set[int]:
        """Return the rows in clones of the replaced servers that the tool names."""
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
