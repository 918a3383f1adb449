"""Recommended checkpoints on the Hugging Face Hub, each pinned to a commit."""

from typing import NamedTuple


class Recommended(NamedTuple):
    """A recommended checkpoint.

    Attributes:
        title: shown to people.
        repository, commit: on the Hub.
        megabytes: approximate size of the download; sizes and licences as the repositories state them.
        licence: of its weights.
        good_for: one sentence.
        gated: the licence must be accepted on the Hub, and the server needs a token.
    """

    title: str
    repository: str
    commit: str
    megabytes: int
    licence: str
    good_for: str
    gated: bool = False

    @property
    def name(self) -> str:
        """Name for `vit.load_checkpoint`."""
        return f"{self.repository}@{self.commit}"


RECOMMENDED = (
    Recommended(
        "ViT-Ti/16, ImageNet",
        "WinKawaks/vit-tiny-patch16-224",
        "77d1485af66b34d4ed0fe95dbb0c60c7496f950b",
        23,
        "Apache 2.0",
        "A small classifier of 1,000 classes: every map of a class within a second on a laptop.",
    ),
    Recommended(
        "DINOv2 S/14 with registers",
        "facebook/dinov2-with-registers-small",
        "0d9846e56b43a21fa46d7f3f5070f0506a5795a9",
        88,
        "Apache 2.0",
        "Learnt without labels: the clearest attention to objects, components as colour, correspondence.",
    ),
    Recommended(
        "DINOv3 S/16",
        "facebook/dinov3-vits16-pretrain-lvd1689m",
        "114c1379950215c8b35dfcd4e90a5c251dde0d32",
        86,
        "DINOv3 License",
        "Features that stay sharp in large pictures; rotary positions, any input size.",
        gated=True,
    ),
    Recommended(
        "CLIP B/32",
        "openai/clip-vit-base-patch32",
        "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268",
        605,
        "MIT",
        "Classes in your own words: type them, and see the evidence for each.",
    ),
    Recommended(
        "SigLIP B/16",
        "google/siglip-base-patch16-224",
        "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed",
        813,
        "Apache 2.0",
        "Classes in words, each with an independent probability; a learnt query pools all patches.",
    ),
    Recommended(
        "MAE B/16",
        "facebook/vit-mae-base",
        "25b184bea5538bf5c4c852c79d221195fdd2778d",
        448,
        "Apache 2.0",
        "Learnt by filling in hidden patches: a start for training on few pictures of your own.",
    ),
)
