"""Campaign: innodb_flush_log_at_trx_commit = 0 is refused because such snapshots lack recorded transactions.

With 0 a transaction's prepare record may still be in the server's memory when the transaction is already in the binlog.
After recovery the transaction is in the binlog but not in InnoDB: the server reports the GTID, but the rows are
missing. No later replay adds them.

The number of missing rows depends on the moment. The log is written once per `innodb_flush_log_at_timeout` (default: a
second, in both manuals), and also with every DDL statement and every binlog rotation. This campaign has no DDL and no
rotations, and sets the timeout to a minute, so that the loss becomes visible.
"""

from __future__ import annotations

import argparse
import sys

from tests.campaigns.lockfree import BATCH, Campaign
from tests.campaigns.support.disturbance import Disturbing
from zsnapdb.jobs.backup import server_source
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.server_facts import ServerFacts

FLUSH_SECONDS = 60


def _judge_nothing(_: ServerFacts) -> list[FitnessFinding]:
    return []


class Unflushed(Campaign):
    """The same snapshots under the refused setting, which the preflight does not see."""

    def durability(self) -> tuple[str, str]:
        return "1", "0"

    def disturbances(self) -> tuple[Disturbing, ...]:
        return ()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # The preflight and the last check before the snapshot would refuse the setting. Here both ignore it.
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
    # At least one snapshot must lack rows. Otherwise there would be no reason to refuse the setting.
    return 0 if lying else 1


if __name__ == "__main__":
    sys.exit(main())
