"""What a whole run makes of each campaign, and about how long files take: what begins first, and in which guest."""

from __future__ import annotations

SAMPLES = {
    "archive": ("--rounds", "1", "--seed", "7"),
    "damage": ("--rounds", "16", "--seed", "7"),
    "field": ("--rounds", "1", "--first", "40", "--only", "clone", "restore"),
    "lockfree": ("--rounds", "3", "--seed", "7"),
    "masking": ("--rounds", "1", "--seed", "7"),
    "order": ("--rounds", "2", "--first", "31"),
    "silence": ("--only", "S3 away"),
}
"""The small part of each campaign that every run of the tests makes; the whole of one is `campaign NAME`.

A campaign that is not here runs only where it is named: a part of it that shows something takes too long, or shows no
more than a test of the run:

- `points`: tests/system/test_points.py.
- `clones`: tests/faults/test_interrupted_clone.py cuts the power in create, reset and destroy, at which more is left
  than behind a kill. A command that is killed: tests/system/test_clones.py and test_time_travel.py.
- `hands`: tests/system/test_rewind.py kills a rewind behind the same rename, gives it up and reaps.
- `newcomer`: tests/faults/test_setup_move.py kills and interrupts the same setup, which then goes on to the same rows.
- `flush0`: it shows what servers do; that the setting is refused is tested in tests/unit/planning/backup.
"""
OTHER_RELEASES = {"mariadb-10.11": 150.0, "mysql-8.0": 230.0}
"""The releases beside the lab's two that a whole run tries, and about how long each takes."""
OTHER_RELEASES_TRY = ("--only", "backup", "archive", "point", "clone", "find", "undo")
"""What of the campaign `releases` it tries on them: the main job, positions, points in time, a clone and its resets."""
USUAL = 60.0
"""About how long a file of tests takes that SECONDS does not name."""
SECONDS: dict[str, float] = {
    "test_agent.py": 140,
    "test_binlog_archive.py": 100,
    "test_clone_contract.py": 130,
    "test_clone_life.py": 420,
    "test_clone_sets.py": 110,
    "test_clones.py": 210,
    "test_consolidate.py": 90,
    "test_damage.py": 200,
    "test_doctor.py": 60,
    "test_drill.py": 180,
    "test_encryption.py": 170,
    "test_guides.py": 220,
    "test_handover.py": 140,
    "test_local_restore.py": 220,
    "test_locks.py": 170,
    "test_main_job.py": 240,
    "test_masking.py": 250,
    "test_migration_check.py": 80,
    "test_pool.py": 60,
    "test_row_reset.py": 140,
    "test_pytest_plugin.py": 70,
    "test_branches.py": 100,
    "test_sample_project.py": 80,
    "test_points.py": 420,
    "test_refusals.py": 90,
    "test_replica.py": 110,
    "test_load.py": 45,
    "test_what_is_archived_through_a_rewind.py": 100,
    "test_rescue.py": 90,
    "test_serve.py": 180,
    "test_retention.py": 240,
    "test_time_travel.py": 90,
    "test_upgrade.py": 70,
    "test_zoo.py": 80,
    "test_undo.py": 330,
    "test_rewind.py": 380,
    "test_when_a_rewound_server_has_replicas.py": 70,
    "test_interrupted_backup.py": 370,
    "test_interrupted_clone.py": 85,
    "test_interrupted_prune.py": 130,
    "test_interrupted_restore.py": 270,
    "test_runbook.py": 125,
    "test_faults_under_lock.py": 200,
    "test_systemd.py": 300,
    "test_setup_move.py": 205,
    "test_machines.py": 520,
    "test_interrupted_rewind.py": 115,
    "test_guest_hook.py": 120,
    "archive.py": 120,
    "clones.py": 145,
    "damage.py": 25,
    "field.py": 110,
    "flush0.py": 45,
    "lockfree.py": 75,
    "masking.py": 42,
    "order.py": 80,
    "silence.py": 155,
    "newcomer.py": 85,
    "hands.py": 105,
}
"""About how long a file takes on one flavour, beside other jobs on two processors.

Only the order of the jobs and the shares of the guests depend on it. Files of system and fault tests that have one name
share a number.
"""
ANY_SERVER_SECONDS: dict[str, float] = {
    "test_agent.py": 100,
    "test_clone_life.py": 250,
    "test_clones.py": 100,
    "test_consolidate.py": 90,
    "test_damage.py": 200,
    "test_drill.py": 95,
    "test_encryption.py": 170,
    "test_handover.py": 100,
    "test_local_restore.py": 200,
    "test_main_job.py": 80,
    "test_masking.py": 120,
    "test_migration_check.py": 80,
    "test_pool.py": 60,
    "test_points.py": 50,
    "test_refusals.py": 60,
    "test_retention.py": 240,
    "test_serve.py": 180,
    "test_time_travel.py": 15,
    "test_faults_under_lock.py": 100,
    "test_guest_hook.py": 50,
    "test_interrupted_rewind.py": 115,
    "test_rewind.py": 260,
    "test_pytest_plugin.py": 70,
    "test_sample_project.py": 80,
    "test_undo.py": 30,
    "test_upgrade.py": 15,
    "test_interrupted_backup.py": 370,
    "test_interrupted_clone.py": 85,
    "test_interrupted_prune.py": 130,
    "test_interrupted_restore.py": 270,
    "test_runbook.py": 125,
    "clones.py": 145,
    "order.py": 80,
    "silence.py": 155,
    "newcomer.py": 85,
    "hands.py": 105,
}
"""About how long the tests with the mark `any_server` of a file take, which a whole run starts on one flavour only."""
