"""The settings of the site on its datasets: a backup records them, and prints commands that bring them back."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.support.site_pool import SiteDataset, SitePool
from zsnapdb.base.patterns import is_line
from zsnapdb.jobs.host import site_dataset_settings
from zsnapdb.jobs.host.site_dataset_settings import site_commands
from zsnapdb.planning.dataset_property_classes import CLASSIFIED, SPACE, TEXTS, PropertyClass, property_class
from zsnapdb.repository.manifest import FilesystemType, RightPart, SitePart
from zsnapdb.zfs.explicit_settings import Right

SOURCE, TARGET = "tank/mysql", "other/restored"
SETTABLE = [
    one.name
    for one in CLASSIFIED
    if one.kind is not PropertyClass.FACT and one.name not in (*SPACE, "mountpoint", "canmount")
]
NASTY = ("$(touch /x)", "a b", "'; reboot #", '"', "`id`", "-r", "\\", "é", "1d=>1h")

natives = st.dictionaries(st.sampled_from([name for name in SETTABLE if name not in TEXTS]), st.just("a"))
space = st.dictionaries(st.sampled_from(SPACE), st.sampled_from(["100", "200"]))
texts = st.dictionaries(
    st.sampled_from([name for name in SETTABLE if name in TEXTS] + ["com.sun:auto-snapshot", "autobackup:offsite"]),
    st.sampled_from((*NASTY, "two\nlines", "\udcff")),
)
properties = st.builds(lambda *parts: {k: v for part in parts for k, v in part.items()}, natives, space, texts)
rights = st.sets(
    st.builds(
        Right,
        st.sampled_from(["local", "descendants", "both"]),
        st.sampled_from(["user", "group"]),
        st.sampled_from(["daemon", "54321", "DOMAIN\\some user", "$(id)"]),
        st.sampled_from(["send", "hold", "@keepers", "userprop"]),
    )
    | st.builds(Right, st.just("set"), st.just(""), st.just("@keepers"), st.sampled_from(["send", "hold"]))
    | st.builds(Right, st.just("both"), st.just("everyone"), st.just(""), st.just("snapshot"))
)


def recorded(pool: SitePool) -> SitePart:
    """Return what a manifest has after it was stored and read again."""
    with pytest.MonkeyPatch.context() as patch:
        pool.install(patch)
        site = site_dataset_settings.recorded_settings([SOURCE])[SOURCE]
    stored = FilesystemType(mountpoint="/m", properties={}, site=site).encode()
    read = FilesystemType.decode(stored, "a manifest").site
    assert read is not None
    return read


def run(pool: SitePool, command: str) -> None:
    """Run a command as a shell would: it must be one command with plain words."""
    argv = shlex.split(command)
    shown = subprocess.run(["/bin/sh", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
    assert shown.decode().split("\0")[:-1] == argv
    assert pool.run(argv).returncode == 0


@given(own=properties, given_rights=rights)
def test_the_commands_bring_everything_back_but_values_of_data(own: dict[str, str], given_rights: set[Right]) -> None:
    pool = SitePool()
    pool.datasets = {"tank": SiteDataset(), SOURCE: SiteDataset(dict(own), given_rights), TARGET: SiteDataset()}
    for command in site_commands(TARGET, recorded(pool)):
        run(pool, command)
    assert pool.datasets[TARGET].own == {
        name: value for name, value in own.items() if is_line(value) and property_class(name) is not PropertyClass.DATA
    }
    assert pool.datasets[TARGET].rights == given_rights


def test_a_planted_manifest_reaches_no_property_of_ours_and_no_key() -> None:
    site = SitePart(properties={"zsnapdb:instance": "x", "keylocation": "http://x", "mountpoint": "/etc", "a:b": "1"})
    assert site_commands(TARGET, site) == ("zfs set a:b=1 other/restored",)


@pytest.mark.parametrize(
    "right",
    [
        {"scope": "both", "who": "user", "name": "-s", "permission": "send"},
        {"scope": "both", "who": "user", "name": "a,b", "permission": "send"},
        {"scope": "both", "who": "user", "name": "a\nb", "permission": "send"},
        {"scope": "both", "who": "user", "name": "a", "permission": "-e"},
        {"scope": "both", "who": "user", "name": "a", "permission": "send,destroy"},
        {"scope": "all", "who": "user", "name": "a", "permission": "send"},
    ],
)
def test_a_right_of_another_form_is_refused(right: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RightPart.model_validate(right)


def test_what_is_recorded_is_bounded() -> None:
    pool = SitePool()
    own = {f"x:{number:03}": "y" * 8000 for number in range(50)}
    pool.datasets = {"tank": SiteDataset(), SOURCE: SiteDataset(own)}
    assert sum(map(len, recorded(pool).properties.values())) <= 64 << 10
    assert site_commands(TARGET, None) == ()
