"""Commands and options of the command line."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from vit.explain.methods import METHODS
from vit.explain.names import SIGNED, STATISTICS
from vit.explain.settings import Direction, Fusion
from vit.training.loop import presets
from vit.training.loop.ladder import RUNGS

FUSIONS: tuple[str, ...] = get_args(Fusion)
DIRECTIONS: tuple[str, ...] = get_args(Direction)  # the first is the default
_CENSUS = tuple(name for name in STATISTICS if name not in SIGNED)  # signed ones need a class: page only


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message[0].upper()}{message[1:]}. See {self.prog} --help.\n")


def _number_or(*alternatives: str) -> Any:
    def parse(text: str) -> int | str:
        if text in alternatives:
            return text
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither a number nor one of {', '.join(alternatives)}"
            ) from None

    return parse


def _add_classes(command: argparse.ArgumentParser) -> None:
    """Add options that replace the checkpoint's classes, see `vit.cli.classes`."""
    command.add_argument(
        "--text", action="append", default=[], metavar="PHRASE",
        help="a class in words, repeatable; for checkpoints trained with texts (CLIP, SigLIP)",
    )  # fmt: skip
    command.add_argument(
        "--template", metavar="T", help="prompt for each --text, such as 'a photo of {}' (default: the phrase)"
    )
    command.add_argument(
        "--examples", metavar="NAME|folder:PATH",
        help="classes from labelled pictures, for any checkpoint: a folder of class folders, or a dataset",
    )  # fmt: skip
    command.add_argument(
        "--classifier", choices=("probe", "neighbours"),
        help="with --examples: logistic regression, or nearest neighbours (default: probe)",
    )  # fmt: skip
    command.add_argument(
        "--like", type=Path, metavar="IMAGE", help="a single class, similarity to this picture, for any checkpoint"
    )
    command.add_argument("--like-patch", metavar="ROW,COL", help="with --like: compare with this patch only, from 0")


def _add_stretch(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stretch", action="store_true",
        help="for more than 8 bits per channel, map the lowest value to black and the highest to white",
    )  # fmt: skip


def _add_size(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--size", type=int, metavar="PX",
        help="shorter side of the model's input, rounded to whole patches (default: the checkpoint's)",
    )  # fmt: skip


def _add_data_root(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data-root", type=Path, default=Path("data"), help="folder for downloads (default: %(default)s)"
    )


def _add_test_pictures(
    command: argparse.ArgumentParser, limit: int | None = None, about: str = "its test pictures"
) -> None:
    """Add options for the pictures of a measurement; without `limit`, their default number, it takes all of them."""
    command.add_argument("--data", required=True, metavar="NAME|folder:PATH", help=about)
    _add_data_root(command)
    if limit:
        command.add_argument("--limit", type=int, default=limit, metavar="N", help="pictures (default: %(default)s)")


def _add_set(command: argparse.ArgumentParser, about: str = "change settings; repeatable") -> None:
    command.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help=about)


def _add_checkpoint(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--checkpoint", default="everyday", metavar="NAME_OR_PATH",
        help="a name in checkpoints/, a folder or file, or one to download: owner/name[@revision] on the Hugging "
        "Face Hub, torchvision/vit_b_16 (default: %(default)s)",
    )  # fmt: skip


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON document")


def _classify(command: argparse.ArgumentParser) -> None:
    command.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    command.add_argument("--top", type=int, default=5, help="predictions per picture (default: %(default)s)")
    _add_stretch(command)
    _add_size(command)
    _add_classes(command)
    _add_data_root(command)
    _add_checkpoint(command)
    _add_json(command)


