"""A transfer of the ledger is what the truth of a test takes it for."""

from __future__ import annotations

import re

from tests.lab.inside import ledger


def test_the_statements_of_a_transfer_make_the_balances_that_the_truth_knows() -> None:
    rows = [(worker, number) for worker in range(3) for number in range(1, 40)]
    accounts = dict.fromkeys(range(ledger.ACCOUNTS), ledger.INITIAL)
    journal = []
    for row in rows:
        begin, *updates, noted = ledger.changes(*row).split("; ")
        assert begin == "BEGIN"
        changed = []
        for update in updates:
            found = re.fullmatch(r"UPDATE accounts SET balance = balance \+ (-?\d+) WHERE id = (\d+)", update)
            assert found is not None
            accounts[int(found[2])] += int(found[1])
            changed.append(int(found[2]))
        assert changed == sorted(set(changed)), "two transfers lock accounts in the same order"
        insert = re.fullmatch(r"INSERT INTO journal VALUES \((\d+), (\d+)\)", noted)
        assert insert is not None
        journal.append((int(insert[1]), int(insert[2])))
    assert journal == rows
    assert accounts == ledger.balances(rows)
