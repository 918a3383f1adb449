"""What programs import that people copied from the page, whatever the package looks like since."""

import subprocess
import sys

import pytest

COPIED = (
    "import vit",
    "from vit import samples; samples.read('cat')",
    "from vit.samples import SAMPLES, read",
    "from vit.attention import geometric_mean",
    "from vit.explain import resized",
    "from vit.images import decode_frames, decode_image, Preprocess",
    "from vit.checkpoints import load_checkpoint",
    "import vit.images; vit.images.decode_image; vit.images.decode",
    "from vit.model import ViTConfig, VisionTransformer",
)


@pytest.mark.slow
def test_copied_programs_find_what_they_name() -> None:
    """Each name on its own, in one process that has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", "\n".join(COPIED)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_refused_as_python_does() -> None:
    import vit

    with pytest.raises(AttributeError, match="module 'vit' has no attribute 'nothing'"):
        _ = vit.nothing  # type: ignore[attr-defined]
