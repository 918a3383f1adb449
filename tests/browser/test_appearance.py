"""Layout of the pages, and contrast of text in both themes."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from .serving import ROOT
from .waiting import Conversation

# Texts with a contrast below 4.5 : 1 against their background (WCAG 2.2, 1.4.3), except disabled ones.
FAINT = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap((e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const above = (e) => e.parentElement ?? e.getRootNode().host ?? null;
  const chain = (e) => (e ? [...chain(above(e)), getComputedStyle(e)] : []);
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (...colours) => { // of colours that lie on each other, the lowest first
    for (const colour of colours) { brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...brush.getImageData(0, 0, 1, 1).data].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = all(document).filter((e) => {
    const said = [...e.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    return said && e.checkVisibility({ visibilityProperty: true }) && !e.closest("[aria-hidden=true], :disabled");
  });
  return texts.flatMap((e) => {
    const styles = chain(e);
    const below = styles.map((one) => one.backgroundColor);
    const opacity = styles.reduce((all, one) => all * one.opacity, 1);
    const behind = light("#fff", ...below);
    const ink = `color-mix(in srgb, ${styles.at(-1).color} ${100 * opacity}%, transparent)`;
    const [low, high] = [behind, light("#fff", ...below, ink)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    return ratio < 4.5 ? [`${ratio.toFixed(2)} ${e.textContent.trim().slice(0, 40)}`] : [];
  });
}"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.exhaustive)])
def test_all_texts_have_sufficient_contrast(
    page: Page, conversation: Conversation, serve: Callable[..., str], theme: str
) -> None:
    page.emulate_media(color_scheme=theme)
    url = serve(ROOT / "app.py")
    page.goto(f"{url}/?sample=coffee&checkpoint=cifar10&panel=what-if")
    expect(page.get_by_role("radio", name="Ablation")).to_be_checked()  # a selected segment
    conversation.finish()
    assert page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).colorScheme") == theme
    assert page.evaluate(FAINT) == []
    page.goto(f"{url}/checkpoints")
    expect(page.get_by_role("button", name="Fetch")).to_be_visible()  # a primary button
    conversation.finish()
    assert page.evaluate(FAINT) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1280, 390])
def test_class_names_are_not_truncated(page: Page, serve: Callable[..., str], width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{serve(ROOT / 'app.py')}/?sample=rocket&checkpoint=everyday")
    page.get_by_role("button", name="Answer").click()
    name = page.locator(".bar span", has_text="water tower")
    expect(name).to_be_visible()
    assert name.evaluate("(e) => getComputedStyle(e).textOverflow !== 'ellipsis' && e.scrollWidth <= e.clientWidth")


@pytest.mark.parametrize(
    ("window", "top", "stage"),
    [
        ((1280, 800), 200, 480),
        pytest.param((1440, 900), 200, 600, marks=pytest.mark.exhaustive),
        ((390, 844), 140, 340),
    ],
)
def test_picture_fits_the_window_below_its_answer(
    page: Page, conversation: Conversation, serve: Callable[..., str], window: tuple[int, int], top: int, stage: int
) -> None:
    page.set_viewport_size({"width": window[0], "height": window[1]})
    page.goto(serve(ROOT / "app.py"))
    expect(page.locator("canvas.over")).to_be_visible()
    conversation.finish()
    area = page.locator(".stage").bounding_box()
    assert area and area["y"] <= top and area["width"] >= stage
    parts = [".stage", ".st-key-answer", *([".mosaic", "[data-field=view]"] if window[0] > 1000 else [])]
    for part in parts:
        expect(page.locator(part).first).to_be_in_viewport(ratio=1)


def test_long_answer_moves_no_control(page: Page, conversation: Conversation, serve: Callable[..., str]) -> None:
    page.goto(serve(ROOT / "app.py"))
    expect(page.locator("canvas.over")).to_be_visible()
    conversation.finish()
    for width in (1000, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        tops = []
        for answer in (
            "It says cup (98%)",
            "Not sure: perhaps keyboard, cash machine or plate of food, of very many",
        ):
            page.locator(".st-key-answer p").evaluate("(line, answer) => (line.textContent = answer)", answer)
            share = page.get_by_role("button", name="Share").bounding_box()
            answers = page.get_by_role("button", name="Answer").bounding_box()
            assert share and answers and answers["x"] + answers["width"] <= share["x"]
            tops.append((page.locator(".st-key-stage").bounding_box() or {}).get("y"))
        assert tops[0] == tops[1]


def test_both_pictures_of_compare_fit_the_window_at_equal_height(
    page: Page, conversation: Conversation, serve: Callable[..., str]
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{serve(ROOT / 'app.py')}/compare")
    stages = page.locator(".stage")
    expect(stages).to_have_count(2)
    conversation.finish()
    left, right = (stages.nth(number).bounding_box() for number in (0, 1))
    assert left and right and left["y"] == right["y"] <= 260 and left["height"] == right["height"] >= 399
    for number in (0, 1):
        expect(stages.nth(number)).to_be_in_viewport(ratio=1)


def test_data_recipe_and_start_of_a_run_fit_the_window_together(page: Page, serve: Callable[..., str]) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{serve(ROOT / 'app.py')}/train")
    start = page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_enabled()
    for part in (page.get_by_role("combobox", name="Dataset"), page.get_by_role("combobox", name="Recipe"), start):
        expect(part).to_be_in_viewport(ratio=1)
    page.set_viewport_size({"width": 390, "height": 844})
    areas = [page.get_by_role("heading", name=name).bounding_box() for name in ("Data", "Recipe", "Settings")]
    tops = [area["y"] for area in areas if area]
    assert len(tops) == 3 and tops == sorted(tops)


def test_reason_why_a_checkpoint_cannot_open_is_beside_the_picture(page: Page, serve: Callable[..., str]) -> None:
    page.goto(f"{serve(ROOT / 'app.py')}/?checkpoint=nobody")
    expect(page.get_by_test_id("stMain").get_by_text("There is no checkpoint nobody.")).to_be_in_viewport()
