"""Stale values of controls that the server has set: until the browser has drawn them again, every message on page Train
contains their old values.
"""

import pytest
from streamlit.proto.WidgetStates_pb2 import WidgetState
from streamlit.testing.v1 import AppTest

from tests.pages.controls import control, run, train_page


def send(page: AppTest, old: list[WidgetState]) -> None:
    """Run the page with the values of its controls, some of them replaced by older ones."""
    states = page._tree.get_widget_states()
    stale_ids = {state.id for state in old}
    current = [state for state in states.widgets if state.id not in stale_ids]
    del states.widgets[:]
    states.widgets.extend([*current, *old])
    page._run(states)
    assert not page.exception


def all_values(page: AppTest, but: str) -> list[WidgetState]:
    """Return the browser's values of all controls except those of one name."""
    return [state for state in page._tree.get_widget_states().widgets if f"-{but}" not in state.id]


@pytest.fixture
def page() -> AppTest:
    return train_page(preset="shapes")


def test_setting_typed_right_after_the_epochs_does_not_undo_them(page: AppTest) -> None:
    shown_twice = control(page.number_input, "search_epochs")._widget_state
    control(page.number_input, "set_epochs").set_value(3).run()
    control(page.number_input, "set_seed").set_value(7)
    send(page, [shown_twice])
    values = [control(page.number_input, name).value for name in ("set_epochs", "search_epochs", "set_seed")]
    assert values == [3, 3, 7]


def test_click_right_after_a_preset_keeps_its_values(page: AppTest) -> None:
    held = all_values(page, "preset")
    control(page.selectbox, "preset").set_value("notebook").run()
    expected = control(page.number_input, "set_epochs").value
    assert expected != 8
    send(page, held)
    assert control(page.number_input, "set_epochs").value == expected


def test_click_right_after_other_data_keeps_the_recipe_proposed_for_them(page: AppTest) -> None:
    held = all_values(page, "data")
    control(page.selectbox, "data").set_value("mnist").run()
    send(page, held)
    recipe, data = control(page.selectbox, "preset").value, control(page.selectbox, "data").value
    assert (recipe, data) == ("mnist", "mnist")


def test_two_ends_typed_before_the_page_has_answered_both_count() -> None:
    page = train_page(preset="shapes", space="lr=1e-4:1e-2:log")
    control(page.text_input, "space_lr_low").set_value("2e-4")
    control(page.selectbox, "space_lr_scale").set_value("linear")
    run(page)
    assert control(page.text_input, "space_lr_low").value == "2e-4"
    assert control(page.selectbox, "space_lr_scale").value == "linear"
