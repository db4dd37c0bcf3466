"""Masking knows the tables that it changed by their files."""

from __future__ import annotations

from zsnapdb.planning.clone.masking import Changes, FileState, TableFiles, changed, file_name

SINCE = 10**12
OLD = FileState(100, SINCE - 60 * 10**9, 7)
NEW = FileState(100, SINCE + 10**6, 7)
PEOPLE, MAILS = TableFiles("shop", "people"), TableFiles("shop", "mails")


def _changed(after: dict[str, FileState], *, before: dict[str, FileState] | None = None) -> list[TableFiles]:
    states = {"shop/people.ibd": OLD, "shop/mails.ibd": OLD} if before is None else before
    return changed((PEOPLE, MAILS), Changes(states, states | after, SINCE))


def test_a_table_is_changed_if_one_of_its_files_was_written() -> None:
    assert _changed({}) == []
    assert _changed({"shop/people.ibd": NEW}) == [PEOPLE]
    assert _changed({"shop/mails#p#p0.ibd": NEW, "shop/people.MYD": OLD}) == [PEOPLE, MAILS]
    assert _changed({"shop/people.ibd": FileState(100, OLD.modified_ns, 8)}) == [PEOPLE], "another file"
    assert _changed({"shop/people.ibd": FileState(200, OLD.modified_ns, 7)}) == [PEOPLE]


def test_a_file_written_within_a_tick_of_the_first_look_counts_as_changed() -> None:
    near, earlier = (FileState(100, SINCE - ns, 7) for ns in (10**7, 2 * 10**8))
    assert _changed({}, before={"shop/people.ibd": near, "shop/mails.ibd": earlier}) == [PEOPLE]


def test_files_of_definitions_and_fulltext_indices_say_nothing() -> None:
    assert _changed({"shop/people.frm": NEW, "shop/db.opt": NEW, "shop/view.frm": NEW, "shop/t.TRN": NEW}) == []
    assert _changed({"shop/FTS_000000000000012a_00000000000001f3_INDEX_1.ibd": NEW}) == []


def test_a_changed_file_of_no_table_makes_all_tables_of_its_folder_changed() -> None:
    assert _changed({"shop/unknown.ibd": NEW}) == [PEOPLE, MAILS]
    assert _changed({"other/unknown.ibd": NEW}) == []


def test_a_table_without_a_file_of_its_own_counts_as_changed_if_it_must_have_one() -> None:
    shared, memory = TableFiles("shop", "shared"), TableFiles("shop", "memory", needs_file=False)
    assert changed((shared, memory), Changes({}, {"shop/memory.frm": NEW}, SINCE)) == [shared]


def test_a_server_that_writes_names_of_files_in_small_letters_changes_nothing() -> None:
    upper = TableFiles("Shop", "People")
    assert changed((upper,), Changes({"shop/people.ibd": OLD}, {"shop/people.ibd": NEW}, SINCE)) == [upper]


def test_names_of_files_are_those_that_servers_write() -> None:
    names = ("people", "a-b", "a b.c", "`q`", "x#y", "Z_9$")
    assert [file_name(name) for name in names] == [
        "people",
        "a@002db",
        "a@0020b@002ec",
        "@0060q@0060",
        "x@0023y",
        "Z_9@0024",
    ]


def test_a_table_whose_file_name_is_not_known_counts_as_changed() -> None:
    umlaut = TableFiles("shop", "käufer")
    assert changed((umlaut,), Changes({}, {"shop/k@0ae4ufer.ibd": OLD}, SINCE)) == [umlaut]
