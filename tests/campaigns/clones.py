"""Campaign: zsnapdb is killed with -9 at every step that changes clones, from create and reset to commit and destroy.

A step is a `zfs` command that changes something. The kill comes directly before or after it
(tests/lab/inside/zfs-shim). Then `doctor` must report every unfinished object, and one `reap` must remove it. The
result is nothing, or a complete clone that starts and has its data. `--rounds 0` tries all steps of all operations (or
of those in `--only`). Otherwise the seed chooses that many steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.inside import ledger
from tests.lab.inside.zygote import QUICK, Zygote
from tests.lab.inside.zygote import SOCKET as ZYGOTE

ANY_SERVER = True
SOCKET = "/run/mysqld/mysqld.sock"
SHIM = Path("/tmp/shim")
HOME = "tank/zsnapdb/clones"
NAME = "victim"
POOLED = "/tmp/pooled.toml"
"""Configuration with a pool of one clone."""
MASKED = "/tmp/masked.toml"
"""Configuration that masks every clone. The first clone also masks its snapshot set for all later ones."""
SWEPT = "/tmp/swept.toml"
"""Configuration that keeps no prepared snapshot set without clones."""
FORMS = "tank/zsnapdb/prepared"
MASK = "INSERT INTO ledger.journal VALUES (999999, 1);\n"
OPERATIONS = {
    "create": ("clone", "create", "main", "--name", NAME),
    "live": ("clone", "create", "main", "--name", NAME, "--from", "live", "--no-start"),
    "reset": ("clone", "reset", NAME, "--replace"),
    "commit": ("clone", "commit", NAME, "-m", "kept"),
    "branch": ("clone", "branch", "create", NAME, "other"),
    "switch": ("clone", "branch", "switch", NAME, "other"),
    "detach": ("clone", "detach", NAME),
    "destroy": ("clone", "destroy", NAME),
    "fill": ("clone", "pool", "main", "--config", POOLED),
    "hand": ("clone", "create", "main", "--name", NAME, "--config", POOLED),
    "masked": ("clone", "create", "main", "--name", NAME, "--config", MASKED),
}
MAKES = ("create", "live", "fill", "masked")
BRANCHES = ("branch", "switch")
WRITTEN = "CREATE TABLE ledger.written (id INT PRIMARY KEY)"
"""A change on the branch that a switch leaves."""
_PATH = f"/tmp/shim/bin:{os.environ['PATH']}"


@dataclass(frozen=True)
class Step:
    """The moment of the kill: the number of the changing command in an operation, and before or after it."""

    operation: str
    number: int
    side: str


def run(*words: str, shimmed: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command. Operations to be killed run `zsnapdb` directly, others use the zygote."""
    env = {**os.environ, "PATH": _PATH} if shimmed else None
    if words[0] == "zsnapdb" and not shimmed:
        words = (QUICK, *words[1:])
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=env)


def document(*words: str) -> dict:  # type: ignore[type-arg]
    done = run("zsnapdb", *words, "--json")
    if not done.stdout:
        raise AssertionError(f"{words}: {done.stderr}")
    parsed: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return parsed


def names_of_datasets() -> set[str]:
    return set(run("zfs", "list", "-H", "-r", "-t", "all", "-o", "name", "tank").stdout.split())


def complete_forms() -> list[str]:
    """Return the datasets of prepared snapshot sets, which stay for the next clone."""
    swept = document("reap", "--plan")["swept"]
    return [f"{FORMS}/{one['name']}" for one in swept if (one["what"], one["verdict"]) == ("prepared set", "keep")]


def arm(number: int, side: str) -> None:
    (SHIM / "count").unlink(missing_ok=True)
    (SHIM / "at").write_text(f"{number} {side}")


def disarm() -> int:
    count = int((SHIM / "count").read_text()) if (SHIM / "count").exists() else 0
    for name in ("at", "count"):
        (SHIM / name).unlink(missing_ok=True)
    return count


def warned() -> list[str]:
    findings = [f for d in document("doctor")["instances"] for f in d["findings"]]
    return [f["detail"] for f in findings if f["what"] == "clones"]


def servers() -> list[str]:
    """Return the command lines of clone servers."""
    lines = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and "--defaults-file=/var/lib/zsnapdb/clones" in line:
            lines.append(line)
    return lines


