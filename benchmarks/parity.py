"""Print how far outputs of other libraries' checkpoints are from these libraries, for docs/checkpoints.md.

    python benchmarks/parity.py

The models are those of `tests/test_parity.py`: tiny, with random parameters, saved by their library and opened here.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from test_parity import CASES, difference, opened


@torch.inference_mode()
def main() -> None:
    """Print one row per model."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    print("| Library | Model | Logits | Attention | At another size |\n|---|---|---|---|---|")
    for name in CASES:
        case, model, checkpoint = opened(name)
        expected, result = case.ask(model, images), checkpoint.model(images, output_attentions=True)
        attention = max(float((a - b).abs().max()) for a, b in zip(result.attentions, expected.attentions, strict=True))
        elsewhere = "resized when built"
        if case.other:
            other = torch.randn(2, 3, *case.other, generator=torch.Generator().manual_seed(1))
            elsewhere = f"{difference(checkpoint.model(other).logits, case.ask(model, other).logits):.1e}"
        library, _, model_name = name.partition(" · ")
        logits = difference(result.logits, expected.logits)
        print(f"| {library} {version(library)} | {model_name} | {logits:.1e} | {attention:.1e} | {elsewhere} |")


main()
