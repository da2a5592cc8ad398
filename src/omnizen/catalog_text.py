"""Methods written as text, with settings and inside one another: ``feedback(powersgd(rank=2))``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from omnizen.catalog_rows import SHORT, CodecRow, ReducerRow, SelectorRow, WrapperRow
from omnizen.catalog_settings import check_parts, example
from omnizen.catalog_settings import made as made_of
from omnizen.errors import LISTS_METHODS, UserError, nearest

Table = Mapping[str, ReducerRow | CodecRow | SelectorRow]
_DASH = re.compile(r"(?<=\w)-(?=[A-Za-z])")
"""Dashes in names are no minus signs; those in numbers (1e-3) are followed by a digit."""


def made(
    text: str,
    reducers: Table,
    codecs: Table,
    selectors: Table,
    wrappers: Mapping[str, WrapperRow],
) -> Any:
    """Make the reducer that a text describes.

    Raises:
        UserError: for what is no such text, an unknown name (the nearest is suggested) or setting.

    Example:
        >>> from omnizen import catalog
        >>> catalog.reducer("feedback(selected(top-k(density=0.1), agsparse))").name
        'feedback(selected(top-k, agsparse))'
    """
    inside: dict[str, tuple[Table, ...]] = {
        "selected": (selectors, reducers),
        "gathered": (codecs,),
        "two-way": (codecs,),
        "paired": (codecs, codecs),
        "pipe": (codecs, codecs),
    }

    def build(node: ast.expr, table: Table) -> Any:
        call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
        if not isinstance(call.func, ast.Name):
            raise UserError(f"{text!r} is not made of names, settings and brackets, as topk(density=0.01) is")
        name = call.func.id.replace("_", "-")
        name = SHORT.get(name, name) if table is reducers else name
        settings = {word.arg or "**": _literal(word.value, text) for word in call.keywords}
        if name in wrappers and call.args:
            tables = inside.get(name, ())
            wrapped = [
                build(argument, tables[place] if place < len(tables) else reducers)
                for place, argument in enumerate(call.args)
            ]
            check_parts(name, wrappers[name], len(wrapped))
            return made_of(name, wrappers[name], settings, *wrapped)
        if name in wrappers and name not in table:
            check_parts(name, wrappers[name], 0)
        if name not in table:
            short = SHORT if table is reducers else ()
            raise UserError(f"{text!r}: {nearest(name, [*table, *wrappers], listed_by=LISTS_METHODS, also=short)}")
        if call.args:
            raise UserError(f"{text!r}: settings of {name} need their names{example(name, table[name])}")
        return made_of(name, table[name], settings)

    try:
        whole = ast.parse(_DASH.sub("_", text.strip()), mode="eval").body
    except SyntaxError as error:
        raise UserError(f"{text!r} cannot be read as a method: {error.msg}") from error
    return build(whole, reducers)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UserError(f"{text!r}: settings are numbers, texts, True, False or None") from error
