"""Campaign: operations on production are interrupted, users continue as users do, and no data is lost.

It runs on the host, because a guest cannot cut its own power (`python3 tests/lab campaign hands`). A round writes rows
whose numbers leave the guest as soon as their commits were acknowledged. Then one verb starts (a rewind, a promotion, a
reap, an undo, a prune, a purge, a consolidation). It is interrupted at an event that changes something, by kill -9, a
signal of a terminal or a service manager, or a power cut. One to four acts follow, which may be interrupted too.

At the end every acknowledged row must be in the server, or in a clone of a replaced one, with only the commands that
zsnapdb prints. Exceptions are rows that a finished verb had left out and that a reap was allowed to remove. After every
command zsnapdb's statements about the server are compared with the kernel and with ZFS. No command may end in an
unknown way.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.campaigns.support import hand_acts
from tests.campaigns.support.hand_judge import Judge, Truth, claims
from tests.campaigns.support.hand_site import CONFIG, REAPING, Facts, Interruption, Ran, Site
from tests.campaigns.support.hand_verbs import VERBS, StartedBackup, Verb
from tests.lab.guest import Guest, Lab
from tests.lab.host import LabError

ON_HOST = True
# The sample of a whole run interrupts an exchange of datasets, which does not depend on the server.
ANY_SERVER = True
HOW = {"kill": 11, "power": 4, "int": 3, "term": 2}
SETTLED = 2.0
"""Seconds after a signal for earlier operations to end."""


@dataclass(frozen=True)
class Round:
    """One round: its actions and its problems."""

    number: int
    verb: str
    interruption: str
    reached: str
    acts: tuple[str, ...]
    rows: int
    seconds: float
    wrong: tuple[str, ...]


@dataclass
class Play:
    """A round in progress."""

    site: Site
    verb: str
    chance: random.Random
    ran: list[Ran] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)
    interruption: str = ""
    at: Interruption | None = None
    then: Sequence[str] | None = None
    seen: Facts | None = None

    def play(self) -> None:
        """Write, start the verb and interrupt it, act, and check."""
        site, verb = self.site, VERBS[self.verb]
        site.reset()
        first = self.chance.randint(100, 200)
        site.python("some", str(first), "10")
        point = site.point()
        kept = frozenset(site.acknowledged.numbers) | frozenset(range(1, 21))
        site.acknowledged.numbers |= kept
        site.write()
        self._wait_for(5)
        started = verb.prepare(site, point)
        if not verb.writes_stop:
            self._wait_for(3)
        volumes = site.facts().guids
        self.truth = Truth(volumes, kept, frozenset(site.acknowledged.numbers - kept) if started.moves else frozenset())
        if self.verb == "reap":
            # The earlier rewind is finished.
            self.truth.finished(set(site.acknowledged.numbers), site.rows())
            self.truth.reaped()
        at = self.at or self._interruption(verb)
        self.interruption = str(at)
        self._run(started.words, started, started.config, at)
        for name in self.then if self.then is not None else hand_acts.chosen(self.chance, started):
            self._act(name, started)
        hand_acts.free_the_pool(site)
        time.sleep(SETTLED)
        judge = Judge(site, self.truth, started.again)
        self.wrong += judge.verdict(self.ran)
        self.wrong += verb.check(site)
        self.ran += judge.ran

    def _wait_for(self, more: int) -> None:
        goal, deadline = len(self.site.acknowledged.numbers) + more, time.monotonic() + 60
        while len(self.site.acknowledged.numbers) < goal:
            assert time.monotonic() < deadline, "the writer commits nothing"
            time.sleep(0.05)

    def _interruption(self, verb: Verb) -> Interruption:
        phase, length = self.chance.choice(verb.phases)
        (how,) = self.chance.choices(list(HOW), list(HOW.values()))
        delay = round(self.chance.uniform(0.01, 0.8), 2) if self.chance.random() < 0.35 else 0.0
        return Interruption(phase, self.chance.randint(1, length), how, delay)

    def _run(self, words: Sequence[str], started: StartedBackup, config: str, at: Interruption | None) -> None:
        """Run a command, and compare its statements with the facts."""
        site = self.site
        before = self.seen or site.facts()
        if words[0] == "reap" and config == REAPING:
            self.truth.reaped()
        done = site.zsnapdb(*words, config=config, interruption=at)
        self.ran.append(done)
        if at is not None and at.how in ("int", "term"):
            time.sleep(SETTLED)
        self.seen = after = site.facts()
        self.wrong += claims(done, before, after, self.truth.volumes)
        is_signalled = done.code in (130, 143)
        is_untouched = is_signalled and before.guids == after.guids
        if is_untouched and words[0] == "rewind" and before.serving and not after.serving:
            self.wrong.append(f"a signal left the server stopped, and nothing was replaced: {done.stderr[-300:]}")
        # A signal waits until the exchange is over, so the command has finished its operation.
        is_exchanged = is_signalled and after.guids not in (before.guids, self.truth.volumes)
        is_finished = (done.code == 0 or is_exchanged) and after.answers
        if started.moves and is_finished and tuple(words) in (started.words, started.again):
            self.truth.finished(set(site.acknowledged.numbers), site.rows())

    def _act(self, name: str, started: StartedBackup) -> None:
        commands = hand_acts.commands(started)
        at = None
        if name == "hint":
            hints = [hint for ran in self.ran for hint in ran.hints if not any(c.isupper() for c in hint)]
            words = self.chance.choice(hints).split()[1:] if hints else ["doctor", "main"]
            words += ["--yes", "--no-backup"] if words[0] == "rewind" and "--yes" not in words else []
            self.acts.append(f"hint {' '.join(words[:3])}")
            self._run(words, started, CONFIG, None)
        elif name in commands:
            if self.then is None and self.chance.random() < 0.3:
                number, how = self.chance.randint(1, 40), self.chance.choice(("kill", "kill", "int", "power"))
                at = Interruption("start", number, how, 0.0)
            self.acts.append(f"{name}{f' ({at})' if at else ''}")
            self._run(commands[name].words, started, commands[name].config, at)
            if name == "setup":
                # It may have written another configuration.
                self.site.configure()
        else:
            self.seen = None
            self.acts.append(name)
            hand_acts.OTHERS[name](self.site)

    def transcript(self) -> str:
        lines = []
        for ran in self.ran:
            lines.append(f"  $ zsnapdb {' '.join(ran.words)}   -> {ran.code} {ran.reached}")
            lines += [f"      {line}" for line in ran.text.splitlines()[-8:]]
        return "\n".join(lines)


def play(site: Site, number: int, verb: str, options: argparse.Namespace) -> tuple[Round, str]:
    """Play a round to its end, and return it with its transcript."""
    began = time.monotonic()
    one = Play(site, verb, random.Random(f"{options.seed}/{number}/{verb}"), at=options.at, then=options.then)
    try:
        one.play()
    except (LabError, AssertionError, OSError) as error:
        one.wrong.append(f"the round broke off: {str(error)[-1500:]}")
    reached = next((ran.reached for ran in one.ran if ran.reached), "")
    seconds, rows = time.monotonic() - began, len(site.acknowledged.numbers)
    result = Round(number, verb, one.interruption, reached, tuple(one.acts), rows, seconds, tuple(one.wrong))
    listing = ""
    if one.wrong and site.guest.is_on:
        listing = site.guest.run(["zfs", "list", "-r", "-o", "name,mounted,origin,zsnapdb:replaced", "tank"]).stdout
    return result, one.transcript() + "\n" + listing


def _interruption(text: str) -> Interruption:
    phase, number, how, delay = text.split()
    return Interruption(phase, int(number), how, float(delay))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], required=True)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument(
        "--first", type=int, default=1, help="the number of the first round: a round is made anew by it"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(VERBS), default=list(VERBS))
    parser.add_argument("--at", type=_interruption, help="interrupt every verb so: 'PHASE NUMBER HOW DELAY'")
    parser.add_argument("--then", nargs="*", help="the acts of every round, none of them interrupted")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no round after so many minutes")
    parser.add_argument(
        "--say", action="store_true", help="print what every command said, also of rounds that are right"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds: list[Round] = []
    began = time.monotonic()
    with Guest.boot(Lab.ready(), options.flavour) as guest:
        site = Site(guest, options.flavour)
        site.make_base()
        for number in range(options.first, options.first + options.rounds):
            if time.monotonic() - began > 60 * options.minutes:
                break
            verb = options.only[number % len(options.only)]
            result, transcript = play(site, number, verb, options)
            rounds.append(result)
            verdict = "right" if not result.wrong else "WRONG " + " | ".join(result.wrong)
            print(
                f"round {number}: {verb}, {result.interruption} ({result.reached[:60] or 'it ended before'}); then"
                f" {', '.join(result.acts)}; {result.rows} rows, {result.seconds:.0f} s: {verdict}",
                flush=True,
            )
            if result.wrong or options.say:
                print(transcript, flush=True)
    if options.out:
        options.out.write_text(json.dumps([asdict(result) for result in rounds], indent=1))
    wrong = Counter(result.verb for result in rounds if result.wrong)
    hit = sum(1 for result in rounds if result.reached)
    print(f"{len(rounds)} rounds, {hit} interrupted, {wrong.total()} wrong {dict(wrong)}")
    return 1 if wrong or not hit else 0


if __name__ == "__main__":
    sys.exit(main())
