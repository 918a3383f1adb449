"""Measure the server's memory after the first map, five checkpoints, six large pictures, and after all pages closed.

    python benchmarks/memory.py [--other PATH]

A visitor is a web socket, as in `benchmarks/load.py`. One page opens five checkpoints of ViT-B/16 with random weights
(345 MB each), one after the other. Another page runs six samples at 256 px, 4,097 tokens each, through the shipped
model. Both pages are then closed. Sizes are proportional set sizes (PSS): private memory plus a proportional share of
shared memory. --other names another working copy of this project to compare with.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from websockets.asyncio.client import connect

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from load import command_line, every_pid
from serving import streamlit
from visitor import Visitor

TTL = 10  # how long a session waits for its page to reconnect [s]; the app uses two minutes
AFTER = 40  # wait after the last page is closed [s]
SAMPLES = ("cat", "horse", "raccoon", "rocket", "astronaut", "coffee")


def held(pid: int) -> int:
    """Return the memory of a process [bytes]."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def save_checkpoints(folder: Path, count: int) -> None:
    """Save large checkpoints with random weights."""
    import torch

    from vit.checkpoints.save import save_checkpoint
    from vit.images.preprocess import Preprocess
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    for number in range(count):
        torch.manual_seed(number)
        model = VisionTransformer(ViTConfig.preset("B/16", num_classes=10)).eval()
        labels = [f"class {index}" for index in range(10)]
        save_checkpoint(folder / f"large-{number}", model, labels, Preprocess(model.config.image_size))


async def look(address: str, links: list[str]) -> None:
    """Open a page and follow its links one after the other."""
    visitor = Visitor(address, "", random.Random(0))
    async with connect(visitor.address, subprotocols=["streamlit"], max_size=None) as socket:
        for link in links:
            visitor.query = link
            await visitor.run(socket)


def measure(project: Path) -> dict[str, int]:
    """Return the server's memory after each stage."""
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoints(Path(folder), 5)
        places = {"VIT_RUNS": f"{folder}/runs", "VIT_CHECKPOINTS": folder, "PYTHONPATH": str(project)}
        (Path(folder) / "cifar10").symlink_to(ROOT / "checkpoints" / "cifar10")
        ttl = {"STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": str(TTL)}
        with streamlit(project / "app.py", cwd=project, **places, **ttl) as address:
            port = address.rpartition(":")[2]
            (server,) = (pid for pid in every_pid() if f"--server.port={port}".encode() in command_line(pid))
            result = {}
            for name, links in {
                "first map": ["checkpoint=cifar10"],
                "five checkpoints": [f"checkpoint=large-{number}" for number in range(5)],
                "six pictures of 4,097 tokens": [f"checkpoint=cifar10&size=256&sample={name}" for name in SAMPLES],
            }.items():
                asyncio.run(look(address, links))
                result[name] = held(server)
                print(f"  after {name}: {result[name] / 1e6:,.0f} MB", flush=True)
            time.sleep(TTL + AFTER)
            result["the last page was closed"] = held(server)
            print(f"  after the last page was closed: {result['the last page was closed'] / 1e6:,.0f} MB", flush=True)
            return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another working copy, to compare with")
    options = parser.parse_args()
    for name, project in {"this": ROOT, "other": options.other and options.other.resolve()}.items():
        if project:
            print(f"{name}:")
            result = measure(project)
            left = result["the last page was closed"] - result["first map"]
            print(f"  {left / 1e6:+,.0f} MB against the first map")


if __name__ == "__main__":
    main()
