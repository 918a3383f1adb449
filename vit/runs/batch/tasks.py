"""What can be measured in parts."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vit.data.in_parts import InParts, Part
from vit.explain import features, head_census, method_ranking
from vit.training import evaluation


class Task(NamedTuple):
    """One measurement.

    Attributes:
        in_parts: of a checkpoint, a dataset, a number of pictures where there is one, and how data are read.
        combined: what the parts say together, in their order.
    """

    in_parts: Callable[..., InParts]
    combined: Callable[[Iterable[Part]], Any]


# By the name of their command.
TASKS = {
    "evaluate": Task(evaluation.in_parts, evaluation.combined),
    "faithfulness": Task(method_ranking.in_parts, method_ranking.combined),
    "features": Task(features.in_parts, features.combined),
    "heads": Task(head_census.in_parts, head_census.combined),
}
