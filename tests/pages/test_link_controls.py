"""A link contains what the user selected, however late the browser receives the results of earlier clicks."""

import random
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from streamlit.testing.v1 import AppTest

from tests.pages.controls import address, app_page, control, run
from vit.images import samples

ROOT = Path(__file__).parents[2]
KINDS = ("kind_select", "kind_segments", "kind_slider", "kind_toggle", "kind_frame")


def controls() -> None:
    """A page with every kind of control; the picture determines their options and labels."""
    import streamlit as st

    from pages.links import link_controls

    picture = st.query_params.get("picture", "a")
    order = {"a": ["cat", "dog", "fox"], "b": ["dog", "fox", "cat"], "c": ["fox", "cat", "dog"]}[picture]
    kinds = {"select": st.selectbox, "segments": st.segmented_control, "slider": st.select_slider}
    for name, kind in kinds.items():
        link_controls.select(name, f"kind_{name}", order, format_func=lambda one: f"{one} of {picture}", kind=kind)
    link_controls.toggle("Toggle", "kind_toggle")

    def remember(frame: int) -> None:
        st.query_params["kind_frame"] = str(frame)

    frame = int(st.query_params.get("kind_frame", "1"))
    st.slider("Frame", 1, 9, frame, **link_controls.bound("kind_frame", frame, remember, picture))


@pytest.fixture
def page() -> AppTest:
    return AppTest.from_function(controls, default_timeout=PATIENCE).run()


def widget_states(page: AppTest) -> Any:
    """Return what a browser that shows the page sends with its next click."""
    return page._tree.get_widget_states()


def find(page: AppTest, name: str) -> Any:
    """Return the control of this name, of any kind."""
    return control([*page.selectbox, *page.button_group, *page.select_slider, *page.toggle, *page.slider], name)


def choices(page: AppTest) -> dict[str, str]:
    """Return the values of the controls in the link."""
    return {name: value for name, value in address(page).items() if name in KINDS}


def test_stale_browser_state_is_no_choice(page: AppTest) -> None:
    before = widget_states(page)
    run(page, picture="b")
    page.query_params["picture"] = "c"
    page._run(before)  # a click from a browser that has not drawn b yet
    assert not page.exception and choices(page) == {}
    page._run(before)
    assert choices(page) == {}


def test_history_navigation_is_not_overruled_by_stale_state(page: AppTest) -> None:
    find(page, "kind_select").set_value("fox")
    find(page, "kind_toggle").set_value(True)
    page.run()
    assert choices(page) == {"kind_select": "fox", "kind_toggle": "1"}
    before = widget_states(page)
    page.query_params.clear()
    page.run()
    page._run(before)
    assert choices(page) == {} and find(page, "kind_select").value == "cat"


def test_choice_in_a_control_about_to_change_counts(page: AppTest) -> None:
    late = AppTest.from_function(controls, default_timeout=PATIENCE).run()
    find(late, "kind_select").set_value("fox")
    run(page, picture="b")
    page._run(widget_states(late))
    assert choices(page) == {"kind_select": "fox"} and find(page, "kind_select").value == "fox"


def test_choice_can_be_undone_before_the_page_has_drawn_it(page: AppTest) -> None:
    find(page, "kind_frame").set_value(5).run()
    find(page, "kind_frame").set_value(1).run()
    find(page, "kind_slider").set_value("dog").run()
    find(page, "kind_slider").set_value("cat").run()
    assert choices(page) == {"kind_frame": "1"}


@pytest.mark.parametrize("seed", range(4))
def test_link_contains_only_the_users_choices(page: AppTest, seed: int) -> None:
    """A hasty user, with a browser that lags by up to three responses."""
    chance = random.Random(seed)
    answers, drawn, wanted = [widget_states(page)], 0, dict[str, str]()
    for step in range(25):
        what = chance.choice(("picture", "picture", "back", "choose"))
        drawn = max(drawn, len(answers) - chance.choice((1, 1, 2, 3)))
        if what == "picture":
            page.query_params["picture"] = chance.choice("abc")
        elif what == "back":
            page.query_params.clear()
            wanted = {}
        else:
            wanted["kind_frame"] = str(chance.randint(2, 9))
            find(page, "kind_frame").set_value(int(wanted["kind_frame"]))
            answers.append(widget_states(page))
            drawn = len(answers) - 1  # users see their own choices
        page._run(answers[drawn])
        assert not page.exception and choices(page) == wanted, (seed, step, what)
        answers.append(widget_states(page))


def test_fast_clicks_on_samples_choose_no_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path))
    page = app_page()
    before, opened = widget_states(page), set(page.query_params)
    for name in list(samples.SAMPLES)[:4]:
        page.query_params["sample"] = name
        page._run(before)
        assert not page.exception
    assert set(page.query_params) <= opened | {"sample"} and "target" not in opened
