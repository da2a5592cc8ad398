"""``omnizen lab``: run any command once per host, over shaped links, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnizen.cli.options import given, refuse_beside
from omnizen.errors import UserError
from omnizen.plan.words import amount

if TYPE_CHECKING:
    from omnizen.lab import LabResult


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lab", context_settings={"allow_interspersed_args": False})(lab)


def lab(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run on each host.", metavar="-- COMMAND")
    ] = None,
    hosts: Annotated[int, typer.Option(help="How many hosts.")] = 2,
    rate: Annotated[str, typer.Option(help="Rate of each link, both ways: 10mbit, 1gbit, 25kbit.")] = "100mbit",
    rates: Annotated[Path | None, typer.Option(help="File with hosts' own rates (TOML or text).")] = None,
    cpu: Annotated[str, typer.Option(help="Relative speeds, one per host: 1,1,1,0.33.")] = "",
    dilation: Annotated[
        str, typer.Option(help="Slow the links by this factor; 'auto': by as much as hosts share cores.")
    ] = "1",
    timeout: Annotated[float, typer.Option(help="Stop the hosts after so many seconds.")] = 3600.0,
    grace: Annotated[float, typer.Option(help="Seconds that the others may go on after a host failed.")] = 30.0,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what killed labs left, then end.")] = False,
) -> None:
    """Run a command once per host, in network namespaces with shaped links and limited processors.

    The environment is torchrun's: RANK, WORLD_SIZE, MASTER_ADDR and so on. Needs Linux and root.
    """
    import os

    from omnizen.lab import Lab, LabConfig, load_rates
    from omnizen.lab import clean as clean_labs
    from omnizen.lab.hosts import check_command

    if clean:
        refuse_beside(context, "--clean", given(context) - {"clean"})
        removed = clean_labs()
        typer.echo(f"removed {', '.join(removed)}" if removed else "nothing was left by any lab")
        return
    check_command(command or [], os.environ)
    config = LabConfig(
        hosts=hosts,
        rate=rate,
        links=load_rates(rates) if rates else {},
        cpu=tuple(_number(part, "--cpu needs numbers such as 1,1,0.5") for part in cpu.split(",")) if cpu else (),
        dilation="auto" if dilation == "auto" else _number(dilation, "--dilation needs 'auto' or a factor"),
        timeout_s=timeout,
        grace_s=grace,
    )
    width = len(str(hosts - 1))
    with Lab(config) as room:
        typer.echo(config.facts(room.cores))
        result = room.run(
            command or [],
            on_line=lambda host, line: typer.echo(f"host {host:>{width}} | {line}"),
            on_note=lambda note: typer.secho(note, fg="yellow"),
        )
    _show(result)
    raise typer.Exit(result.exit_code)


def _number(text: str, needs: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"{needs}, got {text!r}") from error


def _show(result: LabResult) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("host", "exit code", "sent", "received", "seconds")
    if result.factor != 1.0:
        table.add_column(f"seconds / {result.factor:.3g}")
    for column in table.columns:
        column.justify = "right"
    for host, (code, seconds) in enumerate(zip(result.returncodes, result.host_seconds, strict=True)):
        sent = amount(result.tx_bytes[host]) if result.tx_bytes else "-"
        received = amount(result.rx_bytes[host]) if result.rx_bytes else "-"
        row = [str(host), str(code), sent, received, f"{seconds:.2f}"]
        if result.factor != 1.0:
            row.append(f"{seconds / result.factor:.2f}")
        table.add_row(*row)
    console.print(table)
