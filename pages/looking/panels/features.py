"""Panel Features: principal components as colours, in a joint basis with other pictures, for any block."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import streamlit as st
from PIL import Image
from torch import Tensor

from pages.links import link_controls
from pages.looking.controls import picture_files
from pages.looking.controls.method_choice import Example
from pages.server import pass_queue
from pages.server.result_cache import cached, with_bar
from pages.shared import datasets, download_buttons, long_passes
from pages.shared.escape import plain
from vit.errors import UserError
from vit.explain import head_census
from vit.explain.components import Components, components
from vit.explain.names import display_name
from vit.exports import features_sheet
from vit.exports.animation import Film
from vit.exports.features_sheet import Picture
from vit.images import samples
from vit.images.encode import encode_image
from vit.images.files import decode
from vit.view.captions import file_stem

SAMPLES, OWN = "the samples", "your own pictures"
MOST = 12  # uploaded pictures
TILE = 96  # size of the other pictures [px]
BLOCK_TILE = 96  # size of the tile of each block [px]
READING = "Reading the features…"
HELP = """The first three principal components of the features of all these patches, as red, green and blue (Caron et
al. 2021, Oquab et al. 2024). All pictures share one basis, so the same colour means the same content in each. Black
patches have features with far larger norms than the others; they carry no local content and are left out."""
FOREGROUND_HELP = (
    "Keeps the group of patches with the stronger first component, and computes a basis from these patches alone."
)


def show(example: Example) -> None:
    """Draw the colours of the current picture and of the others, and on demand after every block."""
    blocks = example.explanation.record.blocks
    with st.container(horizontal=True, vertical_alignment="bottom"):
        block = link_controls.select(
            "Features after",
            "features_block",
            range(blocks),
            blocks - 1,
            format_func=partial(display_name, "block"),
            width=180,
        )
        others = link_controls.select("In one basis with", "features_with", [SAMPLES, OWN], width=240)
        foreground = link_controls.toggle("Foreground only", "foreground", help=FOREGROUND_HELP)
    uploads = picture_files.pick(MOST, "features upload", "features_pictures") if others == OWN else ()
    files = (
        [(one.name, one.key, one.data) for one in uploads]
        if others == OWN
        else [(samples.SAMPLES[name].title, name, samples.read(name)) for name in samples.SAMPLES]
    )
    images, names = _images(example, files), tuple(key for _, key, _ in files)
    if not _wanted(example, len(images), names):
        return
    pictures = _pictures(example, images, names, block)
    of = components([one.features for one in pictures], foreground=foreground)
    _show_colours(pictures, of)
    named = partial(file_stem, example.checkpoint.name, example.explanation.preprocess.size)
    stem = named(f"features-block-{block}")

    def film() -> Film:
        return features_sheet.over_blocks((_read(example, images, one) for one in range(blocks)), foreground)

    with st.container(horizontal=True):
        by_block = link_controls.toggle("Block by block", "features_blocks")
        download_buttons.file(
            "Colours as PNG",
            lambda: encode_image(features_sheet.sheet(pictures, of), "PNG"),
            f"{stem}.png",
            "image/png",
        )
        download_buttons.file(
            "Colours as NPZ",
            lambda: features_sheet.npz(pictures, of, example.checkpoint, block, foreground),
            f"{stem}.npz",
            "application/octet-stream",
        )
        about_film = "The picture that is shown, from the first block to the last."
        download_buttons.films("Colours over blocks", film, named("features-blocks"), about_film)
    if by_block:
        _show_blocks(example, images, names, foreground)


def _wanted(example: Example, count: int, names: Hashable) -> bool:
    """Whether to compute so many pictures; draw a button first if this takes long."""
    preprocess = example.explanation.preprocess
    key = "features of patches", example.checkpoint.identity, preprocess.size, names
    return long_passes.is_wanted(key, count, head_census.seconds(example.checkpoint, preprocess, count))


def _images(example: Example, files: Sequence[tuple[str, str, bytes]]) -> list[tuple[str, Image.Image]]:
    """Return the current picture and the others with their names; list unreadable ones."""
    images, problems = [("this picture", example.explanation.picture)], []
    for title, key, data in files:
        try:
            image = cached(("decoded", key), partial(decode.decode_image, data))
        except UserError as error:
            problems.append(f"{title}: {error}")
            continue
        if image.tobytes() != example.explanation.picture.tobytes():
            images.append((title, image))
    datasets.show_list("Left out", problems)
    return images


def _pictures(
    example: Example, images: Sequence[tuple[str, Image.Image]], names: Hashable, block: int
) -> list[Picture]:
    """Return the pictures with their cached features after a block.

    Args:
        names: cache key of the pictures.
    """

    def work(progress: Callable[[float], object]) -> list[Picture]:
        return _read(example, images, block, progress)

    key = "features of patches", example.key, names, block
    pictures: list[Picture] = with_bar(key, READING, work)
    return pictures


def _read(
    example: Example,
    images: Sequence[tuple[str, Image.Image]],
    block: int,
    progress: Callable[[float], object] = lambda share: None,
) -> list[Picture]:
    """Compute the features of pictures after a block, without the cache."""
    checkpoint, size, pictures = example.checkpoint, example.explanation.preprocess.size, []
    for number, image in enumerate(images):
        with pass_queue.reserved(checkpoint, size):
            pictures.append(features_sheet.read(checkpoint, *image, size, block))
        progress((number + 1) / len(images))
    return pictures


def _show_colours(pictures: Sequence[Picture], of: Components) -> None:
    """Draw the current picture large, and the others small."""
    seen = features_sheet.resize_to_tile(pictures[0].seen, 256)
    with st.container(horizontal=True):
        st.image(seen, width=seen.width, caption="The model's input", alt="The model's input")
        st.image(
            features_sheet.tile(of.colours[0], seen.size),
            width=seen.width,
            caption="Its patches' features",
            alt="Three principal components of the features of each patch, as red, green and blue",
        )
    with st.container(horizontal=True):
        for one, colours in zip(pictures[1:], of.colours[1:], strict=True):
            small = features_sheet.resize_to_tile(one.seen, TILE)
            with st.container(width=TILE, gap="xxsmall"):
                st.image(small, width=small.width, alt=plain(one.name))
                st.image(
                    features_sheet.tile(colours, small.size),
                    width=small.width,
                    alt=f"Features of {plain(one.name)}",
                )
    red, green, blue = of.shares.tolist()
    left_out = sum(int((~used).sum()) for used in of.used)
    black = f" {left_out:,} of {sum(used.numel() for used in of.used):,} patches are black." if left_out else ""
    st.caption(
        f"Red is {red:.0%} of how these patches differ, green {green:.0%}, blue {blue:.0%}.{black}",
        help=HELP,
    )


def _show_blocks(
    example: Example, images: Sequence[tuple[str, Image.Image]], names: Hashable, foreground: bool
) -> None:
    """Draw the current picture after each block, in the joint basis of all pictures after that block."""
    blocks = example.explanation.record.blocks

    def work(progress: Callable[[float], object]) -> list[Tensor]:
        colours = []
        for block in range(blocks):
            of = components([one.features for one in _read(example, images, block)], foreground=foreground)
            colours.append(of.colours[0])  # cache only colours: features take much memory
            progress((block + 1) / blocks)
        return colours

    key = "colours of blocks", example.key, names, foreground
    seen = features_sheet.resize_to_tile(example.explanation.input_image, BLOCK_TILE)
    with st.container(horizontal=True):
        for block, colours in enumerate(with_bar(key, READING, work)):
            st.image(
                features_sheet.tile(colours, seen.size),
                width=seen.width,
                caption=f"{block + 1}",
                alt=f"Features after {display_name('block', block)}",
            )
    st.caption("Each block has a basis of its own, so a colour means another thing in the next one.")
