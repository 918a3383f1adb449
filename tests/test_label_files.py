"""Class names in a text file beside the weights are read, or said to be unused."""

import io
import json
from pathlib import Path

import pytest
import torch
from test_own_heads import NAMES, keep, of_timm

from vit.checkpoints import manage
from vit.checkpoints.load import load_checkpoint

LISTS: dict[str, tuple[str, bytes]] = {
    "lines": ("labels.txt", b"ant\r\nbee\r\n\r\ncow\ndog\nwolf"),
    "numbered": ("class_names.txt", b"0: ant\n1: bee\n3: dog\n2: cow\n4: wolf\n"),
    "numbers last": ("classes.txt", b"\xef\xbb\xbfant 1\nbee 2\ncow 3\ndog 4\nwolf 5\n"),
    "a dict of Python": ("clsidx_to_labels.txt", b"{0: 'ant',\n 1: 'bee',\n 2: 'cow',\n 3: 'dog',\n 4: 'wolf'}"),
    "JSON list": ("labels.json", json.dumps(NAMES).encode()),
    "JSON by number": ("id2label.json", json.dumps(dict(enumerate(NAMES))).encode()),
    "ids and names": ("imagenet_class_index.json", json.dumps({i: [f"n{i}", n] for i, n in enumerate(NAMES)}).encode()),
    "objects": ("categories.json", json.dumps([{"id": i, "name": name} for i, name in enumerate(NAMES)]).encode()),
    "UTF-16": ("labels.txt", "\n".join(NAMES).encode("utf-16")),
    "JSON by name": ("class_to_idx.json", json.dumps({name: i for i, name in enumerate(NAMES)}).encode()),
}


@pytest.mark.parametrize("form", LISTS)
def test_class_names_in_a_file_beside_the_weights_are_read_and_added(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content = LISTS[form]
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    weights = io.BytesIO()
    torch.save(of_timm().state_dict(), weights)
    weights.seek(0)
    checkpoint = load_checkpoint(manage.add({"best.pth": weights, name: io.BytesIO(content)}, "own"))
    assert list(checkpoint.labels) == NAMES and "labels" not in checkpoint.assumed


def test_class_names_of_another_number_are_not_used_and_said(tmp_path: Path) -> None:
    keep(of_timm().state_dict(), tmp_path)
    (tmp_path / "labels.txt").write_text("ant\nbee\n")
    checkpoint = load_checkpoint(tmp_path)
    assert (
        checkpoint.labels[0] == "class 0"
        and "The 2 names beside the weights are not used" in checkpoint.assumed["labels"]
    )