def _explain(command: argparse.ArgumentParser) -> None:
    command.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="or a folder: all pictures in it")
    _add_stretch(command)
    anyway = ", ".join(name for name, method in METHODS.items() if not method.of_class)
    command.add_argument(
        "--method", choices=list(METHODS),
        help=f"{anyway}: the same for every class; all others: evidence for --target (default: the one "
        "without masks that measured best with the checkpoint; attention without classes, or with --block or --query)",
    )  # fmt: skip
    command.add_argument("--target", metavar="LABEL", help="a class or its index from 0 (default: the predicted one)")
    command.add_argument("--against", metavar="LABEL", help="why --target rather than this class, see also --method")
    command.add_argument(
        "--block", type=_number_or(*FUSIONS),
        help=f"from 0, -1 is the last, or {', '.join(FUSIONS)} of all {_defaults('block')}",
    )  # fmt: skip
    command.add_argument(
        "--head", type=_number_or(*FUSIONS),
        help=f"from 0, or {', '.join(FUSIONS)}; for rollout, how heads are fused {_defaults('head')}",
    )  # fmt: skip
    command.add_argument(
        "--start-block", type=int, metavar="BLOCK", help=f"leave out earlier blocks {_defaults('start_block')}"
    )
    command.add_argument(
        "--residual", type=float, metavar="SHARE", help=f"share of the skip connection {_defaults('residual')}"
    )
    command.add_argument(
        "--discard", type=float, metavar="SHARE",
        help=f"leave out this share of each row's patches, the weakest {_defaults('discard')}",
    )  # fmt: skip
    _add_settings(command)
    command.add_argument(
        "--query", metavar="cls|ROW,COL",
        help="a token (default: those that the head reads)",
    )  # fmt: skip
    command.add_argument(
        "--direction", choices=DIRECTIONS,
        help=f"attention from the --query, or to it (default: {DIRECTIONS[0]})",
    )  # fmt: skip
    command.add_argument(
        "--region", type=Path, metavar="MASK|FOLDER",
        help="measure how much of the map is where this picture is not black; a folder has a mask named as each "
        "IMAGE, and --out FOLDER gets a region.csv",
    )  # fmt: skip
    _add_size(command)
    _add_classes(command)
    _add_data_root(command)
    command.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="bfloat16 is faster and less accurate (default: float32)"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE.png|.npz|FOLDER",
        help="PNG: overlay on the picture, scaled to this map alone (Own scales on the page); NPZ: the numbers; a "
        "folder, for any number of pictures: a PNG of each",
    )  # fmt: skip
    _add_checkpoint(command)


def _evaluate(command: argparse.ArgumentParser) -> None:
    _add_test_pictures(command)
    also = command.add_mutually_exclusive_group()
    also.add_argument("--report", type=Path, metavar="FILE.npz", help="also save the prediction for each picture")
    also.add_argument(
        "--card", action="store_true", help="also write into the checkpoint's card from which probability it is sure"
    )
    _add_classes(command)
    _add_checkpoint(command)
    _add_json(command)


def _faithfulness(command: argparse.ArgumentParser) -> None:
    _add_test_pictures(command, 500)
    command.add_argument("--card", action="store_true", help="also write the table into the checkpoint's card")
    _add_classes(command)
    _add_checkpoint(command)
    _add_json(command)


_UNLABELLED = "its test pictures; all pictures of a folder without classes"


def _heads(command: argparse.ArgumentParser) -> None:
    _add_test_pictures(command, 128, _UNLABELLED)
    command.add_argument(
        "--statistic", choices=_CENSUS, default=_CENSUS[0], help="statistic in the table (default: %(default)s)"
    )
    command.add_argument(
        "--card", action="store_true", help="also write the distance by block into the checkpoint's card"
    )
    _add_checkpoint(command)
    _add_json(command)


def _features(command: argparse.ArgumentParser) -> None:
    _add_test_pictures(command, 1000, _UNLABELLED)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.npz", help="with vectors, labels and classes")
    _add_checkpoint(command)
    _add_json(command)