def steps_of(operation: str) -> int:
    """Count the changing commands of an operation that is not interrupted."""
    arm(10**6, "before")
    assert run("zsnapdb", *OPERATIONS[operation], shimmed=True).returncode == 0
    return disarm()


def wrong_branches(operation: str) -> list[str]:
    """Return the problems with the branches and their data, now and after repeating the operations."""
    seen = document("clone", "branch", "list", NAME)
    known, current, expected = {one["name"] for one in seen["branches"]}, seen["current"], operation == "switch"
    if known not in ({"main"}, {"main", "other"}):
        return [f"its branches are {sorted(known)}"]
    wrong = [f"it is on {current} with other data"] if _is_written() is not (expected and current == "main") else []
    if "other" not in known and run("zsnapdb", *OPERATIONS["branch"]).returncode != 0:
        wrong.append("the branch cannot be made again")
    for branch in ("other", "main"):
        done = run("zsnapdb", "clone", "branch", "switch", NAME, branch)
        if done.returncode != 0:
            wrong.append(f"it does not switch to {branch}: {done.stderr[-500:]}")
        if _is_written() is not (expected and branch == "main"):
            wrong.append(f"after the switch to {branch} it has other data")
    return wrong


def _is_written() -> bool:
    return run("zsnapdb", "clone", "connect", NAME, "-e", "SELECT 1 FROM ledger.written").returncode == 0


