"""User-defined classes on page Explore, typed or learnt from examples: predictions, dependent results, and links."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import streamlit as st
import text_models
import torch
from streamlit.testing.v1 import AppTest

import vit
from pages.server import uploaded_pictures
from pages.server.uploaded_pictures import Upload
from pages.shared import long_passes
from tests.pages.controls import control, new_page, press, run
from tests.pages.offered import sent_to
from tests.pages.pictures import png
from vit.explain import features
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer

PHRASES = ["a cat", "a dog", "<b>a wall</b>"]
ODD = ["jack-o-lantern (blue)!", "<i>snake_case</i>"]


@pytest.fixture
def with_texts(request: pytest.FixtureRequest, checkpoints: Path) -> str:
    """A random text-and-picture model."""
    (checkpoints / request.param).mkdir()
    torch.manual_seed(0)
    getattr(text_models, request.param)(checkpoints / request.param)
    return request.param


@pytest.fixture
def backbone(checkpoints: Path, build: Callable[..., VisionTransformer]) -> str:
    """A random model without classes."""
    vit.save_checkpoint(checkpoints / "backbone", build(num_classes=0), [], Preprocess((32, 32)))
    return "backbone"


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Pictures of two colours; returns their name in links."""
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    for split in ("train", "test"):
        for name, shade in (("dark", 20), ("light", 200)):
            folder = tmp_path / "data" / "shades" / split / name
            folder.mkdir(parents=True)
            for i in range(6):
                (folder / f"{i}.png").write_bytes(png(40, 40, color=f"rgb({shade + 5 * i}, {shade}, {shade})"))
    return f"folder:{tmp_path / 'data' / 'shades'}"


def pixels(checkpoint: vit.Checkpoint) -> torch.Tensor:
    return checkpoint.preprocess(vit.decode_image(samples.read("cat")))


@pytest.mark.parametrize("with_texts", ["clip", "siglip"], indirect=True)
def test_typed_phrases_are_the_classes_everywhere(page: AppTest, with_texts: str) -> None:
    assert not run(page, checkpoint=with_texts, classes_from="typed", classes_text=PHRASES[:2], view="relevance").error
    checkpoint = vit.load_checkpoint(with_texts)
    typed = checkpoint.with_classes(vit.classes_from_text(checkpoint, PHRASES[:2]))
    expected = typed.model.probabilities(typed.model(pixels(typed)).logits[0]).detach()
    best = int(expected.argmax())
    options = control(page.selectbox, "target").options
    assert options[0] == f"{PHRASES[best]} · {expected[best]:.1%}" and len(options) == 2
    assert sent_to(page)["method"]["target"] == PHRASES[best]


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
@pytest.mark.parametrize("panel", ["layers", "what-if"])
def test_unusual_names_are_shown_as_typed(page: AppTest, with_texts: str, panel: str) -> None:
    link = {
        "checkpoint": with_texts,
        "classes_from": "typed",
        "classes_text": ODD,
        "view": "relevance",
        "target": ODD[1],
    }
    assert not run(page, panel=panel, probe="1", off="0-1", **link).error
    assert {text.split(" · ")[0] for text in control(page.selectbox, "target").options} == set(ODD)
    assert sent_to(page)["method"]["target"] == ODD[1]
    traces = [trace for one in page.get("plotly_chart") for trace in json.loads(one.proto.spec)["data"]]
    names = {trace["name"] for trace in traces} | {name for trace in traces for name in trace["y"]}
    assert {"jack-o-lantern (blue)!", "&lt;i&gt;snake_case&lt;/i&gt;"} <= names  # where plotly parses HTML
    grid = (
        json.dumps(json.loads(page.get_by_key("whatif").proto.json), ensure_ascii=False) if panel == "what-if" else ""
    )
    assert panel == "layers" or f"Drop of “{ODD[1]}”" in grid