def _convert(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", help="a checkpoint's name, folder or file")
    command.add_argument(
        "destination", type=Path, metavar="DESTINATION",
        help="a new folder; for torchvision a file ending in .pth, for onnx one in .onnx",
    )  # fmt: skip
    command.add_argument(
        "--to", choices=("transformers", "timm", "torchvision", "onnx"), default="transformers",
        help="(default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--heads", type=int, help="number of attention heads, for a file that does not state it")


def _push(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source", metavar="CHECKPOINT_OR_RUN", help="a checkpoint's name or folder, or the id or folder of a run"
    )
    command.add_argument("repository", metavar="OWNER/NAME", help="the repository, created if it does not exist")
    command.add_argument("--private", action="store_true", help="create a private repository")
    command.add_argument("--message", default="", metavar="TEXT", help="commit message")
    command.add_argument(
        "--license", default="", metavar="ID", help="as the Hub spells it, such as apache-2.0 (default: the card's)"
    )
    command.add_argument("--dry-run", action="store_true", help="only print what would be uploaded, and where")


def _lesson(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", type=Path, metavar="OUT.html", help="opens in any browser, without a network")
    command.add_argument(
        "--checkpoint", default="cifar10", metavar="NAME_OR_PATH", help="a small plain model (default: %(default)s)"
    )
    command.add_argument(
        "--language", choices=("en", "de", "zh"), default="en",
        help="English, German or Chinese (default: %(default)s)",
    )  # fmt: skip


def _train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--preset", help="a complete recipe: " + ", ".join(presets.PRESETS))
    command.add_argument(
        "--config", type=Path, metavar="FILE.json", help="settings from a file, such as a run's config.json"
    )
    command.add_argument("--data", metavar="NAME|folder:PATH", help="cifar10, cifar100, mnist, fashion-mnist, shapes")
    _add_set(command)
    command.add_argument(
        "--run-dir", "--run", type=Path, dest="run", metavar="DIR",
        help="the run's folder (default: runs/<time>-<preset>); torchrun has an option --run of its own",
    )  # fmt: skip
    command.add_argument("--name", metavar="NAME", help="name of the run (default: model and data)")
    command.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    command.add_argument(
        "--on", metavar="NAME", help="submit the run to a configured cluster, or to `here`, this machine's queue; "
        "`runs` shows its state",
    )  # fmt: skip
    command.add_argument(
        "--devices", nargs="+", metavar="DEVICE", help="with --on: cpu or gpu, once for each process of a node; here "
        "also cuda:0 and so on (default: gpu if there is one, else cpu)",
    )  # fmt: skip
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="with --on: machines (default: %(default)s)")
    command.add_argument("--minutes", type=int, metavar="N", help="with --on: time limit of an attempt on the cluster")
    command.add_argument("--settings", action="store_true", help="list presets and settings, and exit")


def _ladder(command: argparse.ArgumentParser) -> None:
    command.add_argument("--from", required=True, dest="start", metavar="NAME_OR_PATH", help="the checkpoint")
    command.add_argument("--data", required=True, metavar="NAME|folder:PATH", help="the pictures")
    command.add_argument(
        "--rungs", nargs="+", metavar="NAME", help=f"some of: {', '.join(RUNGS)} (default: every rung)"
    )
    command.add_argument("--config", type=Path, metavar="FILE.json", help="settings of the runs, from a file")
    _add_set(command)
    command.add_argument("--json", action="store_true", help="print one JSON object per rung")
    command.set_defaults(resume=None)


def _search(command: argparse.ArgumentParser) -> None:
    command.add_argument("--preset", help="a complete recipe: " + ", ".join(presets.PRESETS))
    command.add_argument("--config", type=Path, metavar="FILE.json", help="settings of all trials, from a file")
    command.add_argument("--data", metavar="NAME|folder:PATH", help="the pictures")
    _add_set(command, "change settings of all trials; epochs is the maximum per trial")
    command.add_argument(
        "--space", action="extend", nargs="+", default=[], metavar="KEY=LOW:HIGH[:log]",
        help="range to draw from, or KEY=VALUE,VALUE; repeatable (default: learning rates, decays, regularisation)",
    )  # fmt: skip
    command.add_argument("--trials", type=int, metavar="N", help="number of trials (default: 20)")
    command.add_argument(
        "--grid", action="store_true", help="train every combination of the values in --space, not random ones"
    )
    command.add_argument(
        "--min-epochs", type=int, metavar="N",
        help="epochs before a trial may end early (default: a ninth of the epochs; with --grid, none is)",
    )  # fmt: skip
    command.add_argument(
        "--reduction-factor", type=int, default=3, metavar="N",
        help="one trial in N continues at --min-epochs, at N times as many epochs, and so on (default: %(default)s)",
    )  # fmt: skip
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random draws (default: %(default)s)"
    )
    command.add_argument("--name", metavar="NAME", help="name of the search (default: model and data)")
    command.add_argument("--on", metavar="NAME", help="a cluster for the trials (default: this machine)")
    command.add_argument(
        "--devices", nargs="+", metavar="DEVICE",
        help="devices of each trial: cpu or gpu, once for each process of a node; with gpu, each takes a free one",
    )  # fmt: skip
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of each trial (default: %(default)s)")
    command.add_argument("--minutes", type=int, metavar="N", help="time limit of an attempt on the cluster")
    command.add_argument("--detach", action="store_true", help="start the search without waiting for it")
    command.add_argument(
        "--resume", metavar="ID", dest="again", help="queue unfinished trials; with --trials, up to that number"
    )
    command.add_argument("--stop", metavar="ID", help="stop a search; running trials save their state")
    command.add_argument("--delete", metavar="ID", help="delete a search; the runs of its trials remain")
    command.add_argument("--list", action="store_true", help="list searches, and exit")
    command.set_defaults(resume=None)


