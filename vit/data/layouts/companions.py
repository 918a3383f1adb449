"""Recognise pictures that accompany others, such as masks, depth maps and thumbnails: `cat_mask.png` beside `cat.png`.

Without a picture of the same name beside it, a picture stays: `mask_1.jpg` may be of a person with a mask.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from os.path import splitext
from typing import NamedTuple

from vit.data.layouts.split_names import NEUTRAL, split_name
from vit.untrusted import spend

NO_PICTURES = {  # names of folders without pictures of a class
    "mask", "masks", "annotation", "annotations", "segmentation", "segmentations", "groundtruth", "gt", "trimaps",
    "thumbs", "thumbnails", "label", "labels",
}  # fmt: skip
COMPANION_WORDS = {
    *NO_PICTURES, "alpha", "ann", "anno", "annotated", "bbox", "bboxes", "boundary", "contour", "contours",
    "depth", "depths", "disparity", "edge", "edges", "heatmap", "instances", "keypoints", "landmarks", "lbl",
    "matte", "mattes", "msk", "normals", "outline", "overlay", "overlays", "parsing", "pred", "prediction",
    "preview", "previews", "roi", "saliency", "seg", "segm", "segmented", "segs", "semantic", "silhouette",
    "skeleton", "superpixels", "thumb", "thumbnail", "tn", "trimap",
}  # fmt: skip
_NO_CONTENT = frozenset((*NEUTRAL, "map", "maps", "rgb", "color", "colour", "original", "orig", "jpg", "png"))
_OTHERS = {"with", "without", "no", "non", "not"}  # before such a word: a class such as no_mask
_LONG = "|".join(sorted(word for word in COMPANION_WORDS if len(word) > 3))
_COMPOUND = re.compile(f"({_LONG})(.+)|(.+?)({_LONG})")  # as depthcrop, or imagemask
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")


class ParsedName(NamedTuple):
    """A name in words and numbers.

    Attributes:
        rest: all but companion words and those such as "image", which distinguish no pictures.
        before: those of them before the first companion word.
        words: the companion words.
    """

    rest: tuple[str, ...]
    before: tuple[str, ...]
    words: tuple[str, ...]


@lru_cache(maxsize=10_000)
def parse(stem: str) -> ParsedName:
    """Parse the name of a picture without its suffix.

    >>> parse("benign (1)_mask_2").before, parse("apple_1_depthcrop").rest, parse("Ground truth 1").words
    (('benign', '1'), ('apple', '1', 'crop'), ('groundtruth',))
    """
    rest, words, end = list[str](), list[str](), None
    for token in _TOKEN.findall(re.sub(r"(?i)ground[\W_]*truth", "groundtruth", stem)):
        word = token.casefold()
        compound = None if word in COMPANION_WORDS else _COMPOUND.fullmatch(word)
        if word in COMPANION_WORDS or compound:
            end = len(rest) if end is None else end
            words.append(compound[1] or compound[4] if compound else word)
            word = compound[2] or compound[3] if compound else ""
        if word and word not in _NO_CONTENT:
            rest.append(word)
    if not _OTHERS.isdisjoint(rest):
        words, end = [], None
    return ParsedName(tuple(rest), tuple(rest[:end]), tuple(words))


def parse_folder(name: str) -> ParsedName:
    """Parse the name of a folder, in which seg_train/ is of a split."""
    parsed = parse(name)
    return parsed._replace(words=()) if parsed.words == ("seg",) and split_name(name) else parsed


def companions_among(pictures: Collection[str], folder: str) -> dict[str, str]:
    """Return the pictures of a folder that accompany others in it, with the word that says so: 0.png beside 0.jpg, too.

    Args:
        pictures: names of files.
        folder: its name; pictures of a class `mask` may begin with this word.
    """
    text, photos = "\n".join(pictures).casefold(), {name[:-4] for name in pictures if name.lower().endswith(".jpg")}
    drawn = {name: "png" for name in pictures if name.lower().endswith(".png") and name[:-4] in photos}
    if not any(word in text for word in (*COMPANION_WORDS, "truth")):  # faster than parsing every name
        return drawn
    own, plain, marked = {*parse_folder(folder).words}, set[tuple[str, ...]](), dict[str, ParsedName]()
    for name in pictures:
        spend()
        parsed = parse(splitext(name)[0])
        if parsed.words and (parsed.before or own.isdisjoint(parsed.words)):
            marked[name] = parsed
        else:
            plain.add(parsed.rest)
    found = {name: one.words[0] for name, one in marked.items() if {one.rest, one.before} & plain - {()}}
    return drawn | found