def test_heads_that_no_class_measures_are_drawn_without_a_scale(page: AppTest, backbone: str, dataset: str) -> None:
    def ends() -> list[str]:
        grid: dict[str, list[str]] = json.loads(page.get_by_key("whatif").proto.json)
        return grid["ends"]

    run(page, checkpoint=backbone, panel="what-if")
    assert ends() == []
    run(page, checkpoint=backbone, panel="what-if", classes_from="examples", classes_data=dataset)
    low, high = ends()
    assert low.startswith("−") and high.startswith("+")


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
def test_other_phrases_reset_the_selected_class(page: AppTest, with_texts: str) -> None:
    run(page, checkpoint=with_texts, classes_from="typed", classes_text=PHRASES, target=PHRASES[2])
    assert control(page.selectbox, "target").value == 2
    control(page.text_area, "classes_text").set_value("a cat\n\n  a   tree ").run()
    assert not page.exception and page.query_params["classes_text"] == ["a cat", "a tree"]
    assert "target" not in page.query_params


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
@pytest.mark.parametrize(("template", "message"), [("no braces", "A template needs {} once"), ("a photo of a {}", "")])
def test_template_is_used_or_refused(page: AppTest, with_texts: str, template: str, message: str) -> None:
    run(page, checkpoint=with_texts, classes_from="typed", classes_text=PHRASES, classes_template=template)
    errors = [one.value.replace("\\", "") for one in page.error]
    assert len(errors) == bool(message) and all(one.startswith(message) for one in errors)
    assert bool(message) == (sent_to(page)["method"] is None)


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
@pytest.mark.parametrize("texts", [[""], ["x" * 5000], [" "], [f"phrase {i}" for i in range(1200)], ["\x00", "é"]])
def test_hostile_phrases_give_an_answer_or_a_sentence(page: AppTest, with_texts: str, texts: list[str]) -> None:
    run(page, checkpoint=with_texts, classes_from="typed", classes_text=texts)
    assert sent_to(page)


def test_phrases_are_offered_only_for_text_models(page: AppTest) -> None:
    run(page, classes_from="typed", classes_text=PHRASES)
    assert not page.text_area
    assert control(page.button_group, "classes_from").options == ["the checkpoint's", "examples", "similarity"]


