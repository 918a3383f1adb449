"""Attention of a model of no supported family, which the loop's own function returns."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from foreign_loop import CLASSES, INPUT, new_model, notes, records_of, run_of, train
from torch import Tensor, nn

from vit.errors import InvalidConfig
from vit.training.other_loops.run_writer import RunWriter
from vit.view.attention_snapshots import list_epochs, read_payload, read_snapshots
from vit.view.payload import unpack


class Hybrid(nn.Module):
    """Attention over the pixels of a convolution: no supported family."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 2, stride=2))
        self.mix = nn.MultiheadAttention(48, 3, batch_first=True, dropout=0.2)
        self.head = nn.Linear(48, 3)

    def forward(self, images: Tensor, attention: bool = False) -> Any:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        mixed, weights = self.mix(tokens, tokens, tokens, need_weights=attention, average_attn_weights=False)
        logits = self.head((tokens + mixed).mean(1))
        return SimpleNamespace(logits=logits, attentions=[weights]) if attention else logits


def attention_of(model: nn.Module, pixels: Tensor) -> Any:
    return model(pixels, attention=True)


def test_attention_of_an_unconvertible_model_is_its_own(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(attention=attention_of), Hybrid()
    train(model, writer)
    followed = writer._snapshots._writer
    pixels = ((followed.images / 255) - torch.tensor(INPUT.mean)[:, None, None]) / 0.2
    writer.close()
    with torch.no_grad():
        output = model.eval()(pixels, attention=True)
    assert list_epochs(writer.folder / "probes") == [1, 2, 3]
    for i, snapshot in enumerate(read_snapshots(writer.folder / "probes", 3)):
        header, _ = unpack(read_payload(writer.folder / "probes", 3, i))
        assert (header["blocks"], header["heads"], header["grid"], header["prefix"]) == (1, 3, [4, 4], [])
        label, probability = snapshot.predictions[0]
        expected = output.logits[i].softmax(0)
        assert label == CLASSES[int(expected.argmax())] and abs(probability - float(expected.max())) < 2e-5
        weights = output.attentions[0][i]
        spread = -(weights * weights.log()).sum(-1).mean(-1) / np.log(16)
        assert np.allclose(snapshot.entropy[0], spread, atol=1e-4)
    assert not run_of(writer).best and "Checkpoints are left out" in " ".join(notes(writer.folder))


def test_loop_whose_attention_is_read_computes_the_same_bits(open_writer: Callable[..., RunWriter]) -> None:
    watched, alone = Hybrid(), Hybrid()
    torch.manual_seed(1)
    train(watched, open_writer(attention=attention_of))
    torch.manual_seed(1)
    train(alone, None)
    assert all(torch.equal(one, other) for one, other in zip(watched.parameters(), alone.parameters(), strict=True))


@pytest.mark.parametrize(
    ("attention", "sentence"),
    [
        (lambda model, pixels: model(pixels), "one tensor (pictures, heads, tokens, tokens) per block"),
        (lambda model, pixels: [torch.rand(len(pixels), 3, 16, 16)], "must sum to 1"),
        (lambda model, pixels: [torch.rand(3, 16, 16)], "must be (6, heads, tokens, tokens), not (3, 16, 16)"),
        (lambda model, pixels: 1 / 0, "division by zero"),
    ],
)
def test_invalid_attention_causes_one_note(
    open_writer: Callable[..., RunWriter], attention: Any, sentence: str
) -> None:
    writer = open_writer(attention=attention)
    train(Hybrid(), writer)
    writer.close()
    assert sum(sentence in note for note in notes(writer.folder)) == 1
    assert len(records_of(writer.folder)["validation"]) == 3 and not list_epochs(writer.folder / "probes")


def test_attention_function_is_not_called_for_a_convertible_model(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer(attention=lambda model, pixels: pytest.fail("called"))
    train(new_model(), writer)
    writer.close()
    assert list_epochs(writer.folder / "probes") == [1, 2, 3] and not notes(writer.folder)


def test_attention_needs_the_preprocessing(open_writer: Callable[..., RunWriter]) -> None:
    with pytest.raises(InvalidConfig, match="give preprocess as well"):
        open_writer(attention=attention_of, preprocess=None)
