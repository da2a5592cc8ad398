import pytest


@pytest.fixture(autouse=True)
def own_cache(request, tmp_path, monkeypatch):
    """Give each test a cache of its own, except those that read the real sets."""
    if request.node.get_closest_marker("data") is None:
        monkeypatch.setenv("OMNIZEN_CACHE", str(tmp_path / "cache"))
