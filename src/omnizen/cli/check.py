"""``omnizen check``: the laws, on a codec, selector or reducer of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from omnizen.cli.options import given, refuse_beside

if TYPE_CHECKING:
    from omnizen.laws.law import Verdict


MOST_NAMED = 6
"""So many classes of a file are offered."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    context: typer.Context,
    target: str = typer.Argument(help="What to check: file.py:name or package.module:name, or a catalogue name."),
    ranks: str = typer.Option("1,2,3,4,5,7,8", help="Numbers of ranks to try a reducer on, separated by commas."),
) -> None:
    """Check a codec, selector or reducer against the laws that all methods of the catalogue keep."""
    from rich.console import Console

    subject = load(target)
    if _kind(subject) != "reducer":
        refuse_beside(context, f"a {_kind(subject) or 'target'} without ranks", given(context) & {"ranks"})
    found = judge(subject, target, sizes_of(ranks))
    Console().print(table(found, str(getattr(subject, "name", target))))
    broken = sum(not verdict.held for verdict in found)
    if broken:
        typer.echo(f"{broken} of {len(found)} laws are broken")
        raise typer.Exit(1)
    typer.echo(f"all {len(found)} laws hold")


def sizes_of(ranks: str) -> tuple[int, ...]:
    """Read numbers of ranks; raises ``UserError`` for anything else."""
    from omnizen.errors import UserError

    words = [word.strip() for word in ranks.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 64 for word in words):
        raise UserError(f"--ranks: numbers from 1 to 64 separated by commas are allowed, got {ranks!r}")
    return tuple(int(word) for word in words)


def load(target: str) -> Any:
    """Return the object behind ``file.py:name``, ``module:name`` or a name of the catalogue.

    A class or function is called without arguments to make the object.

    Raises:
        UserError: when there is no such file, module, name or row, or it cannot be made without arguments.
    """
    from omnizen import catalog
    from omnizen.catalog_rows import SHORT
    from omnizen.errors import LISTS_METHODS, UserError, nearest, of_user_code

    place, colon, name = target.rpartition(":")
    if not colon:
        target = catalog.full_name(target)
        if target in catalog.REDUCERS:
            return catalog.reducer(target)
        if target in catalog.CODECS:
            return catalog.codec(target)
        if target in catalog.SELECTORS:
            return catalog.selector(target)
        if target.endswith(".py"):
            raise UserError(f"{target!r} names a file; say what in it is to be checked: {_candidates(target)}")
        names = [*catalog.REDUCERS, *catalog.CODECS, *catalog.SELECTORS]
        found = nearest(target, names, listed_by=LISTS_METHODS, also=SHORT)
        raise UserError(f"expected file.py:name, module:name or a catalogue name; {found}")
    if not name:
        raise UserError(f"{target!r} names nothing after the colon; give file.py:name or module:name")
    module = _module(place)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise UserError(f"{place} has no {name!r}: {nearest(name, public)}")
    found = getattr(module, name)
    if not callable(found) or (_kind(found) and not isinstance(found, type)):
        return found
    try:
        return found()
    except TypeError as error:
        raise UserError(f"{target} cannot be made without arguments ({error}); name an instance instead") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{target} cannot be made: {of_user_code(error)}") from error


def _candidates(place: str) -> str:
    """Return what to write for the methods that a file holds, found by reading it: nothing of it runs."""
    import ast
    from pathlib import Path

    from omnizen.errors import UserError

    if not Path(place).is_file():
        raise UserError(f"there is no file {place!r}")
    try:
        body = ast.parse(Path(place).read_bytes()).body
    except (SyntaxError, ValueError):
        body = []
    names = [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return ", ".join(f"{place}:{name}" for name in names[:MOST_NAMED]) or f"{place}:NAME"


def _module(place: str) -> Any:
    import importlib
    import importlib.util
    import sys
    from pathlib import Path

    from omnizen.errors import UserError, of_user_code

    path = Path(place)
    if path.suffix != ".py":
        if not all(part.isidentifier() for part in place.split(".")):
            raise UserError(f"{place!r} is neither a file that ends in .py nor the name of a module")
        if str(Path.cwd()) not in sys.path:  # modules of the current folder can be named
            sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise UserError(f"there is no module {place!r} ({error}); give a file as file.py:name") from error
        except (Exception, SystemExit) as error:
            raise UserError(f"{place} cannot be imported: {of_user_code(error)}") from error
    if not path.is_file():
        raise UserError(f"there is no file {place!r}")
    name = f"checked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that what it defines can be pickled
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{place} cannot be imported: {of_user_code(error)}") from error
    return module


PARTS = {
    "codec": ("name", "takes", "gives", "summable", "unbiased", "exact", "encode", "decode", "nbytes"),
    "reducer": ("name", "takes", "agrees", "conserves", "exact", "init", "start", "traffic"),
    "selector": ("name", "density", "unbiased", "select", "keeps"),
}


def _kind(subject: Any) -> str:
    if hasattr(subject, "encode") and hasattr(subject, "decode"):
        return "codec"
    if hasattr(subject, "select"):
        return "selector"
    return "reducer" if hasattr(subject, "start") else ""


def judge(subject: Any, target: str, sizes: tuple[int, ...]) -> list[Verdict]:
    """Return what comes of every law for the object's kind.

    Raises:
        UserError: for an object that is no codec, selector or reducer, or lacks part of the contract.
    """
    from omnizen.errors import UserError, of_user_code
    from omnizen.laws.codec import check_codec
    from omnizen.laws.reducer import check_reducer
    from omnizen.laws.selector import check_selector

    kind = _kind(subject)
    if not kind:
        raise UserError(
            f"{target} is {type(subject).__name__}, neither a codec (encode, decode), "
            "nor a selector (select, keeps), nor a reducer (start, traffic)"
        )
    try:
        lacking = [part for part in PARTS[kind] if not hasattr(subject, part)]
    except Exception as error:
        raise UserError(f"{target} is a {kind} whose parts cannot be read: {of_user_code(error)}") from error
    if lacking:
        raise UserError(
            f"{target} is a {kind} without {', '.join(lacking)} ({_meant(kind, lacking)}); docs/add-a-method.md "
            f"walks through one, omnizen.protocols.{kind.capitalize()} has the contract"
        )
    if kind == "reducer":
        return check_reducer(subject, sizes)
    return check_codec(subject) if kind == "codec" else check_selector(subject)


def _meant(kind: str, parts: list[str]) -> str:
    from omnizen import protocols

    contract = vars(getattr(protocols, kind.capitalize()))
    said = ((part, (contract[part].__doc__ or "").split("\n")[0].rstrip(".")) for part in parts)
    return "; ".join(f"{part}: {text[:1].lower()}{text[1:]}" for part, text in said)


def table(found: list[Verdict], name: str) -> Any:
    """Return the laws with what came of each, as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=f"Laws of {name}", title_justify="left")
    shown.add_column("law", no_wrap=True)
    shown.add_column("holds")
    shown.add_column("what it says, or where it is broken")
    for verdict in found:
        mark = Text("yes", "green") if verdict.held else Text("NO", "bold red")
        says = Text(verdict.statement.replace("``", ""), "dim") if verdict.held else Text(verdict.reason)
        shown.add_row(verdict.law, mark, says)
    return shown