def _runs(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", nargs="?", choices=("list", "show", "stop", "resume", "delete"), default="list")
    command.add_argument("ids", nargs="*", metavar="ID")
    command.add_argument(
        "--devices", nargs="+", metavar="DEVICE", help="with resume: cpu, gpu, or cuda:0 and so on (default: as before)"
    )
    command.add_argument(
        "--yes", action="store_true", help="with delete: delete, instead of listing what would be deleted"
    )


def _add_settings(explain: argparse.ArgumentParser) -> None:
    """Add options for settings that have no explicit option; their type is that of the default."""
    there = {action.dest for action in explain._actions}
    for method in METHODS.values():
        for setting, default in method.settings.items():
            if option_of(setting) in there:
                continue
            option, about = f"--{setting.replace('_', '-')}", f"a setting {_defaults(setting)}"
            if isinstance(default, bool):
                explain.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=about)
            else:
                explain.add_argument(option, type=type(default), metavar=setting.upper(), help=about)
            there.add(setting)


def setting_options() -> tuple[str, ...]:
    """Return the options of `explain` for settings of any method."""
    return tuple(dict.fromkeys(option_of(setting) for method in METHODS.values() for setting in method.settings))


def option_of(setting: str) -> str:
    """Return the option for a method's setting: rollout's fusion of heads shares --head."""
    return "head" if setting == "fusion" else setting


def options_of(name: str) -> tuple[str, ...]:
    """Return the options of `explain` that apply to a method."""
    method = METHODS[name]
    settings = [option_of(setting) for setting in method.settings]
    return (
        *(("target", "against") if method.of_class else ("precision",)),
        *settings,
        *(("query", "direction") if method.of_tokens else ()),
    )


def _defaults(option: str) -> str:
    """Describe the default of an option of `explain`, according to the table of methods.

    >>> _defaults("residual")
    '(default: 0.5)'
    """
    methods: dict[Any, list[str]] = {}
    for name, method in METHODS.items():
        for setting, value in method.settings.items():
            if option_of(setting) == option:
                methods.setdefault(value, []).append(name)
    if len(methods) == 1:
        return f"(default: {next(iter(methods))})"
    return f"(default: {'; '.join(f'{value} of ' + ', '.join(names) for value, names in methods.items())})"


class _Command(NamedTuple):
    """A command.

    Attributes:
        module: of `vit.cli`, with the function `run_<command>`; imported on use, so that --help needs no torch.
        description: for --help.
        add_options: adds its options to a parser.
    """

    module: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]


COMMANDS = {
    "classify": _Command("explain", "Classify pictures.", _classify),
    "explain": _Command(
        "explain", "Draw or save a map of attention from a token, or of the evidence for a class.", _explain
    ),
    "evaluate": _Command("measure", "Measure a checkpoint's accuracy on a dataset's test pictures.", _evaluate),
    "faithfulness": _Command(
        "measure", "Rank the explanation methods by the faithfulness of their maps, on test pictures.", _faithfulness
    ),
    "heads": _Command("measure", "Describe every head: mean and spread of a statistic over test pictures.", _heads),
    "features": _Command(
        "measure", "Save the features of test pictures before the head, one vector per picture.", _features
    ),
    "convert": _Command("convert", "Convert a checkpoint for another library, with the same results.", _convert),
    "push": _Command("push", "Upload a checkpoint and its card to the Hugging Face Hub.", _push),
    "lesson": _Command(
        "lesson", "Write a lesson: a small checkpoint, exercises and every number of a head in one HTML file.", _lesson
    ),
    "train": _Command("training", "Train a Vision Transformer.", _train),
    "ladder": _Command("ladder", "Adapt a checkpoint to your own classes in every way, the cheapest first.", _ladder),
    "search": _Command(
        "search",
        "Search for settings: draw random ones from ranges and stop trials that fall behind, or train every "
        "combination. It continues if the terminal is closed; Ctrl-C stops it, and --resume continues it.",
        _search,
    ),
    "runs": _Command("runs", "List, show, stop, resume or delete training runs; the page Runs can do more.", _runs),
}


def parser() -> argparse.ArgumentParser:
    """Build the parser for all commands."""
    installed = Path(sys.argv[0]).stem == "vit"  # console script of an installed package
    prog = "vit" if installed else "python -m vit"
    top = _Parser(prog=prog, description="Classify pictures with a Vision Transformer, and explore its attention.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_options(commands.add_parser(name, help=command.description, description=command.description))
    return top
