"""Campaign: why innodb_flush_log_at_trx_commit = 0 is refused: snapshots under it, taken all the same, lack what they claim to hold.

With 0 the prepare record of a transaction may still be in the server's memory when the transaction is already in the
binlog. Recovery then finds it in the binlog and not in InnoDB: the server claims its GTID, and its rows are missing.
Nothing replays them later.

How many rows are missing is a matter of the moment: the log is written once in `innodb_flush_log_at_timeout` (a second,
as delivered; both manuals), and by the way with every DDL statement and every rotation of the binlog. To show the
danger and not its odds, there are none of those here, and the timeout is a minute.
"""

from __future__ import annotations

import argparse
import sys

from tests.campaigns.lockfree import BATCH, Campaign, Disturbing
from zsnapdb.jobs.backup import server_source
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.facts import ServerFacts

FLUSH_SECONDS = 60


def _judge_nothing(_: ServerFacts) -> list[FitnessFinding]:
    return []


class Unflushed(Campaign):
    """The same snapshots under the setting that is refused: set behind the preflight's back."""

    def durability(self) -> tuple[str, str]:
        return "1", "0"

    def disturbances(self) -> tuple[Disturbing, ...]:
        return ()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # The preflight sees the setting, and the last look before the snapshot would as well: here it is blindfolded.
    setattr(server_source, "judge_durability", _judge_nothing)  # noqa: B010
    campaign = Unflushed(options.seed)
    campaign.set_up()
    campaign.sql(f"SET GLOBAL innodb_flush_log_at_timeout = {FLUSH_SECONDS}")
    for first in range(1, options.rounds + 1, BATCH):
        campaign.batch(first, min(BATCH, options.rounds + 1 - first))
    lying = [r for r in campaign.rounds if r.wrong and not any(text.startswith("recovered to") for text in r.wrong)]
    print(
        f"{campaign.flavour}: {len(lying)} of {len(campaign.rounds)} snapshots recovered to all recorded GTIDs and lack"
        " rows of them"
    )
    # The danger has to be seen, or the refusal would rest on nothing.
    return 0 if lying else 1


if __name__ == "__main__":
    sys.exit(main())
