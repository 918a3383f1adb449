"""Two maps side by side, or many pictures at once."""

import streamlit as st

from pages.parts import choice, navigation, opening, sheet, sides

navigation.enter("compare")

MODES = {"two": "Side by side", "many": "Many pictures"}

st.title("Compare", anchor=False)
mode = choice.select(
    "Compare", "mode", list(MODES), words=MODES.get, kind=st.segmented_control, label_visibility="collapsed"
)
opening.start_torch()
if mode == "many":
    sheet.show()
else:
    sides.show()