@pytest.mark.parametrize("classifier", ["probe", "neighbours"])
def test_model_without_classes_learns_those_of_a_dataset(
    page: AppTest, backbone: str, dataset: str, classifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the page's model stays on the CPU nevertheless
    page = run(page, checkpoint=backbone)
    assert any("no classes of its own" in one.value for one in page.info)
    assert not run(page, classes_from="examples", classes_data=dataset, classes_classifier=classifier).error
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    checkpoint = vit.load_checkpoint(backbone)
    custom = vit.classes_from_examples(checkpoint, dataset, classifier, 300)
    expected = checkpoint.with_classes(custom).model(pixels(checkpoint)).logits[0].softmax(-1)
    best = int(expected.argmax())
    assert control(page.selectbox, "target").options[0] == f"{custom.names[best]} · {expected[best]:.1%}"
    assert custom.accuracy is not None
    count = custom.facts["pictures"]
    right = f"{round(custom.accuracy * count)} of {count} examples right when held out ("
    assert any(right in one.value for one in page.caption)


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
def test_new_phrase_costs_one_pass(page: AppTest, with_texts: str, forwards: list[str]) -> None:
    assert not run(page, checkpoint=with_texts, classes_from="typed", classes_text=PHRASES[:2], view="attention").error
    depth = vit.load_checkpoint(with_texts).config.depth
    before = len(forwards)
    run(page, classes_text=PHRASES[1:3], view="attention")
    assert len(forwards) == before  # it uses the recorded pass
    run(page, view="relevance")
    assert len(forwards) - before <= depth


def test_cached_features_survive_a_restart_until_a_picture_changes(
    page: AppTest, backbone: str, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    original = features.features_of
    monkeypatch.setattr(features, "features_of", lambda *args, **named: computed.append(1) or original(*args, **named))

    def options() -> list[str]:
        st.cache_resource.clear()  # as after a restart
        assert not run(page, checkpoint=backbone, classes_from="examples", classes_data=dataset).error
        return list(control(page.selectbox, "target").options)

    first = options()
    assert options() == first and computed == [1]
    for i in range(6):
        (tmp_path / "data" / "shades" / "train" / "dark" / f"{i}.png").write_bytes(png(40, 40, color="rgb(90, 200, 0)"))
    assert options() != first and computed == [1, 1]


def test_probe_is_saved_as_a_checkpoint_with_the_same_answers(
    page: AppTest, checkpoints: Path, backbone: str, dataset: str
) -> None:
    run(page, checkpoint=backbone, classes_from="examples", classes_data=dataset)
    before = control(page.selectbox, "target").options
    page.text_input(key="probe name").set_value("shades-probe")
    page.button(key="keep probe").click().run()
    assert not page.exception and not page.error
    assert [one.value.replace("\\", "") for one in page.toast] == ["shades-probe is a checkpoint now."]
    assert page.query_params["checkpoint"] == "shades-probe" and "classes_from" not in page.query_params
    assert control(page.selectbox, "target").options == before
    probe = vit.load_checkpoint("shades-probe")
    assert probe.labels == ("dark", "light") and "logistic regression on features of 10 pictures" in probe.card
    assert (
        "Cross validated accuracy: 10 of 10 pictures (72 to 100 %)\n" in probe.card
        and "backbone (weights" in probe.card
    )


def test_taken_name_is_refused_and_nothing_is_lost(page: AppTest, backbone: str, dataset: str) -> None:
    run(page, checkpoint=backbone, classes_from="examples", classes_data=dataset)
    page.text_input(key="probe name").set_value("backbone")
    page.button(key="keep probe").click().run()
    assert not page.exception
    assert any("There is a checkpoint 'backbone' already" in one.value for one in page.error)
    assert not vit.load_checkpoint("backbone").labels


def test_groups_of_uploaded_pictures_are_classes(
    page: AppTest, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    groups = {
        "dark <b>": [png(30, 30, color=f"rgb({i}, 0, 0)") for i in (0, 9, 30)],
        "light": [png(30, 30, color=f"rgb({i}, 255, 255)") for i in (200, 255)],
    }
    keys = {
        name: uploaded_pictures.store_all([Upload.of(f"{i}.png", data) for i, data in enumerate(pictures)])
        for name, pictures in groups.items()
    }
    link = [f"{key} {name}" for name, key in keys.items()]
    run(page, checkpoint=backbone, classes_from="examples", classes_group=link[:1])
    assert any("Add at least two groups" in one.value for one in page.caption)
    assert not run(page, classes_group=link).error
    decoded = {name: [vit.decode_image(data) for data in pictures] for name, pictures in groups.items()}
    checkpoint = vit.load_checkpoint(backbone)
    custom = vit.classes_from_pictures(checkpoint, decoded)
    shares = checkpoint.with_classes(custom).model(pixels(checkpoint)).logits[0].softmax(-1)
    best = int(shares.argmax())
    option = control(page.selectbox, "target").options[0].replace("\\", "")
    assert option == f"{list(groups)[best]} · {shares[best]:.1%}"
    page.button(key=f"remove {link[0]}").click().run()
    assert not page.exception and page.query_params["classes_group"] == link[1]


def test_refused_group_gives_the_reason(
    page: AppTest, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))

    def add(name: str, files: list[tuple[str, bytes, str]]) -> list[str]:
        page.text_input(key=f"classes_group name {len(groups())}").set_value(name)
        page.file_uploader(key=f"classes_group pictures {len(groups())}").set_value(files)
        press(page, "Add the group")
        assert not page.exception
        return [one.value.replace("\\", "") for one in page.warning]

    def groups() -> list[str]:
        linked = page.query_params.get("classes_group", [])
        return [linked] if isinstance(linked, str) else linked

    run(page, checkpoint=backbone, classes_from="examples")
    picture, text = ("red.png", png(30, 30), "image/png"), ("text.png", b"no picture", "image/png")
    assert add("", []) == ["The group needs a name and pictures."]
    assert add("", [picture]) == ["The group needs a name."]
    (note,) = add("cats", [text])
    assert note.startswith("text.png: ") and note.endswith("The group needs pictures.") and not groups()
    (note,) = add("c" * 300, [picture, text])
    assert note.startswith("text.png: ") and "needs" not in note
    assert [one.partition(" ")[2] for one in groups()] == ["c" * 100]


def test_deleted_group_is_restored_by_uploading_it_again(
    page: AppTest, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    key = uploaded_pictures.store_all([Upload.of("red.png", png(31, 31))])
    for file in (tmp_path / "pictures").iterdir():
        file.rename(tmp_path / file.name)
    run(page, checkpoint=backbone, classes_from="examples", classes_group=[f"{key} reds"])
    assert any("The pictures of reds were deleted" in one.value for one in page.caption)
    uploaded_pictures.store_all([Upload.of("red.png", png(31, 31))])
    run(page)
    assert any(one.value == "**reds** · 1 picture" for one in page.markdown)


def test_deleted_pictures_of_a_group_are_named(page: AppTest, backbone: str) -> None:
    run(page, checkpoint=backbone, classes_from="examples", classes_group=["0" * 64 + " cats", "no key", " "])
    assert any("The pictures of cats were deleted" in one.value for one in page.caption)


def test_slow_computation_waits_for_a_button(
    page: AppTest, backbone: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_passes, "BUTTON_ABOVE_SECONDS", 0.0)
    run(page, checkpoint=backbone, classes_from="examples", classes_data=dataset)
    button = next(one for one in page.button if one.label.startswith("Look at 300 pictures"))
    assert not page.exception and sent_to(page)["method"] is None
    button.click().run()
    assert not page.exception and sent_to(page)["method"]["target"] in ("dark", "light")
    page.run()
    assert sent_to(page)["method"] is not None  # typing again does not compute again


@pytest.fixture
def compare(checkpoints: Path) -> AppTest:
    """Page Compare with a link, not yet run."""
    return new_page("compare")


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
def test_each_side_of_compare_has_its_own_classes(
    compare: AppTest, with_texts: str, backbone: str, dataset: str
) -> None:
    typed = {"b_checkpoint": with_texts, "b_classes_from": "typed", "b_classes_text": PHRASES[:2]}
    learnt = {"a_checkpoint": backbone, "a_classes_from": "examples", "a_classes_data": dataset}
    assert not run(compare, **typed, **learnt).error
    assert {text.split(" · ")[0] for text in control(compare.selectbox, "a_target").options} == {"dark", "light"}
    assert {text.split(" · ")[0] for text in control(compare.selectbox, "b_target").options} == set(PHRASES[:2])


@pytest.mark.parametrize("with_texts", ["clip"], indirect=True)
def test_contact_sheet_of_typed_phrases_leads_to_explore_with_them(compare: AppTest, with_texts: str) -> None:
    link = {"m_checkpoint": with_texts, "m_classes_from": "typed", "m_classes_text": PHRASES[:2]}
    assert not run(compare, mode="many", **link).error
    assert sum(one.value.startswith(("**a cat**", "**a dog**")) for one in compare.markdown) == len(samples.SAMPLES)
    query = parse_qs(compare.get("page_link")[0].proto.query_string)
    assert query["classes_text"] == PHRASES[:2] and query["classes_from"] == ["typed"]


def test_similarity_to_the_pinned_patch_is_the_class(page: AppTest, backbone: str) -> None:
    assert not run(page, checkpoint=backbone, sample="cat", classes_from="similar", classes_like="cat").error
    assert control(page.selectbox, "target").options == ["like Chelsea the cat · 100.0%"]
    assert re.fullmatch(r">?\d+% like Chelsea the cat", sent_to(page)["answers"]["says"])
    button = next(one for one in page.button if one.label == "Take the pinned patch")
    button.click().run()
    assert [one.value.replace("\\", "") for one in page.error] == [
        "No patch is pinned. Click one on the picture first."
    ]
    run(page, token="7", pinned="1")
    press(page, "Take the pinned patch")
    assert not page.exception and not page.error
    checkpoint = vit.load_checkpoint(backbone)
    place = divmod(7 - len(checkpoint.config.prefix), 4)
    assert page.query_params["classes_like"] == "cat"
    assert page.query_params["classes_patch"] == f"{place[0]},{place[1]}"
    alike = checkpoint.with_classes(vit.class_from_picture(checkpoint, vit.decode_image(samples.read("cat")), place))
    expected = float(alike.model(pixels(alike)).logits[0, 0].detach())
    name = f"like Chelsea the cat, patch {place[0] + 1}, {place[1] + 1}"
    assert control(page.selectbox, "target").options == [f"{name} · {max(expected, 0):.1%}"]
    run(page, sample="horse")
    assert sent_to(page)["method"]["target"] == name  # of the cat's patch, on another picture
    next(one for one in page.button if "take the whole picture" in one.label).click().run()
    assert not page.exception and "classes_patch" not in page.query_params


def test_similarity_to_an_uploaded_picture_outlives_the_session(
    page: AppTest, backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    key = uploaded_pictures.store(png(30, 30, color="rgb(200, 20, 20)"))
    run(page, checkpoint=backbone, classes_from="similar", classes_like=key, classes_name="red <b>.png")
    assert not page.error
    assert control(page.selectbox, "target").options[0].startswith("like red <b>.png · ")


@pytest.mark.parametrize(
    ("like", "patch"), [("nothing", ""), ("cat", "99,0"), ("cat", "x,y"), ("0" * 64, "1"), ("", "0,")]
)
def test_hostile_links_of_similarity_give_an_answer_or_a_sentence(
    page: AppTest, backbone: str, like: str, patch: str
) -> None:
    run(page, checkpoint=backbone, classes_from="similar", classes_like=like, classes_patch=patch)
    assert sent_to(page)
