"""Sample pictures, with their credits and licences."""

from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent


class Sample(NamedTuple):
    """One picture of the gallery: `credit` and `licence` must be displayed with it."""

    name: str
    title: str
    credit: str
    licence: str

    @property
    def path(self) -> Path:
        """The JPEG file that holds the picture."""
        return _FOLDER / f"{self.name}.jpg"


_CC0 = "CC0 1.0"
_CC_BY = "CC BY 2.0"
_PUBLIC_DOMAIN = "public domain"

SAMPLES: dict[str, Sample] = {
    sample.name: sample
    for sample in (
        Sample("coffee", "Cup of coffee", "Rachel Michetti, Pikolo Espresso Bar", _CC0),
        Sample("cat", "Chelsea the cat", "Stefan van der Walt", _CC0),
        Sample("raccoon", "Raccoon", "public-domain-image.com", _PUBLIC_DOMAIN),
        Sample("flower", "Dahlia", "vultilion on Flickr", _CC_BY),
        Sample("temple", "Temple in the Summer Palace", "danielbuechele on Flickr", _CC_BY),
        Sample("rocket", "Falcon 9 on its pad", "SpaceX", _PUBLIC_DOMAIN),
        Sample("astronaut", "Eileen Collins", "NASA", _PUBLIC_DOMAIN),
        Sample("horse", "Silhouette of a horse", "Andreas Preuss (marauder)", _CC0),
    )
}


def read(name: str) -> bytes:
    """Return the bytes of a sample's JPEG file.

    Raises:
        KeyError: there is no such sample.
    """
    return SAMPLES[name].path.read_bytes()
