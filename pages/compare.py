"""Page Compare: two maps side by side, or many pictures at once."""

import streamlit as st

from pages.links import link_controls, navigation
from pages.looking import loading
from pages.looking.comparison import contact_sheet, from_explore, side_by_side

navigation.start_page("compare", at_first=from_explore.link)

MODES = {"two": "Side by side", "many": "Many pictures"}

with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="row"):
    with st.container(width="content", key="title"):
        st.title("Compare", anchor=False, width="content")
    with st.container(width="content"):
        mode = link_controls.select(
            "Compare",
            "mode",
            list(MODES),
            format_func=MODES.get,
            kind=st.segmented_control,
            label_visibility="collapsed",
        )
    beside = st.container(width="content")
loading.start_torch()
if mode == "many":
    contact_sheet.show()
else:
    side_by_side.show(beside)
