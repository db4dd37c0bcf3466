"""Samples of the campaigns in a whole run, and durations of files, for the order of jobs and their guests."""

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
"""The sample of each campaign that every test run includes; `campaign NAME` runs the whole campaign.

A campaign without a sample runs only if it is named: a useful sample takes too long, or shows no more than a test:

- `points`: tests/system/test_points.py.
- `clones`: tests/faults/test_interrupted_clone.py cuts the power in create, reset and destroy, which leaves more behind
  than a kill. Killed commands: tests/system/test_clones.py and test_time_travel.py.
- `hands`: tests/system/test_rewind.py kills a rewind after the same rename, abandons it and reaps.
- `newcomer`: tests/faults/test_setup_move.py kills and interrupts the same setup, which then continues to the same
  rows.
- `clouds`: tests/unit/store/test_stores.py and tests/unit/jobs/backup/test_cloud_backups.py.
- `flush0`: it shows server behaviour; tests in tests/unit/planning/backup check that the setting is refused.
"""
OTHER_RELEASES = {"mariadb-10.11": 150.0, "mysql-8.0": 230.0}
"""Additional server releases that a whole run tries, with their approximate seconds."""
OTHER_RELEASES_TRY = ("--only", "backup", "archive", "point", "clone", "find", "undo")
"""Parts of the campaign `releases` on them: the main job, positions, points in time, a clone and its resets."""
USUAL = 60.0
"""Approximate seconds of a test file that is not in SECONDS."""
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
"""Approximate seconds of a file on one flavour, next to other jobs on two processors.

They only affect the order of the jobs and the shares of the guests. System and fault test files with the same name
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
"""Approximate seconds of a file's tests with the mark `any_server`, which a whole run executes on one flavour only."""
