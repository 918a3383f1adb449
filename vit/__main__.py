"""The command line: `python -m vit classify|explain|evaluate|faithfulness|heads|ood|convert|train|runs`.

Exit status: 0 done, 1 a bug (with its traceback), 2 a mistake of the user's, told in one line.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidImage, UserError


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, and that explains defaults in its help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message[0].upper()}{message[1:]}. See {self.prog} --help.\n")


def _number_or(*words: str) -> Any:
    def parse(text: str) -> int | str:
        if text in words:
            return text
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor one of {', '.join(words)}") from None

    return parse


def parser() -> argparse.ArgumentParser:
    """Every command and option."""
    top = _Parser(prog="python -m vit", description="Classify pictures with a Vision Transformer, and look inside it.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, what: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=what, description=what)

    classify = add("classify", "Say what is on pictures.")
    classify.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    classify.add_argument("--top", type=int, default=5, help="predictions per picture (default: %(default)s)")

    explain = add("explain", "Draw or save where a token of the model looks, or what spoke for a class.")
    explain.add_argument("image", type=Path, metavar="IMAGE")
    explain.add_argument(
        "--method", choices=_METHODS, default="attention",
        help="the first two show where attention goes, the others what speaks for --target (default: %(default)s)",
    )  # fmt: skip
    explain.add_argument("--target", metavar="LABEL", help="a class or its number from 0 (default: the predicted one)")
    fusions = ("mean", "max", "min")
    explain.add_argument(
        "--block", type=_number_or(*fusions),
        help="from 0, -1 is the last, or mean, max, min (default: the last, of attention-gradient the mean)",
    )  # fmt: skip
    explain.add_argument(
        "--head", type=_number_or(*fusions), help="from 0, or mean, max, min; of rollout, how heads become one "
        "(default: mean)",
    )  # fmt: skip
    explain.add_argument("--start-block", type=int, metavar="BLOCK", help="leave earlier blocks out")
    explain.add_argument(
        "--residual", type=float, metavar="SHARE", help="this share of every token stays (default: 0.5)"
    )
    explain.add_argument(
        "--discard", type=float, metavar="SHARE", help="leave this share of each row's patches out, the weakest"
    )
    explain.add_argument(
        "--query", metavar="cls|ROW,COL",
        help="the token asked about (default: those that the answer is read from)",
    )  # fmt: skip
    explain.add_argument(
        "--direction", choices=("from", "to"), help="where the --query looks, or who looks at it (default: from)"
    )
    explain.add_argument("--size", type=int, metavar="PX", help="shorter side of the model's input, to whole patches")
    explain.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="bfloat16 is faster and inexact (default: float32)"
    )
    explain.add_argument("--out", type=Path, required=True, metavar="FILE.png|.npz")

    evaluate = add("evaluate", "Measure a checkpoint's accuracy on a dataset's test pictures.")
    evaluate.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    evaluate.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    evaluate.add_argument(
        "--report", type=Path, metavar="FILE.npz", help="also keep which pictures were taken for what"
    )

    faithful = add("faithfulness", "Rank the methods of explaining by whether their maps are true, on test pictures.")
    faithful.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    faithful.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    faithful.add_argument("--limit", type=int, default=500, metavar="N", help="pictures (default: %(default)s)")
    faithful.add_argument("--card", action="store_true", help="also put the table into the checkpoint's card")

    heads = add("heads", "Say what every head does: mean and spread of a statistic over test pictures.")
    heads.add_argument("--data", required=True, metavar="NAME|folder:PATH")
    heads.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    heads.add_argument("--limit", type=int, default=128, metavar="N", help="pictures (default: %(default)s)")
    heads.add_argument(
        "--statistic", choices=_STATISTICS, default="distance", help="of the table (default: %(default)s)"
    )
    heads.add_argument("--card", action="store_true", help="also put the distance by block into the checkpoint's card")

    ood = add("ood", "Learn what known pictures are like, so that the app can say which ones are unlike them.")
    ood.add_argument("--data", required=True, metavar="NAME|folder:PATH", help="what the model learnt from")
    ood.add_argument("--others", default="", metavar="NAME|folder:PATH", help="pictures of other things, to try it on")
    ood.add_argument("--data-root", type=Path, default=Path("data"), help="where downloads are kept")
    ood.add_argument("--keep", action="store_true", help="also keep it beside the weights, for the app")

    for command in (classify, explain, evaluate, faithful, heads, ood):
        command.add_argument(
            "--checkpoint", default="cifar10", metavar="NAME_OR_PATH",
            help="a name in checkpoints/, a folder or file, or to be fetched: owner/name[@revision] on the Hugging "
            "Face Hub, torchvision/vit_b_16 (default: %(default)s)",
        )  # fmt: skip
    for command in (classify, evaluate, faithful, heads, ood):
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

    train = add("train", "Train a Vision Transformer.")
    train.add_argument("--preset", help="a complete recipe: " + ", ".join(_presets()))
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
    train.add_argument("--resume", type=Path, metavar="DIR", help="continue the run in this folder")
    train.add_argument("--settings", action="store_true", help="list presets and settings, and end")

    runs = add("runs", "List training runs, look at one, stop or resume it; the page does the same and more.")
    runs.add_argument("action", nargs="?", choices=("list", "show", "stop", "resume"), default="list")
    runs.add_argument("id", nargs="?", metavar="ID")
    return top


# Each method of `explain` with the options that mean something for it.
_METHODS = {
    "attention": ("block", "head", "query", "direction", "precision"),
    "rollout": ("head", "residual", "discard", "query", "direction", "precision"),
    "relevance": ("target", "start_block", "query", "direction"),
    "gradient-rollout": ("target", "start_block", "discard", "query", "direction"),
    "legrad": ("target", "start_block"),
    "gradcam": ("target", "block"),
    "attention-gradient": ("target", "block", "head", "query", "direction"),
    "attention-gradient-last": ("target",),
    "input-gradient": ("target", "query", "direction"),
    "relevance-rollout": ("target", "start_block", "head", "residual", "discard", "query", "direction"),
}
# What `heads` measures; the last three of models that have such tokens.
_STATISTICS = ("distance", "entropy", "self", "neighbours", "cls", "dist", "registers")


def _presets() -> list[str]:
    from vit.recipes import PRESETS

    return list(PRESETS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    try:
        _COMMANDS[options.command](options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Stopped.", file=sys.stderr)
        return 130
    return 0


def _picture(path: Path) -> Any:
    from vit.images.decode import decode_image

    try:
        return decode_image(path.read_bytes())
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}.") from error
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def _classify(options: argparse.Namespace) -> None:
    import torch

    from vit.checkpoints.load import load_checkpoint

    checkpoint = load_checkpoint(options.checkpoint)
    if not checkpoint.labels:
        raise InvalidCheckpoint(f"{checkpoint.name} computes features and has no classes. Choose another checkpoint.")
    results: list[dict[str, Any]] = []
    for path in options.images:
        with torch.inference_mode():
            logits = checkpoint.model(checkpoint.preprocess(_picture(path))).logits[0]
        top = logits.softmax(0).topk(min(max(options.top, 1), len(logits)))
        predictions = [
            {"label": checkpoint.labels[i], "probability": p}
            for p, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        results.append({"image": str(path), "predictions": predictions})
    if options.json:
        print(json.dumps({"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "results": results}))
        return
    for result in results:
        print(result["image"])
        for prediction in result["predictions"]:
            bar = "█" * round(prediction["probability"] * 30)
            print(f"  {prediction['probability']:7.2%}  {prediction['label']:<24} {bar}")


def _explain(options: argparse.Namespace) -> None:
    from vit.checkpoints.load import load_checkpoint
    from vit.explain.input_sizes import resized, size_near
    from vit.view.export import attention_npz
    from vit.view.overlay import overlay

    if options.out.suffix.lower() not in (".png", ".npz"):
        raise UserError(f"--out must end in .png or .npz, not {options.out.name!r}.")
    _check_options(options)
    checkpoint = load_checkpoint(options.checkpoint)
    picture = _picture(options.image)
    preprocess = checkpoint.preprocess
    if options.size is not None:
        if not 1 <= options.size <= 4096:
            raise UserError(f"--size must be 1 to 4096 px, not {options.size}.")
        preprocess = resized(preprocess, size_near(checkpoint, options.size))
    kept, weights, view = _weights(options, checkpoint, preprocess(picture))
    heatmap = kept.heatmap(weights)
    geometry = preprocess.geometry(picture)
    try:
        if options.out.suffix.lower() == ".png":
            overlay(picture, heatmap.numpy(), geometry.box).save(options.out)
        else:
            options.out.write_bytes(attention_npz(kept, heatmap, checkpoint, preprocess, geometry, view))
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}.") from error
    print(options.out)


def _check_options(options: argparse.Namespace) -> None:
    """Refuse what a method would ignore, and shares that cannot be."""
    for name in ("target", "block", "head", "start_block", "residual", "discard", "query", "direction", "precision"):
        if getattr(options, name) is not None and name not in _METHODS[options.method]:
            suited = ", ".join(method for method, names in _METHODS.items() if name in names)
            raise UserError(f"--{name.replace('_', '-')} means nothing to {options.method}; it is for {suited}.")
    if options.direction == "to" and options.query is None:
        raise UserError("--direction to says who looks at a token. Name it with --query.")
    if options.residual is not None and not 0 <= options.residual <= 1:
        raise UserError(f"--residual must be 0 to 1, not {options.residual:g}.")
    if options.discard is not None and not 0 <= options.discard < 1:
        raise UserError(f"--discard must be at least 0 and under 1, not {options.discard:g}.")


def _check_numbers(options: argparse.Namespace, config: Any) -> None:
    """Refuse blocks and heads that the model does not have."""
    from vit.explain.maps import checked_index

    for name, count in (("block", config.depth), ("start_block", config.depth), ("head", config.heads)):
        if isinstance(number := getattr(options, name), int):
            try:
                checked_index(name.removeprefix("start_"), number, count)
            except ValueError as error:
                raise UserError(str(error)) from None


def _weights(options: argparse.Namespace, checkpoint: Any, pixels: Any) -> tuple[Any, Any, dict[str, Any]]:
    """What a method says: a record, one number per token (N,), and what names them."""
    from vit.explain import methods
    from vit.explain.settings import Direction, Tuning

    method = methods.METHODS[options.method]
    direction: Direction = options.direction or "from"
    if method.of_class and not checkpoint.labels:
        raise InvalidCheckpoint(
            f"{checkpoint.name} computes features and has no classes, so {options.method} has nothing to explain. "
            "Choose another checkpoint, or --method attention or rollout."
        )
    _check_numbers(options, checkpoint.config)
    if method.of_class:
        target = None if options.target is None else _class(options.target, checkpoint.labels)
        subject = methods.Subject.of(checkpoint.model, pixels, target)
    else:
        subject = methods.Subject.without_class(checkpoint.model, pixels, options.precision or "float32")
    query = None if options.query is None else _token(options.query, subject.kept)

    tuning = Tuning(**{name: value for name in method.settings if (value := _setting(options, name)) is not None})
    layers = {name: value for name in method.layers if (value := getattr(options, name)) is not None}
    if layers:
        weights = methods.of_layers(subject, options.method, query, direction, layers)
    else:
        weights = methods.weights(subject, options.method, query, direction, tuning)

    view = {"method": options.method} | dict(method.layers) | layers
    view |= {_OPTIONS.get(name, name): getattr(tuning, name) for name in method.settings}
    if method.of_tokens:
        view |= {"query": options.query, "direction": direction}
    if method.of_class:
        target = subject.kept.target
        view["target"] = {"index": target, "label": checkpoint.labels[target]}
    return subject.kept, weights, view


_OPTIONS = {"fusion": "head"}  # settings whose option has another name


def _setting(options: argparse.Namespace, name: str) -> Any:
    value = getattr(options, _OPTIONS.get(name, name))
    if name == "fusion" and isinstance(value, int):
        raise UserError(f"{options.method} takes all heads: --head must be mean, max or min, not {value}.")
    return value


def _class(name: str, labels: Sequence[str]) -> int:
    """The number of a class by its label, or by that number itself."""
    alike = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    exact = [i for i in alike if labels[i] == name] or alike
    if len(exact) > 1:
        raise UserError(f"{len(exact)} classes are called {name!r}: {', '.join(map(str, exact))}. Name one by number.")
    if exact:
        return exact[0]
    if name.isdecimal():
        return int(name)
    near = get_close_matches(name, labels, 3, 0.5)
    raise UserError(
        f"There is no class {name!r}. " + (f"Did you mean {' or '.join(near)}?" if near else "Name another.")
    )


def _token(query: str, kept: Any) -> int:
    if query in kept.prefix:
        return kept.prefix.index(query)
    try:
        row, col = map(int, query.split(","))
    except ValueError:
        names = ", ".join(kept.prefix) or "none here"
        raise UserError(f"--query must be a prefix token ({names}) or ROW,COL, not {query!r}.") from None
    try:
        return kept.patch(row, col)
    except ValueError as error:
        raise UserError(str(error)) from None


def _evaluate(options: argparse.Namespace) -> None:
    from vit.checkpoints.load import load_checkpoint
    from vit.report import write
    from vit.training.evaluation import evaluate_checkpoint

    checkpoint = load_checkpoint(options.checkpoint)
    if options.report:
        write(checkpoint, options.data, options.data_root, options.report, bar=not options.json)
    result = evaluate_checkpoint(checkpoint, options.data, root=options.data_root, bar=not options.json)
    if options.json:
        facts = {"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "data": options.data}
        print(json.dumps(facts | result._asdict()))
    else:
        print(f"{result.accuracy:.2%} of {result.pictures:,} pictures right, loss {result.loss:.4f}")


def _faithfulness(options: argparse.Namespace) -> None:
    from vit.checkpoints.load import load_checkpoint
    from vit.explain.method_ranking import rank, record_in_card, table, verdict

    _check_limit(options.limit)
    checkpoint = load_checkpoint(options.checkpoint)
    ranked = rank(checkpoint, options.data, options.limit, root=options.data_root, bar=not options.json)
    if options.card:
        record_in_card(checkpoint, options.data, ranked)
    if options.json:
        facts = {"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "data": options.data}
        print(json.dumps(facts | {"pictures": ranked[0].pictures, "methods": [one.to_dict() for one in ranked]}))
        return
    print("\n".join(table(ranked)))
    print(f"\n{ranked[0].pictures} pictures. {verdict(ranked)}")


def _ood(options: argparse.Namespace) -> None:
    from vit.checkpoints.load import load_checkpoint
    from vit.explain import ood

    checkpoint = load_checkpoint(options.checkpoint)
    known = ood.fit(checkpoint, options.data, options.others, root=options.data_root, bar=not options.json)
    if options.keep:
        ood.write(checkpoint, known)
    told = {"known_called_unlike": ood.ALARM, "others_called_unlike": known.noticed}
    if options.json:
        facts = {
            "checkpoint": checkpoint.name,
            "sha256": checkpoint.hash,
            "data": known.data,
            "others": known.other_data,
        }
        print(json.dumps(facts | told))
        return
    print(f"Unlike the pictures of {known.data} is what {ood.ALARM:.0%} of them exceed.")
    if known.noticed is not None:
        print(f"Of the pictures of {known.other_data}, {known.noticed:.0%} exceed it.")


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise UserError(f"--limit must be at least 1, not {limit}.")


def _heads(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from vit.checkpoints.load import load_checkpoint
    from vit.explain.head_census import census, check_name, record_in_card, sentence, table, to_dict

    _check_limit(options.limit)
    checkpoint = load_checkpoint(options.checkpoint)
    check_name(checkpoint, options.statistic)
    bar: Any = None

    def progress(done: int, total: int) -> None:  # the data are read by then, with a bar of their own
        nonlocal bar
        if bar is None:
            bar = tqdm(total=total, unit="pictures", leave=False, disable=options.json)
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    found = census(checkpoint, options.data, options.limit, root=options.data_root, progress=progress)
    statistic = found[options.statistic]
    if options.card:
        record_in_card(checkpoint, options.data, found)
    if options.json:
        facts = {"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "data": options.data}
        print(json.dumps(facts | {"pictures": statistic.pictures, "statistics": to_dict(found)}))
        return
    print("\n".join(table(options.statistic, statistic)))
    print(f"\n{sentence(options.statistic, statistic)}")


def _convert(options: argparse.Namespace) -> None:
    from vit.checkpoints.convert import convert, how_to_open
    from vit.checkpoints.load import load_checkpoint

    checkpoint = load_checkpoint(options.source, options.heads)
    path = convert(checkpoint, options.destination, options.to)
    print(path)
    for field, why in checkpoint.assumed.items():
        print(f"Assumed: {field}: {why}", file=sys.stderr)
    for line in how_to_open(checkpoint, path, options.to):
        print(f"    {line}")


def _train(options: argparse.Namespace) -> None:
    from vit.paths import runs_folder
    from vit.recipes import PRESETS, describe, run_name, train_config
    from vit.runs import new_id, read_json
    from vit.train import train

    if options.settings:
        print(describe())
        return
    if options.resume and (options.preset or options.config or options.data or options.set or options.run):
        raise InvalidConfig("--resume continues a run as it was described; it goes without other options.")
    if not (options.preset or options.config or options.data or options.resume):
        raise InvalidConfig(f"Name a --preset ({', '.join(PRESETS)}), a --config or at least --data.")
    config = train_config(options.preset, **_settings(options))
    run = options.resume or options.run or runs_folder() / new_id(run_name(config))
    if options.preset:
        print(f"{PRESETS[options.preset].title}. {PRESETS[options.preset].expect}", flush=True)
    try:
        result = train(config, run, resume=bool(options.resume))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. Continue with --resume {run}") from None
    if int(os.environ.get("RANK", 0)):  # one of several processes, not the leading one
        return
    if reason := read_json(run / "outcome.json").get("reason"):
        print(f"{reason} --resume {run}")
    if result.validation:
        print(f"{result.validation.accuracy:.2%} of {result.validation.pictures:,} validation pictures right.")
    if result.test:
        print(f"{result.test.accuracy:.2%} of {result.test.pictures:,} test pictures right.")
    if result.validation:
        print(f"The model: {run / 'checkpoints' / 'best'}")


def _runs(options: argparse.Namespace) -> None:
    from vit import runs

    if options.action == "list":
        for run in runs.list_runs():
            print(_line(run))
        return
    if options.id is None:
        raise UserError(f"Name a run: python -m vit runs {options.action} ID. Its id is in `python -m vit runs list`.")
    if options.action == "stop":
        runs.stop(options.id)
    elif options.action == "resume":
        runs.resume(options.id)
    run = runs.find_run(options.id)
    print(_line(run))
    if options.action == "show":
        if run.notes:
            print(run.notes)
        print(json.dumps(run.config, indent=2))
        print(run.folder)


def _line(run: Any) -> str:
    from vit.metrics import MetricsReader, progress

    reader = MetricsReader(run.folder / "metrics.jsonl")
    reader.update()
    done = progress(reader.records)
    accuracy = f"{done.accuracy:.2%}" if done and done.accuracy is not None else "-"
    share = f"{done.share:.0%}" if done else "0%"
    return f"{run.id:<44} {run.status:<11} {share:>4} {accuracy:>7}  {run.reason}".rstrip()


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """From the file, then --data, then --set: the later wins."""
    settings: dict[str, Any] = {}
    file = options.resume / "config.json" if options.resume else options.config
    if file:
        try:
            settings = json.loads(file.read_text())
        except OSError as error:
            what = "--resume needs the folder of a run" if options.resume else "--config needs a file of settings"
            raise InvalidConfig(f"{what}; {file} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise InvalidConfig(f"{file} is not JSON. Name a file such as the config.json of a run.") from error
        if not isinstance(settings, dict):
            raise InvalidConfig(f"{file} must hold one JSON object of settings.")
    if options.data:
        settings["data"] = options.data
    for pair in options.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidConfig(f"--set takes KEY=VALUE, not {pair!r}.")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


_COMMANDS = {
    "classify": _classify,
    "explain": _explain,
    "evaluate": _evaluate,
    "faithfulness": _faithfulness,
    "heads": _heads,
    "ood": _ood,
    "convert": _convert,
    "train": _train,
    "runs": _runs,
}

if __name__ == "__main__":
    sys.exit(main())
