"""The commands of `zsnapdb clone`."""

from __future__ import annotations

import typer

from zsnapdb.cli.clone import branch, create, inventory, life, pool, upgrade
from zsnapdb.cli.evidencing import evidencing, evidencing_clone
from zsnapdb.cli.groups import CommandGroup

app = typer.Typer(
    cls=CommandGroup, help="Run ephemeral servers on clones of snapshots.", no_args_is_help=True, rich_markup_mode=None
)
app.command("create")(create.create)
app.command("prepare")(evidencing("clone", pool.prepare))
app.command("pool")(pool.pool)
app.command("addresses")(inventory.addresses)
app.command("list")(inventory.list_clones)
app.command("show")(inventory.show_clone)
app.command("connect", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(inventory.connect)
app.command("logs")(inventory.logs)
app.command("start")(evidencing_clone(life.start))
app.command("stop")(evidencing_clone(life.stop))
app.command("reset")(evidencing_clone(life.reset))
app.command("extend")(evidencing_clone(life.extend))
app.command("protect")(evidencing_clone(life.protect))
app.command("rename")(evidencing_clone(life.rename))
app.command("beat")(life.beat)
app.command("hold")(life.hold)
app.command("commit")(evidencing_clone(life.commit))
app.add_typer(branch.app, name="branch")
app.command("detach")(evidencing_clone(life.detach))
app.command("destroy")(evidencing_clone(life.destroy))
app.command("upgrade-test")(upgrade.upgrade_test)
