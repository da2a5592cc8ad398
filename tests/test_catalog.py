"""The catalogue is complete, and looking at it loads nothing heavy."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

from omnizen import catalog, codecs, reducers, selectors
from omnizen.errors import UserError

ROWS = {**catalog.REDUCERS, **catalog.CODECS, **catalog.SELECTORS, **catalog.WRAPPERS}


def methods_in(module):
    """Classes defined in a module that encode, select or reduce, but for those to be inherited from."""
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    own = [c for c in own if not inspect.isabstract(c)]
    kinds = ({"encode", "decode"}, {"select", "keeps"}, {"start", "traffic"})
    return [c for c in own if any(kind <= set(dir(c)) for kind in kinds)]


def test_every_method_is_in_the_catalogue():
    listed = {f"omnizen.{row.factory.split(':')[0]}" for row in ROWS.values()}
    for room in (codecs, reducers, selectors):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            module = importlib.import_module(found.name)
            assert not methods_in(module) or module.__name__ in listed, f"{module.__name__} is in no catalogue row"


@pytest.mark.parametrize("name", [*catalog.REDUCERS, *catalog.CODECS, *catalog.SELECTORS])
def test_a_row_makes_what_it_names(name):
    row = ROWS[name]
    assert row.make().name == name
    assert row.summary
    assert row.saves
    assert row.citation
    assert set(row.kinds) <= {"dense", "row-sparse", "element-sparse"}


def test_the_fixed_scheme_names_are_there():
    fixed = ("dense", "agsparse", "sparcml", "zen-coo", "zen-bitmap", "zen-cyclic-coo", "zen-cyclic-bitmap")
    assert set(fixed) <= set(catalog.schemes("row-sparse"))


def test_names_are_looked_up():
    assert catalog.reducer("zen-coo", values="float16").exact is False
    with pytest.raises(UserError, match="did you mean 'zen-coo'"):
        catalog.reducer("zen-co")
    with pytest.raises(UserError, match="did you mean 'bitmap'"):
        catalog.codec("bitmp")
    with pytest.raises(UserError, match="did you mean 'top-k'"):
        catalog.selector("topk")
    with pytest.raises(UserError, match="did you mean 'hash'"):
        catalog.reducer("zen-coo", partition="hsh")
    with pytest.raises(UserError, match="did you mean 'bitmap'"):
        catalog.reducer("zen-coo", pull="bitmp")


def test_reading_the_catalogue_loads_neither_torch_nor_numba():
    program = "import sys, omnizen.catalog; assert not {'torch', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
