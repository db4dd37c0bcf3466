"""Plans sets of clones: their names, and the statements that set up replication on each server. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError, UsageError

LARGEST = 50


class CloneTopology(StrEnum):
    """The connection of the clones in a set: they are independent, or the first clone is the source of the others."""

    INDEPENDENT = "independent"
    REPLICATION = "replication"


def names(name: str, count: int, topology: CloneTopology) -> tuple[str, ...]:
    """Return the names of a set's clones, starting with the source. Raises UsageError if the count is out of range."""
    least = 2 if topology is CloneTopology.REPLICATION else 1
    if not least <= count <= LARGEST:
        raise UsageError(
            f"--count {count} is out of range for --topology {topology}", hint=f"--count must be {least} to {LARGEST}"
        )
    return tuple(f"{name}-{number}" for number in range(1, count + 1))


@dataclass(frozen=True)
class ReplicaStatements:
    """The statements that connect a replica to its source, in the dialect of the replica's server."""

    change: str
    start: str


def replica_statements(flavour: Flavour, *, knows_replica: bool) -> ReplicaStatements:
    """Return the statements for a replica of 127.0.0.1 that finds its position by GTIDs.

    The statements contain placeholders for port, user and password.

    The argument `knows_replica` is set if the server supports CHANGE REPLICATION SOURCE (MySQL 8.0.23). With
    GET_SOURCE_PUBLIC_KEY, the source itself provides the key that encrypts the password. This is safe, because the
    connection does not leave the host (refman 8.4, "CHANGE REPLICATION SOURCE TO").
    """
    if flavour is Flavour.MARIADB:
        return ReplicaStatements(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%s, MASTER_USER=%s, MASTER_PASSWORD=%s,"
            " MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )
    if knows_replica:
        change = (
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=%s, SOURCE_USER=%s, SOURCE_PASSWORD=%s"
        )
        return ReplicaStatements(f"{change}, SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1", "START REPLICA")
    change = "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%s, MASTER_USER=%s, MASTER_PASSWORD=%s"
    return ReplicaStatements(f"{change}, MASTER_AUTO_POSITION=1, GET_MASTER_PUBLIC_KEY=1", "START SLAVE")


def refuse_without_gtids(flavour: Flavour, *, has_binlog: bool, has_gtids: bool) -> None:
    """Raise PreflightError if servers of this kind cannot replicate by GTIDs."""
    if not (has_binlog and has_gtids):
        missing = "a binlog" if not has_binlog else "GTIDs"
        raise PreflightError(
            f"the {flavour} clones lack {missing}, without which they cannot replicate",
            hint="use --topology independent",
        )
