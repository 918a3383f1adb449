"""Links are parsed and written by one pair of functions, and invalid values are dropped."""

import ast
import random
from dataclasses import fields
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages.links.grammar import LONGEST, PageLink
from pages.links.page_links import CheckpointsLink, CompareLink, ExploreLink, RunsLink, SideLink
from vit.view.selection import Selection

ROOT = Path(__file__).parents[2]
KINDS: list[type[PageLink]] = [ExploreLink, CompareLink, RunsLink, CheckpointsLink]
HOSTILE = ["", "1", "2", "0", "-1", "1e9", "٣", "999999999", "0-1", "1-", "-", "x.0-3.é-1", "<b>", "a\n", "x" * 5000]


@pytest.fixture(scope="module")
def every_name() -> list[str]:
    """Return every name of any link, and unknown ones."""
    side = [f"{prefix}{one}" for prefix in ("a_", "b_", "m_", "a_a_", "") for one in ("from", "probe", "sort", "run")]
    return [one.name for kind in KINDS for one in fields(kind)] + [one.name for one in fields(Selection)] + side


@pytest.mark.parametrize("kind", KINDS)
def test_link_survives_the_round_trip(kind: type[PageLink], every_name: list[str]) -> None:
    chance = random.Random(7)
    for _ in range(2000):
        names = chance.sample(every_name, chance.randrange(8))
        query = {name: chance.choices(HOSTILE, k=chance.choice([1, 1, 2])) for name in names}
        link = kind.from_query(query)
        written = link.to_query()
        assert kind.from_query(written) == link
        assert kind.from_query(written).to_query() == written
        assert all(len(text) <= LONGEST for texts in written.values() for text in texts)


def test_link_omits_defaults() -> None:
    assert all(kind().to_query() == {} for kind in KINDS)


def test_invalid_values_are_dropped_and_the_rest_is_kept() -> None:
    link = ExploreLink.from_query(
        {"heads": ["six"], "frame": ["3"], "curves": ["yes"], "off": ["9-0.x.0-1"], "block": ["2"], "color": ["red"]}
    )
    assert link == ExploreLink(frame=3, off=((0, 1), (9, 0)), viewer={"block": "2"})
    assert link.to_query() == {"frame": ["3"], "off": ["0-1.9-0"], "block": ["2"]}


def test_each_side_has_its_own_part_of_a_link() -> None:
    link = CompareLink.from_query({"a_from": ["epoch"], "b_probe": ["2"], "m_sort": ["entropy"], "from": ["to"]})
    assert (link.a, link.b) == (SideLink(source="epoch"), SideLink(example="2"))
    assert link.sheet.order == "entropy" and link.viewer == {}


def test_runs_are_listed_once_in_order() -> None:
    assert RunsLink.from_query({"run": ["b", "a", "b"]}).runs == ("b", "a")
    assert RunsLink(runs=("b", "a")).to_query() == {"run": ["b", "a"]}


def test_only_the_links_modules_access_the_address() -> None:
    """Elsewhere, a page handles its link as a value."""
    own = {"links/address.py", "links/navigation.py", "training/train_form/form_state.py"}
    using = set()
    for file in (ROOT / "pages").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "query_params" and ast.unparse(node.value) == "st":
                using.add(file.relative_to(ROOT / "pages").as_posix())
    assert using == own


def names(name: str, page: str) -> None:
    """A page with a control of that name."""
    from pages.links import address, link_controls, session

    session.of(session.Visit).entered = page
    if name.startswith("rewritten "):
        address.rewrite({name.removeprefix("rewritten "): "1"})
    else:
        link_controls.toggle("Switch", name)


@pytest.mark.parametrize(
    ("name", "page", "known"),
    [
        ("probe", "explore", True),
        ("classes_from", "explore", True),
        ("view", "explore", True),
        ("a_classes_text", "compare", True),
        ("m_sort", "compare", True),
        ("smoothing", "runs", True),
        ("steps", "explore", False),
        ("a_steps", "compare", False),
        ("probe", "runs", False),  # of another page
        ("rewritten steps", "explore", False),
        ("rewritten m_sort", "explore", True),  # of the previous page
        ("steps", "train", True),  # its form is tested elsewhere
    ],
)
def test_control_with_a_name_outside_the_pages_link_raises(name: str, page: str, known: bool) -> None:
    app = AppTest.from_function(names, args=(name, page)).run()
    assert bool(app.exception) is not known
