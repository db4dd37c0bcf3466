"""The commands of `zsnapdb clone`."""

from __future__ import annotations

import typer

from zsnapdb.cli.clone import (
    addresses,
    branch,
    commit,
    connect,
    create,
    destroy,
    detach,
    hold,
    inventory,
    lease,
    logs,
    pool,
    prepare,
    reset,
    server,
    upgrade,
)
from zsnapdb.cli.evidencing import evidencing, evidencing_clone
from zsnapdb.cli.groups import CommandGroup

app = typer.Typer(
    cls=CommandGroup, help="Run ephemeral servers on clones of snapshots.", no_args_is_help=True, rich_markup_mode=None
)
app.command("create")(create.create)
app.command("prepare")(evidencing("clone", prepare.prepare))
app.command("pool")(pool.pool)
app.command("addresses")(addresses.addresses)
app.command("list")(inventory.list_clones)
app.command("show")(inventory.show_clone)
app.command("connect", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(connect.connect)
app.command("logs")(logs.logs)
app.command("start")(evidencing_clone(server.start))
app.command("stop")(evidencing_clone(server.stop))
app.command("reset")(evidencing_clone(reset.reset))
app.command("extend")(evidencing_clone(lease.extend))
app.command("protect")(evidencing_clone(lease.protect))
app.command("rename")(evidencing_clone(lease.rename))
app.command("beat")(lease.beat)
app.command("hold")(hold.hold)
app.command("commit")(evidencing_clone(commit.commit))
app.add_typer(branch.app, name="branch")
app.command("detach")(evidencing_clone(detach.detach))
app.command("destroy")(evidencing_clone(destroy.destroy))
app.command("upgrade-test")(upgrade.upgrade_test)
