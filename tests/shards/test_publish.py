from streamdata.io.file_cache import cache_directory


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    """$STREAMDATA_CACHE, else a directory of the user's cache."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("STREAMDATA_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_directory()) == "/home/someone/.cache/streamdata"
