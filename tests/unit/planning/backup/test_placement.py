"""Every path the server writes must lie on the instance's volumes."""

from __future__ import annotations

from zsnapdb.planning.backup.placement import MountedFilesystem, NamedPath, discover, mount_of, mount_points, place

MOUNTS = [
    MountedFilesystem("/", "ext4", "/dev/sda1"),
    MountedFilesystem("/var/lib/mysql", "zfs", "tank/mysql"),
    MountedFilesystem("/var/lib/mysql/data", "zfs", "tank/mysql/data"),
]
VOLUMES = {"parent": "tank/mysql", "data": "tank/mysql/data"}
DATADIR = NamedPath("datadir", "/var/lib/mysql/data")
REDO = NamedPath("innodb_log_group_home_dir", "/var/lib/mysql")


def test_paths_on_the_volumes_are_placed_without_objection() -> None:
    placement = place([DATADIR, REDO], MOUNTS, VOLUMES)
    assert placement.objections == ()
    assert placement.volume_of == {"/var/lib/mysql/data": "data", "/var/lib/mysql": "parent"}


def test_a_path_elsewhere_is_named_with_what_it_lies_on() -> None:
    placement = place([DATADIR, NamedPath("innodb_undo_directory", "/srv/undo")], MOUNTS, VOLUMES)
    assert placement.objections == (
        "innodb_undo_directory = /srv/undo is on ext4 /dev/sda1 at /, which is not a volume of the instance",
    )


def test_a_dataset_left_out_of_the_volumes_is_a_stray() -> None:
    placement = place([DATADIR, REDO], MOUNTS, {"parent": "tank/mysql"})
    assert any("datadir = /var/lib/mysql/data is on zfs tank/mysql/data" in text for text in placement.objections)


def test_a_mount_inside_a_written_directory_is_objected_to() -> None:
    mounts = [*MOUNTS, MountedFilesystem("/var/lib/mysql/data/big", "zfs", "tank/big")]
    placement = place([DATADIR], mounts, VOLUMES)
    assert any("zfs tank/big is mounted at /var/lib/mysql/data/big" in text for text in placement.objections)


def test_volumes_in_two_pools_are_refused() -> None:
    mounts = [*MOUNTS[:2], MountedFilesystem("/var/lib/mysql/data", "zfs", "other/data")]
    placement = place([DATADIR, REDO], mounts, {"parent": "tank/mysql", "data": "other/data"})
    assert placement.objections == ("the volumes lie in 2 pools (other, tank); one snapshot command reaches only one",)


def test_a_volume_that_is_not_mounted_is_objected_to() -> None:
    placement = place([REDO], MOUNTS[:2], VOLUMES)
    assert "dataset tank/mysql/data (data) is not mounted" in placement.objections


def test_a_longer_name_is_not_a_path_below() -> None:
    assert mount_of("/var/lib/mysql2/x", MOUNTS) == MOUNTS[0]


def test_of_two_mounts_at_one_place_the_later_one_counts() -> None:
    over = MountedFilesystem("/var/lib/mysql", "tmpfs", "tmpfs")
    assert mount_of("/var/lib/mysql/x", [*MOUNTS, over]) == over


SERVER_MOUNTS = [*MOUNTS, MountedFilesystem("/srv/Undo.1", "zfs", "tank/other/Undo.1")]


def test_volumes_that_are_not_configured_are_found_with_lasting_roles() -> None:
    paths = [
        NamedPath("datadir", "/var/lib/mysql/data"),
        NamedPath("log_bin_basename", "/var/lib/mysql"),
        NamedPath("innodb_undo_directory", "/srv/Undo.1"),
    ]
    for order in (paths, paths[::-1]):
        discovered = discover(order, SERVER_MOUNTS, "/var/lib/mysql/data")
        assert discovered.volumes == {"parent": "tank/mysql", "data": "tank/mysql/data", "undo-1": "tank/other/Undo.1"}
        assert discovered.objections == ()


def test_the_data_directory_is_the_one_called_data_whatever_the_others_are_called() -> None:
    mounts = [
        *SERVER_MOUNTS,
        MountedFilesystem("/binlog", "zfs", "tank/a/data"),
        MountedFilesystem("/x", "zfs", "tank/" + "l" * 40 + "1"),
        MountedFilesystem("/y", "zfs", "tank/" + "l" * 41),
    ]
    paths = [
        NamedPath("datadir", "/var/lib/mysql/data"),
        NamedPath("log_bin", "/binlog"),
        NamedPath("a", "/x"),
        NamedPath("b", "/y"),
    ]
    roles = discover(paths, mounts, "/var/lib/mysql/data").volumes
    assert roles["data"] == "tank/mysql/data"
    assert sorted(roles.values()) == sorted(
        ["tank/mysql/data", "tank/a/data", "tank/" + "l" * 40 + "1", "tank/" + "l" * 41]
    )


def test_a_path_behind_a_bind_mount_is_objected_to() -> None:
    mounts = [*SERVER_MOUNTS, MountedFilesystem("/srv/mysql", "zfs", "tank/mysql/data", is_bind=True)]
    placement = place([NamedPath("datadir", "/srv/mysql")], mounts, {"parent": "tank/mysql", "data": "tank/mysql/data"})
    assert (
        "datadir = /srv/mysql is reached through /srv/mysql, a bind mount of a folder of tank/mysql/data"
        in placement.objections
    )


def test_two_datasets_of_one_name_get_different_roles() -> None:
    mounts = [
        *SERVER_MOUNTS,
        MountedFilesystem("/a", "zfs", "tank/a/logs"),
        MountedFilesystem("/b", "zfs", "tank/b/logs"),
    ]
    paths = [NamedPath("datadir", "/var/lib/mysql/data"), NamedPath("x", "/a"), NamedPath("y", "/b")]
    assert discover(paths, mounts, "/var/lib/mysql/data").volumes == {
        "data": "tank/mysql/data",
        "logs": "tank/a/logs",
        "tank-b-logs": "tank/b/logs",
    }


def test_a_path_on_no_dataset_cannot_be_found_a_volume_for() -> None:
    discovered = discover([NamedPath("innodb_undo_directory", "/srv/undo")], SERVER_MOUNTS, "/var/lib/mysql/data")
    assert "innodb_undo_directory = /srv/undo is on ext4 /dev/sda1 at /" in discovered.objections[0]


def test_a_second_mount_of_a_volume_is_not_where_the_server_uses_it() -> None:
    """A tree that was bound for a container shows the whole datasets once more."""
    bound = [MountedFilesystem(f"/srv/jail{mount.path}", mount.fstype, mount.source) for mount in MOUNTS[1:]]
    expected = {"parent": "/var/lib/mysql", "data": "/var/lib/mysql/data"}
    assert mount_points(VOLUMES, [*MOUNTS, *bound], [DATADIR, REDO]) == expected
    assert mount_points(VOLUMES, [*bound, *MOUNTS], []) == expected
    folder = MountedFilesystem("/srv/folder", "zfs", "tank/mysql", is_bind=True)
    assert mount_points(VOLUMES, [*MOUNTS, folder], [REDO, NamedPath("tmpdir", "/srv/folder")]) == expected
