"""Commands and options of the command line."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args

from vit.explain.methods import METHODS
from vit.explain.names import SIGNED, STATISTICS
from vit.explain.settings import Direction, Fusion
from vit.training import presets
from vit.training.ladder import RUNGS

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
    """Add options that replace the checkpoint's classes, see `vit.cli.answers`."""
    command.add_argument(
        "--text", action="append", default=[], metavar="PHRASE",
        help="a class in words, again for more, for checkpoints that learnt from texts (CLIP, SigLIP)",
    )  # fmt: skip
    command.add_argument(
        "--template", metavar="T", help="what is read for each --text, as in 'a photo of {}' (default: the phrase)"
    )
    command.add_argument(
        "--examples", metavar="NAME|folder:PATH",
        help="classes by labelled pictures, for any checkpoint: a folder of class folders, or a dataset",
    )  # fmt: skip
    command.add_argument(
        "--classifier", choices=("probe", "neighbours"),
        help="with --examples: logistic regression, or votes of the nearest pictures (default: probe)",
    )  # fmt: skip
    command.add_argument(
        "--like", type=Path, metavar="IMAGE", help="one class, likeness to this picture, for any checkpoint"
    )
    command.add_argument("--like-patch", metavar="ROW,COL", help="with --like: to this patch of it, from 0")


def _add_stretch(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stretch", action="store_true",
        help="of pictures with more than 8 bits a channel, the lowest value is black and the highest white",
    )  # fmt: skip


def _add_size(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--size", type=int, metavar="PX",
        help="shorter side of the model's input, to whole patches (default: the checkpoint's own)",
    )  # fmt: skip


def _add_data(command: argparse.ArgumentParser, what: str | None = None) -> None:
    command.add_argument("--data", required=True, metavar="NAME|folder:PATH", help=what)


