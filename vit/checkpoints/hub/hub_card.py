"""The model card of a checkpoint on the Hugging Face Hub: metadata for the Hub, no local paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vit.checkpoints.card import write_card
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.families import huggingface
from vit.errors import InvalidCheckpoint

# Names on the Hub of our named datasets. Source: huggingface.co/datasets.
DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
}
_ABOUT_CONVERSION = {"converted_from", "assumed", "positions", "params", "license"}  # facts unrelated to training
_FOLDER = "folder "  # prefix in the name of a folder dataset
_PATH = re.compile(r"(?<![\w./:~-])(?:~|[A-Za-z]:)?[/\\](?:[\w.@+~-]+[/\\])+([\w.@+~-]*)|(?<=folder:)/(?:[\w.@+~-]+/)*")


def public_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce absolute paths in the recorded facts to their last component.

    >>> public_facts({"data": "folder pets", "note": "pictures of /home/ada/pets, by folder:/home/ada/pets"})
    {'data': 'folder pets', 'note': 'pictures of pets, by folder:pets'}
    """
    return {name: _without_paths(fact) for name, fact in facts.items()}


def _without_paths(fact: Any) -> Any:
    if isinstance(fact, str):
        return _PATH.sub(lambda match: match[1] or "", fact)
    if isinstance(fact, Mapping):
        return {name: _without_paths(value) for name, value in fact.items()}
    return [_without_paths(value) for value in fact] if isinstance(fact, list | tuple) else fact


def write_hub_card(checkpoint: Checkpoint, repository: str, license: str = "") -> str:
    """Return the README.md of a checkpoint for a repository of the Hub.

    The card of a checkpoint that was converted from another library is kept as its authors wrote it.

    Args:
        license: as the Hub spells it, such as apache-2.0; "" for the one that the checkpoint states, if any.

    Raises:
        InvalidCheckpoint: a licence for another author's card.
    """
    facts = public_facts(checkpoint.facts)
    if license:
        facts["license"] = license
    if checkpoint.card and facts.keys() <= _ABOUT_CONVERSION:
        if license:
            raise InvalidCheckpoint(
                f"The card of {checkpoint.name} is its authors', and so is its licence: state none."
            )
        return checkpoint.card
    metadata = card_metadata(checkpoint, repository, facts)
    return write_card(repository, checkpoint.config, checkpoint.labels, facts, metadata=metadata.to_yaml())


def card_metadata(checkpoint: Checkpoint, repository: str, facts: Mapping[str, Any]) -> ModelCardData:
    """Return the card's metadata for the Hub, from recorded facts only.

    The accuracy is included if it was measured on test pictures.

    Source: huggingface.co/docs/hub/model-cards, and its model-index specification.
    """
    data = str(facts.get("data", ""))
    known: dict[str, Any] = {}
    dataset = DATASETS.get(data)
    if not huggingface.PLAIN_VIT.obstacles(checkpoint.config):
        known["library_name"] = "transformers"
    if dataset:
        known["datasets"] = [dataset]
    if facts.get("license"):
        known["license"] = facts["license"]
    accuracy, kind = facts.get("accuracy"), dataset or ("imagefolder" if data.startswith(_FOLDER) else "")
    if isinstance(accuracy, int | float) and facts.get("accuracy_on") and kind:
        known["model_name"] = repository.rpartition("/")[2]
        known["eval_results"] = [
            EvalResult(
                task_type="image-classification",
                task_name="Image classification",
                dataset_type=kind,
                dataset_name=data.removeprefix(_FOLDER),
                dataset_split="test",
                metric_type="accuracy",
                metric_name="Accuracy",
                metric_value=accuracy,
            )
        ]
    if "accuracy" in facts or "validation_accuracy" in facts:
        known["metrics"] = ["accuracy"]
    return ModelCardData(pipeline_tag="image-classification", tags=["vit", "image-classification"], **known)