class Campaign:
    """Kills zsnapdb at steps, and checks the state after each kill."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.killed = 0
        ledger.set_up(SOCKET)
        (SHIM / "bin").mkdir(parents=True)
        shutil.copy("/checkout/tests/lab/inside/zfs-shim", SHIM / "bin" / "zfs")
        assert run("zsnapdb", "backup").returncode == 0
        text = Path("/etc/zsnapdb/zsnapdb.toml").read_text()
        Path(POOLED).write_text(f"{text}\n[instance.main.pool]\nsize = 1\n")
        Path("/tmp/mask.sql").write_text(MASK)
        Path(MASKED).write_text(f'{text}\n[instance.main.masking]\nrequired = true\nrun = ["/tmp/mask.sql"]\n')
        Path(SWEPT).write_text(f"{text}\n[clones]\nkeep_unused = 0\n")
        document("clone", "list")
        self.clean()
        # The parent dataset of all clones stays after the first clone.
        self.before = names_of_datasets() | {HOME, FORMS, HOME.rpartition("/")[0]}

    def clean(self) -> None:
        every = [clone["id"] for clone in document("clone", "list")["clones"]]
        for words in (
            ("clone", "destroy", NAME),
            *(("clone", "destroy", name) for name in every),
            ("reap", "--config", SWEPT),
        ):
            done = run("zsnapdb", *words)
            assert done.returncode == 0, done.stderr

    def prepare(self, operation: str) -> None:
        if operation == "hand":
            assert run("zsnapdb", *OPERATIONS["fill"]).returncode == 0
        elif operation not in MAKES:
            assert run("zsnapdb", *OPERATIONS["create"]).returncode == 0
        if operation == "switch":
            assert run("zsnapdb", *OPERATIONS["branch"]).returncode == 0
            assert run("zsnapdb", "clone", "connect", NAME, "-e", WRITTEN).returncode == 0

    def lengths(self) -> dict[str, int]:
        counts = {}
        for operation in OPERATIONS:
            self.prepare(operation)
            counts[operation] = steps_of(operation)
            self.clean()
        self.before = names_of_datasets() | {FORMS}
        return counts

    def round(self, step: Step) -> None:
        self.prepare(step.operation)
        arm(step.number, step.side)
        done = run("zsnapdb", *OPERATIONS[step.operation], shimmed=True)
        disarm()
        # A step may be after the end of the operation, which is then not interrupted.
        wrong = (
            [] if done.returncode in (-9, 0) else [f"the command ended with {done.returncode}: {done.stderr[-300:]}"]
        )
        self.killed += done.returncode == -9
        forms = complete_forms()
        left = {
            name
            for name in names_of_datasets()
            if name not in self.before and not any(name.startswith(form) for form in forms)
        }
        clones = document("clone", "list")["clones"]
        phases = [c["phase"] for c in clones]
        named = warned()
        half = [phase for phase in phases if phase in ("making", "destroying", "changing")]
        if (half or (left and not clones)) and not named:
            wrong.append(f"left {sorted(left)}, phases {phases}, and doctor names nothing")
        if step.operation in BRANCHES and step.side == "after":
            # The user repeats the command before the reaper runs.
            again = run("zsnapdb", *OPERATIONS[step.operation])
            if again.returncode not in (0, 8):
                wrong.append(f"the same command again ends with {again.returncode}: {again.stderr[-500:]}")
        swept = run("zsnapdb", "reap")
        if swept.returncode != 0:
            wrong.append(f"reap ended with {swept.returncode}: {swept.stderr[-500:]}")
        if warned():
            wrong.append(f"after reap doctor still names {warned()}")
        wrong += self.survivor(step)
        if servers() and not document("clone", "list")["clones"]:
            wrong.append(f"servers without a clone: {servers()}")
        self.clean()
        remains = {name for name in names_of_datasets() if name not in self.before}
        if remains or servers():
            wrong.append(f"after destroy and reap there is {sorted(remains)} {servers()}")
        print(
            f"{step.operation:<8} {step.side:<6} {step.number:>2}  left {len(left)}, doctor {len(named)}:"
            f" {'ok' if not wrong else '; '.join(wrong)}",
            flush=True,
        )
        self.wrong += wrong

    def survivor(self, step: Step) -> list[str]:
        """Check that a complete clone is left, which starts and answers, or nothing if there was nothing before."""
        clones = document("clone", "list")["clones"]
        if not clones:
            return (
                []
                if step.operation in (*MAKES, "destroy")
                else [f"the clone is gone after a {step.operation} that was interrupted"]
            )
        if step.operation not in (*MAKES, "destroy") and clones[0]["phase"] not in ("ready", "new"):
            return [f"the clone is {clones[0]['phase']}"]
        if len(clones) > 1:
            return [f"there are {len(clones)} clones"]
        (clone,) = clones
        if clone["waits"]:
            # The clone is unused: the next user gets it, or a new one if it is damaged.
            handed = run("zsnapdb", *OPERATIONS["hand"])
            if handed.returncode != 0:
                return [f"nobody gets a clone after it: {handed.stderr[-500:]}"]
        elif step.operation == "fill" or clone["name"] != NAME:
            return [f"clone {clone['name']} of {clone['owner']} does not wait, and is nobody's"]
        masked = ("--config", MASKED) if step.operation == "masked" else ()
        started = run("zsnapdb", "clone", "start", NAME, *masked)
        if started.returncode != 0:
            return [f"it does not start: {started.stderr[-500:]}"]
        login = document("clone", "connect", NAME, *masked)
        with (
            ledger.connect(login["socket"], login["user"], login["password"]) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT COUNT(*), SUM(balance) FROM accounts")
            ((accounts, balances),) = cursor.fetchall()
            if (int(accounts), int(balances)) != (ledger.ACCOUNTS, ledger.ACCOUNTS * ledger.INITIAL):
                return ["its data is not the source's"]
            cursor.execute("SELECT COUNT(*) FROM journal WHERE worker = 999999")
            if cursor.fetchall() != ((len(masked) // 2,),):
                return ["it is not masked as it should be"]
        return wrong_branches(step.operation) if step.operation in BRANCHES else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(OPERATIONS), default=list(OPERATIONS))
    options = parser.parse_args()
    zygote = Zygote(ZYGOTE)
    campaign = Campaign()
    lengths = (
        campaign.lengths()
        if options.rounds == 0
        else {
            "create": 5,
            "live": 8,
            "reset": 15,
            "branch": 1,
            "switch": 9,
            "detach": 19,
            "destroy": 6,
            "fill": 6,
            "hand": 1,
            "masked": 13,
        }
    )
    lengths = {name: count for name, count in lengths.items() if name in options.only}
    print(f"changing commands: {lengths}", flush=True)
    every = [
        Step(name, number, side)
        for name, count in lengths.items()
        for number in range(1, count + 1)
        for side in ("before", "after")
    ]
    chosen = random.Random(options.seed).sample(every, options.rounds) if options.rounds else every
    for step in chosen:
        campaign.round(step)
    zygote.close()
    print(f"{len(chosen)} rounds, {campaign.killed} killed, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong or not campaign.killed else 0


if __name__ == "__main__":
    sys.exit(main())