def _add_data_root(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")


def _add_limit(command: argparse.ArgumentParser, default: int) -> None:
    command.add_argument("--limit", type=int, default=default, metavar="N", help="pictures (default: %(default)s)")


def _add_processes(command: argparse.ArgumentParser) -> None:
    """Add options to compute with several processes, see `vit.runs.batch`."""
    command.add_argument(
        "--on", metavar="NAME", help="several processes do it: of a cluster that is set up, or of this machine, "
        "`here`; what is done is kept, and the same command goes on from it",
    )  # fmt: skip
    command.add_argument(
        "--workers", type=int, metavar="N", help="with --on: processes (default: as many as have room)"
    )
    command.add_argument("--device", choices=("cpu", "gpu"), help="with --on: of each process (default: cpu)")


def _add_checkpoint(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--checkpoint", default="cifar10", metavar="NAME_OR_PATH",
        help="a name in checkpoints/, a folder or file, or to be fetched: owner/name[@revision] on the Hugging "
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
    command.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    _add_stretch(command)
    anyway = ", ".join(name for name, method in METHODS.items() if not method.of_class)
    command.add_argument(
        "--method", choices=list(METHODS), default="attention",
        help=f"{anyway}: where attention goes; all others: what speaks for --target (default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--target", metavar="LABEL", help="a class or its number from 0 (default: the predicted one)")
    command.add_argument(
        "--block", type=_number_or(*FUSIONS),
        help=f"from 0, -1 is the last, or {', '.join(FUSIONS)} of all {_defaults('block')}",
    )  # fmt: skip
    command.add_argument(
        "--head", type=_number_or(*FUSIONS),
        help=f"from 0, or {', '.join(FUSIONS)}; of rollout, how heads become one {_defaults('head')}",
    )  # fmt: skip
    command.add_argument(
        "--start-block", type=int, metavar="BLOCK", help=f"leave earlier blocks out {_defaults('start_block')}"
    )
    command.add_argument(
        "--residual", type=float, metavar="SHARE", help=f"this share of every token stays {_defaults('residual')}"
    )
    command.add_argument(
        "--discard", type=float, metavar="SHARE",
        help=f"leave this share of each row's patches out, the weakest {_defaults('discard')}",
    )  # fmt: skip
    _add_settings(command)
    command.add_argument(
        "--query", metavar="cls|ROW,COL",
        help="the token asked about (default: those that the answer is read from)",
    )  # fmt: skip
    command.add_argument(
        "--direction", choices=DIRECTIONS,
        help=f"where the --query looks, or who looks at it (default: {DIRECTIONS[0]})",
    )  # fmt: skip
    _add_size(command)
    _add_classes(command)
    _add_data_root(command)
    command.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="bfloat16 is faster and inexact (default: float32)"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE.png|.npz|FOLDER",
        help="PNG: over the picture, in colours of this map alone (Own scales on the page); NPZ: the numbers; a "
        "folder, for any number of pictures: a PNG of each, and index.html with all of them",
    )  # fmt: skip
    _add_checkpoint(command)


def _evaluate(command: argparse.ArgumentParser) -> None:
    _add_data(command)
    _add_data_root(command)
    command.add_argument("--report", type=Path, metavar="FILE.npz", help="also keep which pictures were taken for what")
    _add_classes(command)
    _add_processes(command)
    _add_checkpoint(command)
    _add_json(command)


def _faithfulness(command: argparse.ArgumentParser) -> None:
    _add_data(command)
    _add_data_root(command)
    _add_limit(command, 500)
    command.add_argument("--card", action="store_true", help="also put the table into the checkpoint's card")
    _add_classes(command)
    _add_processes(command)
    _add_checkpoint(command)
    _add_json(command)


def _heads(command: argparse.ArgumentParser) -> None:
    _add_data(command)
    _add_data_root(command)
    _add_limit(command, 128)
    command.add_argument("--statistic", choices=_CENSUS, default=_CENSUS[0], help="of the table (default: %(default)s)")
    command.add_argument(
        "--card", action="store_true", help="also put the distance by block into the checkpoint's card"
    )
    _add_processes(command)
    _add_checkpoint(command)
    _add_json(command)


def _features(command: argparse.ArgumentParser) -> None:
    _add_data(command)
    _add_data_root(command)
    _add_limit(command, 1000)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.npz", help="with vectors, labels and classes")
    _add_processes(command)
    _add_checkpoint(command)
    _add_json(command)


def _ood(command: argparse.ArgumentParser) -> None:
    _add_data(command, "what the model learnt from")
    command.add_argument(
        "--others", default="", metavar="NAME|folder:PATH", help="pictures of other things, to try it on"
    )
    _add_data_root(command)
    command.add_argument("--keep", action="store_true", help="also keep it beside the weights, for the app")
    _add_checkpoint(command)
    _add_json(command)


def _convert(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", metavar="SOURCE", help="a checkpoint's name, folder or file")
    command.add_argument(
        "destination",
        type=Path,
        metavar="DESTINATION",
        help="a new folder; for torchvision a file ending in .pth, for onnx one in .onnx",
    )
    command.add_argument(
        "--to", choices=("transformers", "timm", "torchvision", "onnx"), default="transformers",
        help="(default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--heads", type=int, help="number of attention heads, for a file that does not state it")


def _push(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "source", metavar="CHECKPOINT_OR_RUN", help="a checkpoint's name or folder, or the id or folder of a run"
    )
    command.add_argument("repository", metavar="OWNER/NAME", help="the repository, made where there is none")
    command.add_argument("--private", action="store_true", help="make a repository that others do not see")
    command.add_argument("--message", default="", metavar="TEXT", help="of the commit")
    command.add_argument(
        "--license", default="", metavar="ID", help="as the Hub writes it, such as apache-2.0 (default: the card's)"
    )
    command.add_argument("--dry-run", action="store_true", help="only say what would be uploaded, and where to")


def _lesson(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", type=Path, metavar="OUT.html", help="opens in any browser, without a network")
    command.add_argument(
        "--checkpoint", default="photos", metavar="NAME_OR_PATH", help="a small plain model (default: %(default)s)"
    )
    command.add_argument(
        "--language", choices=("en", "de", "zh"), default="en",
        help="of the words in it: English, German or Chinese (default: %(default)s)",
    )  # fmt: skip


def _train(command: argparse.ArgumentParser) -> None:
    command.add_argument("--preset", help="a complete recipe: " + ", ".join(presets.PRESETS))
    command.add_argument(
        "--config", type=Path, metavar="FILE.json", help="settings from a file, such as a run's config.json"
    )
    command.add_argument("--data", metavar="NAME|folder:PATH", help="cifar10, cifar100, mnist, fashion-mnist, shapes")
    command.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="change settings; repeatable"
    )
    command.add_argument(
        "--run-dir", "--run", type=Path, dest="run", metavar="DIR",
        help="the run's folder (default: runs/<time>-<preset>); torchrun takes --run for an option of its own",
    )  # fmt: skip
    command.add_argument("--name", metavar="NAME", help="what the run is called (default: what is trained)")
    command.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    command.add_argument(
        "--on", metavar="NAME", help="hand it over: to a cluster that is set up, or to `here`, this machine's queue; "
        "`runs` then says how it is",
    )  # fmt: skip
    command.add_argument(
        "--devices", nargs="+", metavar="DEVICE", help="with --on: cpu or gpu, once for each process of a node; here "
        "also cuda:0 and so on (default: gpu where there is one, else cpu)",
    )  # fmt: skip
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="with --on: machines (default: %(default)s)")
    command.add_argument(
        "--minutes", type=int, metavar="N", help="with --on: after which the cluster may end an attempt"
    )
    command.add_argument(
        "--trial", action="store_true", help="with --on a cluster: only try a few steps on one of its machines"
    )
    command.add_argument("--settings", action="store_true", help="list presets and settings, and end")


def _ladder(command: argparse.ArgumentParser) -> None:
    command.add_argument("--from", required=True, dest="start", metavar="NAME_OR_PATH", help="the checkpoint")
    _add_data(command, "the pictures")
    command.add_argument("--rungs", nargs="+", metavar="NAME", help=f"some of: {', '.join(RUNGS)} (default: all)")
    command.add_argument("--config", type=Path, metavar="FILE.json", help="settings of the runs, from a file")
    command.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="change settings; repeatable"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object per rung")
    command.set_defaults(resume=None)


def _search(command: argparse.ArgumentParser) -> None:
    command.add_argument("--preset", help="a complete recipe: " + ", ".join(presets.PRESETS))
    command.add_argument("--config", type=Path, metavar="FILE.json", help="settings of all trials, from a file")
    command.add_argument("--data", metavar="NAME|folder:PATH", help="the pictures")
    command.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="change settings of all trials; epochs is the most that a trial trains",
    )  # fmt: skip
    command.add_argument(
        "--space", action="extend", nargs="+", default=[], metavar="KEY=LOW:HIGH[:log]",
        help="what is drawn, or KEY=VALUE,VALUE; repeatable (default: learning rates, decays and regularisation)",
    )  # fmt: skip
    command.add_argument("--trials", type=int, metavar="N", help="how many (default: 20)")
    command.add_argument(
        "--at-once", type=int, default=1, metavar="K", help="under way together (default: %(default)s)"
    )
    command.add_argument(
        "--min-epochs", type=int, metavar="N", help="before which no trial ends early (default: a ninth of the epochs)"
    )
    command.add_argument(
        "--reduction-factor", type=int, default=3, metavar="N",
        help="one trial in so many goes on, at --min-epochs and at each so many times as many (default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: %(default)s)")
    command.add_argument("--name", metavar="NAME", help="what it is called (default: what is trained)")
    command.add_argument("--on", metavar="NAME", help="a cluster for the trials (default: this machine)")
    command.add_argument(
        "--devices", nargs="+", metavar="DEVICE", help="of each trial: cpu or gpu, once for each process of a node"
    )
    command.add_argument("--nodes", type=int, default=1, metavar="N", help="of each trial (default: %(default)s)")
    command.add_argument("--minutes", type=int, metavar="N", help="after which the cluster may end an attempt")
    command.add_argument("--detach", action="store_true", help="start it, and do not wait for it")
    command.add_argument(
        "--resume", metavar="ID", dest="again", help="continue a search; with --trials, to more of them"
    )
    command.add_argument("--stop", metavar="ID", help="stop a search; its trials under way save themselves")
    command.add_argument("--list", action="store_true", help="list searches, and end")
    command.set_defaults(resume=None)


