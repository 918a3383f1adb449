"""The lesson: one HTML file with a model, its forward pass in JavaScript, the viewer, and exercises.

The file is encoded in UTF-16. Binary data as UTF-16 code units has an overhead of a thirtieth, base64 of a third. The
page's content security policy allows its own scripts and blocks all requests.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from PIL import Image

from vit.errors import UserError
from vit.images import samples
from vit.images.encode import encode_image
from vit.images.files.decode import decode_image
from vit.lesson import weights as lesson_weights
from vit.untrusted import parse_json
from vit.view.overlay import COLORMAPS
from vit.view.payload import join_sections
from vit.view.standalone_page import NEEDS, STYLE, digest, head, too_old
from vit.view.web import joined, read

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint

_WEB = Path(__file__).with_name("web")  # the page's own modules, style and words
_VIT = Path(__file__).parents[1]
Language = Literal["en", "de", "zh"]
MAX_FILE = 8_000_000  # [bytes]; small enough for e-mail and messengers
MAX_PARAMETERS = 2_800_000  # what fits into MAX_FILE
_FIXED_BYTES = 640_000  # size of a lesson without weights: pictures, text, scripts [bytes]

# Fields of the config and of preprocessing that the page needs.
_CONFIG = (
    "image_size", "patch_size", "channels", "dim", "depth", "heads", "mlp_dim", "prefix", "eps", "norm", "pool"
)  # fmt: skip
_PREPROCESS = ("size", "resize", "resize_to", "interpolation", "mean", "std", "rounding")
_NEEDS = f"{NEEDS} && window.OffscreenCanvas && CSS.supports('selector(:has(a))')"  # of the browser

_SAMPLES = ("temple", "rocket", "cat", "coffee")
_SAMPLE_SIDE = 480  # longer side [px]
_SAMPLE_QUALITY = 85
_COLORMAPS = tuple(COLORMAPS)[:1]

_ESCAPE, _HIGHEST = 0x2424, 0x8000
# Code units that HTML does not preserve inside of a script (NUL, carriage return, "<"), and surrogates.
_FORBIDDEN = np.zeros(1 << 16, bool)
_FORBIDDEN[[0x00, 0x0D, 0x3C, _ESCAPE]] = True
_FORBIDDEN[0xD800:0xE000] = True


def lesson(checkpoint: Checkpoint, language: Language = "en") -> bytes:
    """Build the lesson of a checkpoint as one HTML file.

    Args:
        checkpoint: a small plain model, such as `cifar10`.
        language: of all text; class names without a translation are kept.

    Raises:
        UserError: the lesson does not support this kind of model, or the file would be too large.
    """
    if reason := _unsuited(checkpoint):
        raise UserError(
            f"{checkpoint.name} does not fit into a lesson: {reason}. Choose a small plain model, such as cifar10."
        )
    words = _words(language)
    script, worker = "\n" + bundled("lesson.js"), bundled("worker.js")
    assert "</script" not in (script + worker).lower()
    notice, key = too_old(words["too old"], _NEEDS)
    policy = (
        f"default-src 'none'; script-src '{digest(script)}' '{key}' 'wasm-unsafe-eval'; worker-src blob:; "
        "style-src 'unsafe-inline'; img-src blob: data:; media-src blob:"
    )
    data = json.dumps({"words": words, "language": language}, ensure_ascii=False).replace("<", "\\u003c")
    text = "\n".join(
        [
            head(words["title"], policy, STYLE + read("viewer.css") + _own("lesson.css"), language, "utf-16"),
            notice,
            _lesson_html(words),
            f'<script type="application/json" id="data">{data}</script>',
            f'<script type="text/plain" id="worker">{worker}</script>',
            f'<script type="text/plain" id="model">{as_text(model_bytes(checkpoint, words))}</script>',
            f'<script type="module">{script}</script>\n</body>\n</html>\n',
        ]
    )
    content = ("\ufeff" + text).encode("utf-16-le")
    if len(content) > MAX_FILE:
        raise UserError(
            f"The lesson of {checkpoint.name} would take {len(content) / 1e6:,.1f} MB; it may take "
            f"{MAX_FILE / 1e6:.0f}. Choose a smaller checkpoint, such as cifar10."
        )
    return content


def bundled(entry: str) -> str:
    """Bundle a module of the lesson's page with the viewer's modules that it imports."""
    return joined(f"{_WEB.relative_to(_VIT)}/{entry}", _VIT)


def _own(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


def expected_size(parameters: int) -> int:
    """Estimate the size of a model's lesson [bytes]."""
    return _FIXED_BYTES + lesson_weights.BITS * parameters // 8


