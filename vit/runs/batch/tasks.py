"""The measurements that can be computed in parts."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vit.data.in_parts import Part, PartitionedComputation
from vit.explain import features, head_census, method_ranking
from vit.training import evaluation


class Task(NamedTuple):
    """A measurement that can be computed in parts.

    Attributes:
        in_parts: divides it, given a checkpoint, a dataset, options of the loader, and for some a number of images.
        combined: combines the results of all parts, in order.
    """

    in_parts: Callable[..., PartitionedComputation]
    combined: Callable[[Iterable[Part]], Any]


# Keys are the names of the commands.
TASKS = {
    "evaluate": Task(evaluation.in_parts, evaluation.combined),
    "faithfulness": Task(method_ranking.in_parts, method_ranking.combined),
    "features": Task(features.in_parts, features.combined),
    "heads": Task(head_census.in_parts, head_census.combined),
}
