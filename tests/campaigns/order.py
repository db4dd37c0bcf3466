"""Campaign: a host's clock jumps by seconds to years. "Latest" is always the last one made; nothing is removed early.

It runs inside a guest (`python3 tests/lab campaign order`). A round is a random history of snapshot sets, backups,
drills, clones, rewinds, rollbacks, renamed snapshots and datasets, pools under another name and replaced hosts. Before
each command the guest's clock may jump in either direction. A row with an increasing number is written, which dates any
copy.

After each command everything that is called latest must be the last one that ZFS and the server made. Nothing may be
removed that the rules keep under a right clock. The campaign counts the true time itself, which passes while the host
is on and while it is off. At the end the clock is right, and expired objects must be removed. A round depends on the
seed and its number only.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support import order_removals
from tests.campaigns.support.order_questions import QUESTIONS, State
from tests.campaigns.support.order_site import Rules, Site
from tests.campaigns.support.order_truth import Policy, Truth
from tests.campaigns.support.order_verbs import THEMES, VERBS
from zsnapdb.base.domain_types import Flavour

# The sample of a whole run is about order and time, which do not depend on the server.
ANY_SERVER = True
SECONDS = {"rewinds": 32.0, "drills": 22.0, "hosts": 20.0}
USUAL = 10.0
"""Limit of a round's drawn commands, by the seconds of their verbs; some themes have more."""
MOST_STEPS = 7
FIRST = ("backup", "snapshot")
KEEPS = (
    Policy(last=2),
    Policy(last=3, within=7200),
    Policy(last=1, daily=2),
    Policy(within=7200),
    Policy(last=2, hourly=2),
)
LOCALS = (Policy(last=2), Policy(last=1, within=7200), Policy(last=1, hourly=3), Policy(last=4), Policy(within=3600))
_YEAR = 365.25 * 86400


@dataclass(frozen=True)
class Result:
    """A round: its theme, its actions, its problems, and its seconds."""

    number: int
    theme: str
    said: tuple[str, ...]
    problems: tuple[str, ...]
    seconds: float

    @property
    def line(self) -> str:
        verdict = "FAIL" if self.problems else "ok  "
        return f"{verdict} {self.number:3d} {self.seconds:5.1f} s {self.theme}: {'; '.join(self.said)}"


def rules_of(chance: random.Random, theme: str) -> Rules:
    """Draw the rules of a round."""
    return Rules(
        chance.choice(KEEPS), chance.choice(LOCALS), chance.choice((None, None, 1, 2)), theme in ("pool", "rewinds")
    )


def draw_error(chance: random.Random, error: float) -> float:
    """Return the next error of the clock in seconds: often 0, otherwise seconds to years in either direction."""
    drawn = chance.random()
    if drawn < 0.3:
        return error
    if drawn < 0.5:
        return 0.0
    seconds = float(10 ** chance.uniform(0.5, 8.05))
    return chance.choice((-1, 1)) * min(seconds, 4 * _YEAR)


def span(seconds: float) -> str:
    """Return a clock difference as text."""
    if seconds == 0:
        return "right"
    size, unit = next(((size, unit) for size, unit in _UNITS if abs(seconds) >= size), (1.0, "s"))
    return f"{seconds / size:+.1f} {unit}"


_UNITS = ((_YEAR, "y"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"))


class Round:
    """One history, from an empty host on."""

    def __init__(self, site: Site, seed: int, number: int, themes: Sequence[str]) -> None:
        self.chance = random.Random(f"{seed}/{number}")
        self.theme = themes[number % len(themes)]
        rules = rules_of(self.chance, self.theme)
        site.begin(rules)
        self.site = site
        self.state = State(site, Truth(), rules)
        self.jumps = self.chance.random() < 0.85
        self.mark = 0

    def play(self) -> None:
        """Play the theme's verbs for its seconds. Then set the clock right and check the removals."""
        left, steps = SECONDS.get(self.theme, USUAL), 0
        for name in FIRST:
            self.step(name)
        while left > 0 and steps < MOST_STEPS:
            seen = self.site.look()
            can = [name for name in THEMES[self.theme] if VERBS[name].can(self.state, seen)]
            name = self.chance.choice(can)
            self.step(name)
            steps += 1
            left -= VERBS[name].cost(self.site.flavour)
        seen = self.site.look()
        for question in QUESTIONS:
            question(self.state, seen)
        self.site.set_clock(0.0)
        self.state.said.append("clock right")
        order_removals.settle(self.state)

    def step(self, name: str) -> None:
        """Let the clock jump, write a mark, run a verb, and check what was removed and what is called latest."""
        state, site = self.state, self.site
        error = draw_error(self.chance, site.clock.error) if self.jumps else 0.0
        is_jump = error != site.clock.error
        if is_jump:
            site.set_clock(error)
            state.has_jumped, state.is_doubtful = state.has_jumped or error != 0.0, True
        self.mark += 1
        site.sql(f"INSERT INTO past.marks VALUES ({self.mark})")
        before = site.look()
        if before.binlogs:
            state.marked[(state.truth.epoch, before.binlogs[-1])] = site.clock.now
        problems, epoch = len(state.problems), state.truth.epoch
        state.said.append(f"{f'[{span(error)}] ' if is_jump else ''}{name}")
        came = VERBS[name].play(state, before, self.chance)
        state.said[-1] += f" ({came})"
        after = site.look()
        order_removals.judge(state, name, before, after, epoch)
        self.chance.choice(QUESTIONS)(state, after)
        if len(state.problems) > problems:
            state.said[-1] += " !"


def play(site: Site, seed: int, number: int, themes: Sequence[str]) -> Result:
    """Play a round to its end, and return it."""
    began = time.monotonic()
    one = Round(site, seed, number, themes)
    try:
        one.play()
    except Exception as error:
        site.soil()
        one.state.problems.append(f"the round broke off: {type(error).__name__}: {error}")
    seconds = time.monotonic() - began
    return Result(number, one.theme, tuple(one.state.said), tuple(dict.fromkeys(one.state.problems)), seconds)


def main() -> int:
    """Run the rounds. Return 0 if all were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(THEMES), default=list(THEMES))
    words = parser.parse_args()
    site = Site(Flavour(Path("/etc/lab-flavour").read_text().strip()))
    results = []
    for number in range(words.first, words.first + words.rounds):
        result = play(site, words.seed, number, words.only)
        results.append(result)
        print(result.line, flush=True)
        for line in result.problems:
            print(f"       ! {line[:600]}", flush=True)
    wrong = [result for result in results if result.problems]
    Path("/out/campaign.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(f"{len(results) - len(wrong)} of {len(results)} rounds are right", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