def model_bytes(checkpoint: Checkpoint, words: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Pack the model, its config and sample pictures in the format of `vit.view.payload`, with kind "lesson".

    Args:
        words: translations; the key `class.NAME` translates a class.
    """
    config, preprocess = checkpoint.config, checkpoint.preprocess
    weights = lesson_weights.pack_weights(checkpoint.model)
    pictures = [samples.SAMPLES[name] for name in _samples_for(checkpoint.labels)]
    header: dict[str, Any] = {
        "kind": "lesson",
        "name": checkpoint.name,
        "config": {name: getattr(config, name) for name in _CONFIG},
        "preprocess": {name: getattr(preprocess, name) for name in _PREPROCESS},
        "labels": [words.get(f"class.{label}", label) for label in checkpoint.labels],
        "tensors": weights.tensors,
        "middle": lesson_weights.MIDDLE,
        "colormaps": list(_COLORMAPS),
        "samples": [{"name": one.name, "credit": f"{one.credit}, {one.licence}"} for one in pictures],
        "accuracy": checkpoint.facts.get("accuracy"),
    }
    return join_sections(
        header,
        {
            "weights": weights.packed,
            **{f"colormap:{name}": COLORMAPS[name].tobytes() for name in _COLORMAPS},
            **{f"sample:{one.name}": _small(samples.read(one.name)) for one in pictures},
        },
    )


def _unsuited(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint cannot be used for a lesson; "" if it can."""
    if not checkpoint.labels or checkpoint.custom_classes is not None:
        return "it has no classes of its own"
    if checkpoint.model.activation != "softmax":
        return "the probabilities of its outputs do not sum to 1"
    if checkpoint.preprocess.rectangle:
        return "its preprocessing resizes to an aspect ratio other than the input's"
    if checkpoint.preprocess.interpolation == "nearest":
        return "its preprocessing resizes by the nearest pixel"
    return lesson_weights.unsupported_reason(checkpoint.config)


def _samples_for(labels: Sequence[str]) -> list[str]:
    """Choose sample pictures, starting with those of the model's classes."""
    of_classes = [name for name in samples.SAMPLES if name in labels]
    return [*of_classes, *(name for name in _SAMPLES if name not in of_classes)][: len(_SAMPLES)]


def _small(data: bytes) -> bytes:
    picture = decode_image(data)
    picture.thumbnail((_SAMPLE_SIDE, _SAMPLE_SIDE), Image.Resampling.LANCZOS)
    return encode_image(picture, "JPEG", quality=_SAMPLE_QUALITY, optimize=True, progressive=True)


def as_text(data: bytes) -> str:
    """Encode bytes as UTF-16 code units; forbidden ones are escaped. `text.js` decodes them."""
    units = np.frombuffer(data + bytes(len(data) % 2), "<u2")
    forbidden = _FORBIDDEN[units]
    places = np.arange(len(units)) + np.cumsum(forbidden)
    out = np.full(len(units) + int(forbidden.sum()), _ESCAPE, "<u2")
    out[places] = np.where(forbidden, units ^ _HIGHEST, units)
    return out.tobytes().decode("utf-16-le")


@cache
def _table() -> dict[str, dict[str, str]]:
    return cast("dict[str, dict[str, str]]", parse_json(_own("words.json").encode()))


def _words(language: Language) -> dict[str, str]:
    """Return all texts of the lesson in a language by key. Keys of the viewer's texts are the English texts."""
    return {name: texts[language] for name, texts in _table().items()}


def _lesson_html(words: dict[str, str]) -> str:
    """Build the translated body of the page, viewer included."""
    body = re.sub(r"\{\{(.+?)\}\}", lambda match: html.escape(words[match[1]]), _own("lesson.html"))
    # viewer.html has no placeholders: translate its English text between tags and in visible attributes.
    visible = re.compile(r'(?P<before>>\s*|(?:title|aria-label|alt)=")(?P<text>[^<>"]*[^<>"\s])(?P<after>\s*<|")')
    viewer = visible.sub(
        lambda match: f"{match['before']}{html.escape(words.get(match['text'], match['text']))}{match['after']}",
        read("viewer.html").replace("&times;", "×"),
    )
    return body.replace("<!-- the viewer -->", viewer)
