"""Every command and option of the command line."""

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn, get_args

from vit.explain.methods import METHODS
from vit.explain.names import SIGNED, STATISTICS
from vit.explain.settings import Direction, Fusion
from vit.training import presets
from vit.training.ladder import RUNGS

FUSIONS: tuple[str, ...] = get_args(Fusion)
DIRECTIONS: tuple[str, ...] = get_args(Direction)  # the usual one first
_CENSUS = tuple(name for name in STATISTICS if name not in SIGNED)  # the signed ones are of a class, on the page only


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, and that explains defaults in its help."""

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
    """Options that ask for other classes than the checkpoint's own, see `vit.cli.answers`."""
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


def parser() -> argparse.ArgumentParser:
    """Every command and option."""
    installed = Path(sys.argv[0]).stem == "vit"  # the command that an installation brings
    prog = "vit" if installed else "python -m vit"
    top = _Parser(prog=prog, description="Classify pictures with a Vision Transformer, and look inside it.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, what: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=what, description=what)

    classify = add("classify", "Say what is on pictures.")
    classify.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    classify.add_argument("--top", type=int, default=5, help="predictions per picture (default: %(default)s)")
    _add_stretch(classify)

    explain = add("explain", "Draw or save where a token of the model looks, or what spoke for a class.")
    explain.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    _add_stretch(explain)
    anyway = ", ".join(name for name, method in METHODS.items() if not method.of_class)
    explain.add_argument(
        "--method", choices=list(METHODS), default="attention",
        help=f"{anyway}: where attention goes; all others: what speaks for --target (default: %(default)s)",
    )  # fmt: skip
    explain.add_argument("--target", metavar="LABEL", help="a class or its number from 0 (default: the predicted one)")
    explain.add_argument(
        "--block", type=_number_or(*FUSIONS),
        help=f"from 0, -1 is the last, or {', '.join(FUSIONS)} of all {_defaults('block')}",
    )  # fmt: skip
    explain.add_argument(
        "--head", type=_number_or(*FUSIONS),
        help=f"from 0, or {', '.join(FUSIONS)}; of rollout, how heads become one {_defaults('head')}",
    )  # fmt: skip
    explain.add_argument(
        "--start-block", type=int, metavar="BLOCK", help=f"leave earlier blocks out {_defaults('start_block')}"
    )
    explain.add_argument(
        "--residual", type=float, metavar="SHARE", help=f"this share of every token stays {_defaults('residual')}"
    )
    explain.add_argument(
        "--discard", type=float, metavar="SHARE",
        help=f"leave this share of each row's patches out, the weakest {_defaults('discard')}",
    )  # fmt: skip
    _add_settings(explain)
    explain.add_argument(
        "--query", metavar="cls|ROW,COL",
        help="the token asked about (default: those that the answer is read from)",
    )  # fmt: skip
    explain.add_argument(
        "--direction", choices=DIRECTIONS,
        help=f"where the --query looks, or who looks at it (default: {DIRECTIONS[0]})",
    )  # fmt: skip
    for command in (classify, explain):
        command.add_argument(
            "--size", type=int, metavar="PX",
            help="shorter side of the model's input, to whole patches (default: the checkpoint's own)",
        )  # fmt: skip
        _add_classes(command)
        command.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    explain.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="bfloat16 is faster and inexact (default: float32)"
    )
    explain.add_argument(
        "--out", type=Path, required=True, metavar="FILE.png|.npz|FOLDER",
        help="PNG: over the picture, in colours of this map alone (Own scales on the page); NPZ: the numbers; a "
        "folder, for any number of pictures: a PNG of each, and index.html with all of them",
    )  # fmt: skip

    evaluate = add("evaluate", "Measure a checkpoint's accuracy on a dataset's test pictures.")
    evaluate.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    evaluate.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    evaluate.add_argument(
        "--report", type=Path, metavar="FILE.npz", help="also keep which pictures were taken for what"
    )
    _add_classes(evaluate)

    faithful = add("faithfulness", "Rank the methods of explaining by whether their maps are true, on test pictures.")
    faithful.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    faithful.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    faithful.add_argument("--limit", type=int, default=500, metavar="N", help="pictures (default: %(default)s)")
    faithful.add_argument("--card", action="store_true", help="also put the table into the checkpoint's card")
    _add_classes(faithful)

    heads = add("heads", "Say what every head does: mean and spread of a statistic over test pictures.")
    heads.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    heads.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    heads.add_argument("--limit", type=int, default=128, metavar="N", help="pictures (default: %(default)s)")
    heads.add_argument("--statistic", choices=_CENSUS, default=_CENSUS[0], help="of the table (default: %(default)s)")
    heads.add_argument("--card", action="store_true", help="also put the distance by block into the checkpoint's card")

    features = add("features", "Keep what the model makes of test pictures before its head, one vector for each.")
    features.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    features.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    features.add_argument("--limit", type=int, default=1000, metavar="N", help="pictures (default: %(default)s)")
    features.add_argument(
        "--out", type=Path, required=True, metavar="FILE.npz", help="with vectors, labels and classes"
    )

    for command in (evaluate, faithful, heads, features):
        command.add_argument(
            "--on", metavar="NAME", help="several processes do it: of a cluster that is set up, or of this machine, "
            "`here`; what is done is kept, and the same command goes on from it",
        )  # fmt: skip
        command.add_argument(
            "--workers", type=int, metavar="N", help="with --on: processes (default: as many as have room)"
        )
        command.add_argument("--device", choices=("cpu", "gpu"), help="with --on: of each process (default: cpu)")

    ood = add("ood", "Learn what known pictures are like, so that the app can say which ones are unlike them.")
    ood.add_argument("--data", required=True, metavar="NAME|folder:PATH", help="what the model learnt from")
    ood.add_argument("--others", default="", metavar="NAME|folder:PATH", help="pictures of other things, to try it on")
    ood.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    ood.add_argument("--keep", action="store_true", help="also keep it beside the weights, for the app")

    for command in (classify, explain, evaluate, faithful, heads, features, ood):
        command.add_argument(
            "--checkpoint", default="cifar10", metavar="NAME_OR_PATH",
            help="a name in checkpoints/, a folder or file, or to be fetched: owner/name[@revision] on the Hugging "
            "Face Hub, torchvision/vit_b_16 (default: %(default)s)",
        )  # fmt: skip
    for command in (classify, evaluate, faithful, heads, features, ood):
        command.add_argument("--json", action="store_true", help="print one JSON document")

    convert = add("convert", "Give a checkpoint to another library, computing the same there.")
    convert.add_argument("source", metavar="SOURCE", help="a checkpoint's name, folder or file")
    convert.add_argument(
        "destination",
        type=Path,
        metavar="DESTINATION",
        help="a new folder; for torchvision a file ending in .pth, for onnx one in .onnx",
    )
    convert.add_argument(
        "--to", choices=("transformers", "timm", "torchvision", "onnx"), default="transformers",
        help="(default: %(default)s)",
    )  # fmt: skip
    convert.add_argument("--heads", type=int, help="number of attention heads, for a file that does not state it")

    push = add("push", "Upload a checkpoint of yours to the Hugging Face Hub, with its card and nothing else.")
    push.add_argument(
        "source", metavar="CHECKPOINT_OR_RUN", help="a checkpoint's name or folder, or the id or folder of a run"
    )
    push.add_argument("repository", metavar="OWNER/NAME", help="the repository, made where there is none")
    push.add_argument("--private", action="store_true", help="make a repository that others do not see")
    push.add_argument("--message", default="", metavar="TEXT", help="of the commit")
    push.add_argument(
        "--license", default="", metavar="ID", help="as the Hub writes it, such as apache-2.0 (default: the card's)"
    )
    push.add_argument("--dry-run", action="store_true", help="only say what would be uploaded, and where to")

    lesson = add("lesson", "Write a lesson: a small checkpoint, exercises and every number of a head in one HTML file.")
    lesson.add_argument("out", type=Path, metavar="OUT.html", help="opens in any browser, without a network")
    lesson.add_argument(
        "--checkpoint", default="photos", metavar="NAME_OR_PATH", help="a small plain model (default: %(default)s)"
    )
    lesson.add_argument(
        "--language", choices=("en", "de", "zh"), default="en",
        help="of the words in it: English, German or Chinese (default: %(default)s)",
    )  # fmt: skip

    train = add("train", "Train a Vision Transformer.")
    train.add_argument("--preset", help="a complete recipe: " + ", ".join(presets.PRESETS))
    train.add_argument(
        "--config", type=Path, metavar="FILE.json", help="settings from a file, such as a run's config.json"
    )
    train.add_argument("--data", metavar="NAME|folder:PATH", help="cifar10, cifar100, mnist, fashion-mnist, shapes")
    train.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="change settings; repeatable"
    )
    train.add_argument(
        "--run-dir", "--run", type=Path, dest="run", metavar="DIR",
        help="the run's folder (default: runs/<time>-<preset>); torchrun takes --run for an option of its own",
    )  # fmt: skip
    train.add_argument("--name", metavar="NAME", help="what the run is called (default: what is trained)")
    train.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    train.add_argument(
        "--on", metavar="NAME", help="hand it over: to a cluster that is set up, or to `here`, this machine's queue; "
        "`runs` then says how it is",
    )  # fmt: skip
    train.add_argument(
        "--devices", nargs="+", metavar="DEVICE", help="with --on: cpu or gpu, once for each process of a node; here "
        "also cuda:0 and so on (default: gpu where there is one, else cpu)",
    )  # fmt: skip
    train.add_argument("--nodes", type=int, default=1, metavar="N", help="with --on: machines (default: %(default)s)")
    train.add_argument("--minutes", type=int, metavar="N", help="with --on: after which the cluster may end an attempt")
    train.add_argument(
        "--trial", action="store_true", help="with --on a cluster: only try a few steps on one of its machines"
    )
    train.add_argument("--settings", action="store_true", help="list presets and settings, and end")

    ladder = add("ladder", "From a checkpoint to your own classes: every way to get there, the cheapest first.")
    ladder.add_argument("--from", required=True, dest="start", metavar="NAME_OR_PATH", help="the checkpoint")
    ladder.add_argument("--data", required=True, metavar="NAME|folder:PATH", help="the pictures")
    ladder.add_argument("--rungs", nargs="+", metavar="NAME", help=f"some of: {', '.join(RUNGS)} (default: all)")
    ladder.add_argument("--config", type=Path, metavar="FILE.json", help="settings of the runs, from a file")
    ladder.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="change settings; repeatable"
    )
    ladder.add_argument("--json", action="store_true", help="print one JSON object per rung")
    ladder.set_defaults(resume=None)

    search = add(
        "search",
        "Random search with early end: draw settings from ranges, and end trials that fall behind. It goes on without "
        "this terminal; Ctrl-C stops it, and --resume continues it.",
    )
    search.add_argument("--preset", help="a complete recipe: " + ", ".join(presets.PRESETS))
    search.add_argument("--config", type=Path, metavar="FILE.json", help="settings of all trials, from a file")
    search.add_argument("--data", metavar="NAME|folder:PATH", help="the pictures")
    search.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="change settings of all trials; epochs is the most that a trial trains",
    )  # fmt: skip
    search.add_argument(
        "--space", action="extend", nargs="+", default=[], metavar="KEY=LOW:HIGH[:log]",
        help="what is drawn, or KEY=VALUE,VALUE; repeatable (default: learning rates, decays and regularisation)",
    )  # fmt: skip
    search.add_argument("--trials", type=int, metavar="N", help="how many (default: 20)")
    search.add_argument("--at-once", type=int, default=1, metavar="K", help="under way together (default: %(default)s)")
    search.add_argument(
        "--min-epochs", type=int, metavar="N", help="before which no trial ends early (default: a ninth of the epochs)"
    )
    search.add_argument(
        "--reduction-factor", type=int, default=3, metavar="N",
        help="one trial in so many goes on, at --min-epochs and at each so many times as many (default: %(default)s)",
    )  # fmt: skip
    search.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: %(default)s)")
    search.add_argument("--name", metavar="NAME", help="what it is called (default: what is trained)")
    search.add_argument("--on", metavar="NAME", help="a cluster for the trials (default: this machine)")
    search.add_argument(
        "--devices", nargs="+", metavar="DEVICE", help="of each trial: cpu or gpu, once for each process of a node"
    )
    search.add_argument("--nodes", type=int, default=1, metavar="N", help="of each trial (default: %(default)s)")
    search.add_argument("--minutes", type=int, metavar="N", help="after which the cluster may end an attempt")
    search.add_argument("--detach", action="store_true", help="start it, and do not wait for it")
    search.add_argument(
        "--resume", metavar="ID", dest="again", help="continue a search; with --trials, to more of them"
    )
    search.add_argument("--stop", metavar="ID", help="stop a search; its trials under way save themselves")
    search.add_argument("--list", action="store_true", help="list searches, and end")
    search.set_defaults(resume=None)

    runs = add(
        "runs", "List training runs, look at some, stop, resume or delete them; the page does the same and more."
    )
    runs.add_argument("action", nargs="?", choices=("list", "show", "stop", "resume", "delete"), default="list")
    runs.add_argument("ids", nargs="*", metavar="ID")
    runs.add_argument("--yes", action="store_true", help="with delete: do it, instead of saying what would go")
    return top


def _add_settings(explain: argparse.ArgumentParser) -> None:
    """Options for the settings that only new methods have: their type is that of the default."""
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
    """The options of `explain` that set something about any of the methods."""
    return tuple(dict.fromkeys(option_of(setting) for method in METHODS.values() for setting in method.settings))


def option_of(setting: str) -> str:
    """The option that sets something about a method: how rollout makes one head of all of them is --head too."""
    return "head" if setting == "fusion" else setting


def options_of(name: str) -> tuple[str, ...]:
    """The options of `explain` that mean something to a method."""
    method = METHODS[name]
    settings = [option_of(setting) for setting in method.settings]
    return (
        "target" if method.of_class else "precision",
        *settings,
        *(("query", "direction") if method.of_tokens else ()),
    )


def _defaults(option: str) -> str:
    """What an option of `explain` is where it is left out, as the table of methods has it.

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
