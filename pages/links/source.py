"""The picture that a page is about, and where it is from."""

from typing import NamedTuple

from vit.images import samples


class Source(NamedTuple):
    """The picture that is explained.

    Attributes:
        name: of its file.
        data: its bytes.
        sample: its name in the gallery, "" for one from elsewhere.
        frame: of an animation or a video, from 0.
        stretch: over all levels of grey, see `vit.images.decode.decode_image`.
    """

    name: str
    data: bytes
    sample: str = ""
    frame: int = 0
    stretch: bool = False

    @property
    def credit(self) -> str:
        """What to print beside it: its name, and of a sample who made it and under which licence."""
        if not self.sample:
            frame, stretched = f", frame {self.frame + 1}" * bool(self.frame), ", stretched" * self.stretch
            return f"{self.name}{frame}{stretched}"
        sample = samples.SAMPLES[self.sample]
        return f"{sample.title} by {sample.credit}, {sample.licence}"
