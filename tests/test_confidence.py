"""Accuracies for people: intervals, digits, and the pictures they stand on."""

import pytest

from vit import confidence


def test_interval_is_wilsons() -> None:
    """45 of 60: 0.6277 to 0.8422, by the formula of Wilson 1927 with z = 1.959964."""
    assert confidence.wilson(45, 60) == pytest.approx((0.6277, 0.8422), abs=1e-4)


def bits(both: int, first: int, second: int, neither: int) -> tuple[int, int, int]:
    """Return the arguments of `paired` for a fourfold table."""
    count = both + first + second + neither
    return (
        int("0" + "1" * (both + first), 2) << second + neither,
        int("0" + "1" * both + "0" * first + "1" * second, 2) << neither,
        count,
    )


@pytest.mark.parametrize(
    ("table", "published"),
    [
        ((14, 5, 0, 22), (0.122, 0.011, 0.226)),  # Altman et al. 2000, Statistics with Confidence, table 6.2
        ((1, 1, 7, 12), (-0.286, -0.507, -0.026)),  # Fagerland et al. 2014, Stat Med 33, 2850: Bentur et al. 2009
    ],
)
def test_paired_interval_is_newcombes(table: tuple[int, int, int, int], published: tuple[float, ...]) -> None:
    assert confidence.paired(*bits(*table)) == pytest.approx(published, abs=6e-4)


@pytest.mark.parametrize("table", [(9, 0, 0, 0), (0, 0, 0, 9), (0, 9, 0, 0), (5, 0, 0, 4), (500, 0, 0, 500)])
def test_paired_interval_of_one_sided_tables_contains_the_difference(table: tuple[int, int, int, int]) -> None:
    difference, low, high = confidence.paired(*bits(*table))
    assert -1 <= low <= difference <= high <= 1 and low < high


def test_swapped_models_have_the_opposite_difference() -> None:
    difference, low, high = confidence.paired(*bits(10, 1, 6, 4))
    assert confidence.paired(*bits(10, 6, 1, 4)) == pytest.approx((-difference, -high, -low))


@pytest.mark.parametrize(("pictures", "shown"), [(33, "76%"), (999, "76%"), (1000, "75.8%"), (None, "75.8%")])
def test_digits_fit_the_number_of_pictures(pictures: int | None, shown: str) -> None:
    assert confidence.share(0.7576, pictures) == shown


@pytest.mark.parametrize("value", [1.5, -0.1, float("nan"), "0.5", True, None])
def test_recorded_accuracy_may_come_from_anywhere(value: object) -> None:
    assert confidence.recorded({"accuracy": value, "accuracy_on": "33 pictures"}) is None


@pytest.mark.parametrize(
    ("said", "pictures"),
    [
        ("211 sharp photos of its things that it had not seen (95%: 71% to 82%)", 211),
        ("the 10,000 test pictures, as `python -m vit evaluate` prints it", 10_000),
        ("8 test pictures, evaluated once, with the weights of the epoch selected on 4 validation pictures", 8),
        ("5 folds of 20 pictures", None),
        (["33 pictures"], None),
        ("9" * 40 + " pictures", None),
    ],
)
def test_number_of_pictures_begins_the_sentence(said: object, pictures: int | None) -> None:
    assert confidence.recorded({"accuracy": 0.5, "accuracy_on": said}) == (0.5, pictures)


@pytest.mark.parametrize(("pictures", "warned"), [(0, False), (1, True), (199, True), (200, False)])
def test_few_test_pictures_are_said_to_tell_little(pictures: int, warned: bool) -> None:
    assert bool(confidence.too_few(pictures)) == warned
