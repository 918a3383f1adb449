"""The earlier place of `vit.explain.record` and `vit.explain.maps`, which programs copied from the page name."""

from vit.explain.attention_rollout import rollout as rollout
from vit.explain.maps import discarded as discarded
from vit.explain.maps import entropy as entropy
from vit.explain.maps import fuse as fuse
from vit.explain.maps import geometric_mean as geometric_mean
from vit.explain.maps import mass_threshold as mass_threshold
from vit.explain.maps import otsu_threshold as otsu_threshold
from vit.explain.record import AttentionRecord as AttentionRecord
from vit.explain.record import record as record
