"""Why one class rather than another: the difference of their logits, as the only class of a model."""

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.custom_classes import CustomClasses
from vit.errors import UserError
from vit.explain.relevance import check_target
from vit.model.classification_heads import DifferenceHead


def class_from_difference(checkpoint: Checkpoint, target: int, against: int) -> CustomClasses:
    """Make the logit of one class minus that of another the only class of a checkpoint.

    All methods that explain a class then explain the difference: signed maps show what speaks for the first class and
    what for the second. For exclusive classes it is the logarithm of the ratio of their probabilities.

    Args:
        checkpoint: as loaded; with classes.
        target, against: indices of the two classes.

    Raises:
        UserError: there is no such class, or both are the same.
    """
    labels = checkpoint.labels
    for one in (target, against):
        check_target(checkpoint.config, one)
    if target == against:
        raise UserError(f"Compare “{labels[target]}” with another class than itself.")
    name = f"{labels[target]} rather than {labels[against]}"
    head, facts = DifferenceHead(checkpoint.model.head, target, against), {"target": target, "against": against}
    return CustomClasses((name,), head.eval(), f"difference of two classes ({name})", "none", facts=facts)
