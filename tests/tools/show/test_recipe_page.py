from streamdata import MergedDataset
from streamdata.tools.show.streams import Place, recipe_page
from tests.streams import Numbers


def test_sources_that_are_seldom_drawn_are_shown_too():
    """Also within another mixture; for all of them one more mixture is built, since that may take long."""
    built = []

    def make():
        rare = [Numbers(f"r{number}", 5, 0.0001) for number in range(4)]
        inner = MergedDataset([Numbers("x", 5, 1), Numbers("y", 5, 1)], name="inner", percent=0.0001)
        built.append(MergedDataset([Numbers("often", 50), *rare, inner]))
        return built[-1]

    page = recipe_page("", make, Place(), 20)
    found = {group.name: len(group.views) for group in page.groups}
    assert len(built) == 2
    # One of them is the first draw of all.
    assert found.pop("often") == 19
    assert sorted(found) == ["inner.x", "inner.y", "r0", "r1", "r2", "r3"]
    assert sorted(found.values()) == [1, 3, 3, 3, 3, 3]
