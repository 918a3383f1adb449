"""Colours of charts, readable in the light and the dark theme."""

TEAL, ORANGE, VIOLET, PINK, GREEN, BLUE, BROWN, GREY = SERIES = (
    "#3b929a", "#c07f3c", "#7d72c4", "#b3597a", "#6f8f3a", "#5a7fb5", "#9a7a55", "#888f94",
)  # fmt: skip
STRONG, QUIET = TEAL, "#9aa5a8"  # the value that matters, and the one to compare it with
