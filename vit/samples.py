"""The earlier place of `vit.images.samples`, which programs copied from the page name."""

from vit.images.samples import SAMPLES as SAMPLES
from vit.images.samples import Sample as Sample
from vit.images.samples import read as read
