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
    """

    name: str
    data: bytes
    sample: str = ""
    frame: int = 0

    @property
    def credit(self) -> str:
        """What to print beside it: its name, and of a sample who made it and under which licence."""
        if not self.sample:
            return f"{self.name}, frame {self.frame + 1}" if self.frame else self.name
        sample = samples.SAMPLES[self.sample]
        return f"{sample.title} by {sample.credit}, {sample.licence}"
