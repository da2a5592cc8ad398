"""What errors say."""

from omnizen.errors import MOST_SHOWN, near, nearest, of_user_code


def test_the_nearest_comes_first():
    assert nearest("dens", ["dense", "zen"]) == "got 'dens'; did you mean 'dense'? allowed: dense, zen"
    assert nearest("qqq", ["dense", "zen"]) == "got 'qqq'; allowed: dense, zen"
    assert nearest("qqq", []) == "got 'qqq'; allowed: nothing"


def test_a_long_list_is_cut_only_where_something_else_lists_it():
    names = [f"name{n}" for n in range(40)]
    assert nearest("name39x", names).endswith("name38, name39")
    cut = nearest("name39x", names, listed_by="omnizen cite --list")
    assert cut.startswith("got 'name39x'; did you mean 'name39'? allowed: name0, name1, ")
    assert cut.endswith(f"name{MOST_SHOWN - 1} and {40 - MOST_SHOWN} more (omnizen cite --list lists all)")
    one_more = names[: MOST_SHOWN + 1]
    assert nearest("x", one_more, listed_by="y") == f"got 'x'; allowed: {', '.join(one_more)}"


def test_only_what_may_be_meant_is_suggested():
    schemes = ["stc", "curve-poly", "zen-coo", "dense", "l2"]
    assert [near(given, schemes) for given in ("nosuch", "mycodec.py", "zenn", "x", "")] == ["", "", "", "", ""]
    assert [near(given, schemes) for given in ("DENSE", "l1", "zen-co")] == ["dense", "l2", "zen-coo"]
    assert (
        nearest("zenn", ["zen-coo", "dense"], also=["zen"])
        == "got 'zenn'; did you mean 'zen'? allowed: zen-coo, dense"
    )


def test_an_error_is_placed_in_the_users_own_code():
    import json

    try:
        json.loads("{")
    except ValueError as error:
        said = of_user_code(error)
    assert said.startswith("JSONDecodeError: Expecting property name")
    assert f"({__file__}, line " in said
