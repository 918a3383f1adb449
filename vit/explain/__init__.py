"""Explanations of predictions: attention, relevance and faithfulness. Tensors in, tensors out."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.checkpoints.input_sizes import enlarged_size, resized, size_near
    from vit.explain.faithfulness_correlation import removal_map
    from vit.explain.gradcam import grad_cam
    from vit.explain.kriging import best_map
    from vit.explain.lrp import attnlrp
    from vit.explain.maps import geometric_mean
    from vit.explain.methods import METHODS, weights
    from vit.explain.record import AttentionRecord
    from vit.explain.recorded_pass import RecordedPass
    from vit.explain.regions import region_score
    from vit.explain.relevance import GradientRecord, legrad, relevance_record

__all__, __getattr__ = names_of(__name__, __path__)
