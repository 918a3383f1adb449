"""Settings of page Train: each has a place, a label and a help text, and its values are parsed by its type."""

import pytest

from pages.training import setting_names
from pages.training.train_form import settings
from vit.training.loop.config import TrainConfig


def test_every_setting_has_one_place_on_the_page() -> None:
    names = [*settings.NAMES, *settings.ELSEWHERE]
    assert sorted(names) == sorted(TrainConfig.model_fields)


def test_every_setting_has_a_label_and_a_help_text() -> None:
    for name, field in TrainConfig.model_fields.items():
        assert setting_names.title(name)
        assert settings.explain(name, field).endswith(f"`{name}`")


def test_values_of_a_link_are_those_of_their_setting() -> None:
    for name, value in [
        ("epochs", 3),
        ("lr", 1e-5),
        ("flip", False),
        ("pool", "mean"),
        ("pool", None),
        ("size", "S/16"),
    ]:
        assert settings.parse(name, setting_names.write(value)) == value
    for name in settings.NAMES:
        with pytest.raises(ValueError):
            settings.parse(name, "no such value")
