"""Check that every model of transformers that sees pictures gives equal outputs here or is refused.

    python benchmarks/transformers_table.py            # 20 minutes on 2 cores
    python benchmarks/transformers_table.py clip flava # `model_type`s that contain one of these

Prints a line for each class as a folder, as safetensors alone, and as .bin alone; see `tests/small_transformers.py`.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import transformers
from timm_table import compare_numbers

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from small_transformers import CONFIG_MAPPING, classes, verdicts


def main(parts: list[str]) -> None:
    """Print the table, and the number of each verdict."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    counts = Counter[str]()
    for kind in (kind for kind in CONFIG_MAPPING if not parts or any(part in kind for part in parts)):
        for one in classes(kind):
            with tempfile.TemporaryDirectory() as folder:
                for way, verdict in verdicts(one, Path(folder)):
                    word, why = verdict.word, verdict.why
                    if verdict.checkpoint and verdict.differences:
                        word, why = compare_numbers(verdict.checkpoint, **verdict.differences)
                    counts[word] += 1
                    print(f"{kind:20} {one.__name__:32} {way:6} {word:9} {why}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.most_common()))


main(sys.argv[1:])
