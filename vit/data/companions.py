"""Recognise pictures that accompany others, which no classifier trains on: masks, depth maps, annotations, thumbnails.

Their names are those of the other pictures with a word such as `mask` added. Without such a partner a picture stays:
`mask_1.jpg` may be of a person with a mask.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from os.path import splitext
from typing import NamedTuple

from vit.data.split_names import is_neutral
from vit.untrusted import spend

WORDS = frozenset(
    {
        "mask", "masks", "annotation", "annotations", "segmentation", "segmentations", "groundtruth", "gt", "trimap",
        "trimaps", "thumb", "thumbs", "thumbnail", "thumbnails", "label", "labels", "segmented", "seg", "segm", "segs",
        "annotated", "depth", "depths", "disparity", "overlay", "overlays", "overlaid", "edge", "edges", "contour",
        "contours", "outline", "saliency", "heatmap", "matte", "mattes", "bbox", "bboxes", "preview", "previews",
        "superpixels", "parsing", "ann", "anno", "msk", "lbl",
    }
)  # fmt: skip
_BESIDE = frozenset({"map", "maps", "rgb", "color", "colour", "original", "orig", "jpg", "png"})
_LONG = "|".join(sorted((word for word in WORDS if len(word) > 3), key=len, reverse=True))
_COMPOUND = re.compile(f"({_LONG})(.+)|(.+?)({_LONG})")  # as depthcrop, or imagemask
_ANY = re.compile("|".join(sorted(WORDS)) + "|truth", re.IGNORECASE)  # faster than to parse every name
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")


class ParsedName(NamedTuple):
    """The words and numbers of a name.

    Attributes:
        rest: without words for companions, and those such as "image" that distinguish no pictures.
        before: as `rest`, but only as far as the first word for a companion.
        words: for companions.
        leading: whether such a word is the first.
    """

    rest: tuple[str, ...]
    before: tuple[str, ...]
    words: tuple[str, ...]
    leading: bool


@lru_cache(maxsize=10_000)
def parse(stem: str) -> ParsedName:
    """Parse the name of a folder, or of a picture without its suffix.

    >>> parse("benign (1)_mask_2").before, parse("apple_1_depthcrop").rest, parse("ground truth").words
    (('benign', '1'), ('apple', '1', 'crop'), ('groundtruth',))
    """
    stem = re.sub(r"(?i)ground[\W_]*truth", "groundtruth", stem)
    rest, words, end, leading = list[str](), list[str](), None, False
    for place, token in enumerate(map(str.casefold, _TOKEN.findall(stem))):
        known, other = token in WORDS and token, token
        if not known and (compound := _COMPOUND.fullmatch(token)):
            known, other = compound[1] or compound[4], compound[2] or compound[3]
        if known:
            leading |= not place
            end = len(rest) if end is None else end
            words.append(known)
        if other != known and not is_neutral(other) and other not in _BESIDE:
            rest.append(other)
    return ParsedName(tuple(rest), tuple(rest[:end]), tuple(words), leading)


def companions_among(pictures: Collection[str], folder: str) -> dict[str, str]:
    """Find the pictures of a folder that accompany others in it.

    Args:
        pictures: names of files.
        folder: its name; pictures of class `mask` may begin with this word.

    Returns:
        The word that says so, by picture.
    """
    plain, marked = set[tuple[str, ...]](), dict[str, ParsedName]()
    own = set(parse(folder).words)
    if not any(map(_ANY.search, pictures)):
        return {}
    for name in pictures:
        spend()
        parsed = parse(splitext(name)[0])
        if parsed.words and not (parsed.leading and own & {*parsed.words}):
            marked[name] = parsed
        else:
            plain.add(parsed.rest)
    plain.discard(())
    return {name: parsed.words[0] for name, parsed in marked.items() if {parsed.rest, parsed.before} & plain}
