"""The selected picture and its origin."""

from typing import NamedTuple

from vit.images import samples


class Source(NamedTuple):
    """The explained picture.

    Attributes:
        name: file name.
        data: content of the file.
        sample: name in the gallery, "" for other pictures.
        frame: frame of an animation or a video, from 0.
        stretch: stretch grey levels to the full range, see `vit.images.files.decode.decode_image`.
    """

    name: str
    data: bytes
    sample: str = ""
    frame: int = 0
    stretch: bool = False

    @property
    def credit(self) -> str:
        """Caption of the picture: its name; for a sample also its author and licence."""
        if not self.sample:
            frame, stretched = f", frame {self.frame + 1}" * bool(self.frame), ", stretched" * self.stretch
            return f"{self.name}{frame}{stretched}"
        sample = samples.SAMPLES[self.sample]
        return f"{sample.title} by {sample.credit}, {sample.licence}"