def _runs(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", nargs="?", choices=("list", "show", "stop", "resume", "delete"), default="list")
    command.add_argument("ids", nargs="*", metavar="ID")
    command.add_argument("--yes", action="store_true", help="with delete: do it, instead of saying what would go")


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
        "target" if method.of_class else "precision",
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


# Name -> description, and function that adds its options.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "classify": ("Say what is on pictures.", _classify),
    "explain": ("Draw or save where a token of the model looks, or what spoke for a class.", _explain),
    "evaluate": ("Measure a checkpoint's accuracy on a dataset's test pictures.", _evaluate),
    "faithfulness": ("Rank the methods of explaining by whether their maps are true, on test pictures.", _faithfulness),
    "heads": ("Say what every head does: mean and spread of a statistic over test pictures.", _heads),
    "features": ("Keep what the model makes of test pictures before its head, one vector for each.", _features),
    "ood": ("Learn what known pictures are like, so that the app can say which ones are unlike them.", _ood),
    "convert": ("Give a checkpoint to another library, computing the same there.", _convert),
    "push": ("Upload a checkpoint of yours to the Hugging Face Hub, with its card and nothing else.", _push),
    "lesson": ("Write a lesson: a small checkpoint, exercises and every number of a head in one HTML file.", _lesson),
    "train": ("Train a Vision Transformer.", _train),
    "ladder": ("From a checkpoint to your own classes: every way to get there, the cheapest first.", _ladder),
    "search": (
        "Random search with early end: draw settings from ranges, and end trials that fall behind. It goes on without "
        "this terminal; Ctrl-C stops it, and --resume continues it.",
        _search,
    ),
    "runs": ("List training runs, look at some, stop, resume or delete them; the page does the same and more.", _runs),
}


def parser() -> argparse.ArgumentParser:
    """Build the parser for all commands."""
    installed = Path(sys.argv[0]).stem == "vit"  # console script of an installed package
    prog = "vit" if installed else "python -m vit"
    top = _Parser(prog=prog, description="Classify pictures with a Vision Transformer, and look inside it.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, add_options) in COMMANDS.items():
        add_options(commands.add_parser(name, help=what, description=what))
    return top
