"""Campaign: a setup that moves a server's files to ZFS is interrupted anywhere, users continue, and no row is lost.

It runs on the host, in a guest with systemd (`python3 tests/lab campaign moves`). A round writes rows whose numbers
leave the guest as soon as their commits were acknowledged. It starts `zsnapdb setup` with `move = true`, and interrupts
it at an event that changes something (tests/lab/inside/interrupt) by kill -9, Ctrl-C or SIGTERM. Up to three acts
follow. Then setup runs until it succeeds, and the server must run on ZFS with every acknowledged row. The root of a
guest is in memory, so the power is not cut; `newcomer --kills` and the unit tests of a move check its single steps.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.newcomer import ANSWERS, go_back
from tests.campaigns.support.hand_site import ACCOUNT, LINES, PYTHON, SPAN, Acknowledged
from tests.lab import newcomer
from tests.lab.guest import SYSTEMD, Guest, Lab, Outcome
from tests.lab.host import LabError
from tests.lab.newcomer import UNITS, shell

ON_HOST = True
HOW = {"kill": 6, "int": 2, "term": 1}
EVENTS = 140
SETUP = ("zsnapdb", "setup", "--answers", "answers.toml", "--yes")
ACTS = {
    "setup": SETUP,
    "doctor": ("zsnapdb", "doctor"),
    "backup": ("zsnapdb", "backup"),
    "reap": ("zsnapdb", "reap"),
    "start": ("systemctl", "start", "UNIT"),
    "stop": ("systemctl", "stop", "UNIT"),
    "restart": ("systemctl", "restart", "UNIT"),
}


@dataclass(frozen=True)
class Round:
    """One round: the interruption of setup, the acts after it, and the problems."""

    number: int
    interruption: str
    reached: str
    acts: tuple[str, ...]
    rows: int
    wrong: tuple[str, ...]


class Move:
    """A guest whose server is in its usual folder, and the actions of one round."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.unit = UNITS[guest.flavour]
        self.said: list[str] = []
        self.wrong: list[str] = []
        self.acknowledged = Acknowledged()

    def lines(self, *words: str) -> str:
        return self.guest.run([PYTHON, LINES, *words], timeout=280).check().stdout

    def rows(self) -> set[int]:
        return set(json.loads(self.lines("read")))

    def run(self, words: tuple[str, ...], at: str = "") -> Outcome:
        """Run a command, interrupted at `at`, and check how it ends."""
        reached = self.guest.out / "reached"
        reached.unlink(missing_ok=True)
        env = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        if at:
            env |= {"INTERRUPT_AT": at, "INTERRUPT_INTO": "/out", "PYTHONPATH": "/checkout/tests/lab/inside/interrupt"}
        done = self.guest.run([self.unit if word == "UNIT" else word for word in words], env=env, timeout=400)
        where = reached.read_text() if reached.exists() else ""
        self.said.append(f"$ {' '.join(words)} -> {done.code} {where}\n{done.stdout[-900:]}\n{done.stderr[-1500:]}")
        if "Traceback" in done.stderr or (done.code == 1 and words[:2] == SETUP[:2]):
            self.wrong.append(f"{' '.join(words[:2])} ended with {done.code}: {done.stderr[-600:]}")
        return done

    def play(self, number: int, chance: random.Random) -> Round:
        """Play one round, from a server on its old files to a server on ZFS."""
        self.said, self.wrong, self.acknowledged = [], [], Acknowledged(self.rows())
        writer = self.guest.spawn([PYTHON, LINES, "write", str(number * SPAN)], sink=self.acknowledged)
        time.sleep(1)
        (how,) = chance.choices(list(HOW), list(HOW.values()))
        delay = chance.choice([0.0, 0.0, round(chance.uniform(0.01, 1.0), 2)])
        at = f"start {chance.randint(1, EVENTS)} {how} {delay}"
        self.run(SETUP, at)
        reached = self.guest.out / "reached"
        where = reached.read_text() if reached.exists() else ""
        acts = tuple(chance.choices(list(ACTS), k=chance.randint(0, 3)))
        for name in acts:
            again = f"start {chance.randint(1, EVENTS)} kill 0" if name == "setup" and chance.random() < 0.5 else ""
            self.run(ACTS[name], again)
        self._finish()
        writer.signal(9)
        return Round(number, at, where, acts, len(self.acknowledged.numbers), tuple(self.wrong))

    def _finish(self) -> None:
        """Run setup until it succeeds. Before the last attempt start the server by its unit."""
        for prepares in ((), ("systemctl", "start", "UNIT")):
            if prepares:
                self.run(prepares)
            if self.run(SETUP).code == 0:
                break
        else:
            self.wrong.append("setup does not end well")
        try:
            # Rows that are acknowledged during the read may be missing in it.
            wanted = frozenset(self.acknowledged.numbers)
            missing = wanted - self.rows()
        except LabError as error:
            self.wrong.append(f"LEFT DOWN: {str(error)[-300:]}")
            return
        if missing:
            self.wrong.append(f"LOST {len(missing)} of {len(wanted)} rows, from {min(missing)}")
        source = shell(self.guest, f"findmnt -n -o SOURCE -T {newcomer.DATADIR}/data").strip()
        if source != "tank/mysql/data":
            self.wrong.append(f"the server lies on {source}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], required=True)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no round after so many minutes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds: list[Round] = []
    began = time.monotonic()
    with Guest.boot(Lab.ready(), options.flavour, init=SYSTEMD) as guest:
        shell(guest, "cp /usr/local/bin/zsnapdb /root/zsnapdb")
        newcomer.strip(guest)
        shell(guest, "mkdir /srv/backups; mv /root/zsnapdb /usr/local/bin/")
        shell(guest, f"cat > answers.toml <<'END'\n{ANSWERS}plain = true\nproof = false\nEND")
        move = Move(guest)
        move.lines("root", *ACCOUNT)
        move.lines("some", "1", "20")
        for number in range(1, options.rounds + 1):
            if time.monotonic() - began > 60 * options.minutes:
                break
            try:
                result = move.play(number, random.Random(f"{options.seed}/{number}"))
            except LabError as error:
                result = Round(number, "", "", (), 0, (f"the round broke off: {str(error)[-1500:]}",))
            rounds.append(result)
            verdict = "WRONG " + " | ".join(result.wrong) if result.wrong else "right"
            print(
                f"round {number}: {result.interruption} ({result.reached[:60] or 'it ended before'}); then"
                f" {', '.join(result.acts) or 'nothing'}; {result.rows} rows: {verdict}",
                flush=True,
            )
            if result.wrong:
                print("\n".join(move.said), flush=True)
                # The present state is not a start for another round.
                break
            go_back(guest)
    if options.out:
        options.out.write_text(json.dumps([asdict(result) for result in rounds], indent=1))
    wrong = sum(1 for result in rounds if result.wrong)
    hit = sum(1 for result in rounds if result.reached)
    print(f"{len(rounds)} rounds, {hit} interrupted, {wrong} wrong")
    return 1 if wrong or not hit else 0


if __name__ == "__main__":
    sys.exit(main())
