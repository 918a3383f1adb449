"""The measurements that can be computed in parts."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from vit.data.partitioned import Part, PartitionedComputation
from vit.explain import features, head_census, method_ranking
from vit.training import evaluation


class Task(NamedTuple):
    """A measurement that can be computed in parts.

    Attributes:
        partitioned: divides it, given a checkpoint, a dataset, options of the loader, and for some a number of images.
        combined: combines the results of all parts, in order.
    """

    partitioned: Callable[..., PartitionedComputation]
    combined: Callable[[Iterable[Part]], Any]


# Keys are the names of the commands.
TASKS = {
    "evaluate": Task(evaluation.partitioned, evaluation.combined),
    "faithfulness": Task(method_ranking.partitioned, method_ranking.combined),
    "features": Task(features.partitioned, features.combined),
    "heads": Task(head_census.partitioned, head_census.combined),
}
