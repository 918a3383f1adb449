"""The trainer: assembles the parts of a run, and loops over its epochs.

Letters and splits as in `vit.training.loop.train`. The parts are `pictures` (data), `step` (one update), `evaluation`
(validation and test), `snapshot_writer` (attention snapshots), `state` (what --resume needs) and `recorder` (metrics).
"""

import math
import platform
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import record_facts, save_checkpoint
from vit.confidence import CHOSE_EPOCH
from vit.data.datasets import Dataset
from vit.devices import memory
from vit.errors import InvalidConfig
from vit.model.initialization import mimetic_
from vit.model.layers import Linear
from vit.model.transformer import VisionTransformer
from vit.out_of_memory import is_out_of_memory
from vit.training.loop import probe
from vit.training.loop.adaptation import adapt_, merged
from vit.training.loop.calibration import calibrated
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import Process, exact_products
from vit.training.loop.evaluation import ClassCounts, Evaluation, evaluate
from vit.training.loop.fine_tuning import Base, load_weights_, resolve, start_of
from vit.training.loop.memory import parts_that_fit
from vit.training.loop.pictures import RunData, open_data
from vit.training.loop.presets import checkpoint_name
from vit.training.loop.recorder import Diverged, Recorder
from vit.training.loop.run_folder import AGAIN, PRUNED, read_json, write_json
from vit.training.loop.snapshot_writer import SnapshotWriter, choose
from vit.training.loop.state import StateFile, check_same_run
from vit.training.loop.step import TrainStep, class_weights
from vit.training.loop.trial_pruning import reason_to_end
from vit.untrusted import counted, is_whole

_SAVE_SECONDS = 300  # [s] after which the state is saved even between validations


class Result(NamedTuple):
    """Results of the best checkpoint.

    Attributes:
        validation: None before the first epoch is complete.
        test: None before the end of the run.
    """

    validation: Evaluation | None
    test: Evaluation | None


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        step: number of steps done.
        seconds: training time, over all attempts.
        better: "raw" or "averaged", whichever model was better in the last validation.
        best: best result on validation pictures.
        best_epoch: epoch of the best weights.
        improved_epoch: first epoch that reached the best accuracy.
        test: result of the best weights on test pictures.
    """

    step: int = 0
    seconds: float = 0.0
    better: str = "raw"
    best: Evaluation | None = None
    best_epoch: int = 0
    improved_epoch: int = 0
    test: Evaluation | None = None


class Trainer:
    """A run, from its current step to its end."""

    # arguments
    config: TrainConfig
    run: Path
    process: Process

    # parts
    data: RunData
    update: TrainStep
    state: StateFile

    # progress
    progress: Progress
    notes: list[str]  # messages for the recorder, once it is open

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        process: Process,
        dataset: Dataset | None = None,
        *,
        base: Base | None = None,
        resumed: bool = False,
    ):
        """Assemble the parts.

        Args:
            dataset: replaces the dataset of `config.data`, for dry runs.
            base: properties of the checkpoint that the run starts from; None to look them up.
            resumed: whether `load` will set the weights, so that the initial checkpoint is not needed.
        """
        self.config, self.run, self.process = config, run, process
        start = resolve(config, base=base)
        self.data = open_data(config, process, start, dataset)
        torch.manual_seed(config.seed)
        model = VisionTransformer(replace(start.model, num_classes=len(self.data.classes)))
        if config.init_from and not resumed:
            load_weights_(model, load_checkpoint(start_of(config.init_from, run)), self.data.classes)
        elif config.start == "mimetic" and not config.init_from:
            mimetic_(model)
        try:
            adapt_(model, config)
        except ValueError as error:
            raise InvalidConfig(str(error)) from error
        self.update = TrainStep(config, run, process, self.data, model.to(process.device))
        self.state = StateFile(run)
        self.progress, self.notes = Progress(), []
        if config.balance == "auto" and self.update.balance != "none":
            counts = self.data.train.labels.bincount()
            self.notes.append(
                f"The classes have {int(counts[counts > 0].min()):,} to {int(counts.max()):,} pictures, so the loss "
                "balances them (balance=none switches this off)."
            )
        self._saved = time.monotonic()

    def fit_into_memory(self) -> None:
        """Split batches into micro-batches that fit into a CPU's memory; on a GPU, a step that fails halves them.

        Raises:
            InvalidConfig: even one picture at a time does not fit.
        """
        process = self.process
        if process.device.type != "cpu":
            return
        model, batch, free = self.update.model.config, self.data.batch_size // process.world, memory()[1]
        parts = parts_that_fit(model, self.config, batch, free // process.world, process.autocast)
        if parts > self.update.parts:
            self.update.parts = parts
            self.notes.append(f"Each batch is computed in {parts} parts: {free / 1e9:.1f} GB of memory are free.")

    # --- The loop ---------------------------------------------------------------------------------------------

    def train(self, attempt: int, stop: threading.Event) -> tuple[Result, tuple[Any, ...]]:
        """Train the remaining epochs.

        Args:
            attempt: number of times the run was resumed.
            stop: set from outside to stop after the current step.

        Returns:
            the results, in rank 0 only, and the outcome with its reason.
        """
        progress = self.progress
        self.fit_into_memory()
        parts = read_json(self.run / AGAIN).get("parts")
        self.update.parts = max(self.update.parts, parts if is_whole(parts, 1, self.data.batch_size) else 1)
        best = progress.best.accuracy if progress.best else 0.0
        facts, pace, track = self._start_facts(), self.data.train.decoded_per_second, self.config.track
        with Recorder(self.run, progress.step, self.process, attempt, facts, best, pace, track) as recorder:
            for note in self.notes:
                recorder.note(note)
            if self.process.is_rank_zero and not self.state.exists():
                # Before any checkpoint: a run with checkpoints but no state counts as not resumable.
                self._save_state()
            try:
                ending = self._train_epochs(recorder, stop)
                recorder.outcome = ending[0]
                tested = progress.test is not None or progress.best is None
                if self.process.is_rank_zero and ending[0] == "finished" and not tested:
                    self._run_test(recorder)
            finally:
                for pictures in (self.data.train, self.data.validation, self.data.test):
                    pictures.close()
        return Result(progress.best, progress.test), ending

    def _train_epochs(self, recorder: Recorder, stop: threading.Event) -> tuple[Any, ...]:
        """Train the remaining epochs; returns the outcome with its reason."""
        progress, patience = self.progress, self.config.patience
        if self.config.probe_first and progress.step == 0 and progress.best is None:
            self._initialise_head_by_probe(recorder)
        snapshots = self._snapshot_writer() if self.process.is_rank_zero else None
        while progress.step < self.update.total_steps:
            started = time.perf_counter()
            complete = self._train_epoch(recorder, stop)
            epochs, last = progress.step / self.data.steps_per_epoch, progress.step >= self.update.total_steps
            due = complete and (last or epochs % self.config.validate_every == 0)
            results = self._evaluate(recorder) if due else {}
            if snapshots and due:
                snapshots.store(int(epochs), self.chosen)
            progress.seconds += time.perf_counter() - started
            if due and self.process.is_rank_zero:
                recorder.epoch(int(epochs), results, progress.better, progress.seconds)
                self._save_epoch(results[progress.better])
            out_of_patience = due and patience is not None and epochs - progress.improved_epoch >= patience
            if self.process.any(self.process.is_rank_zero and out_of_patience):  # only rank 0 knows the results
                return "finished", f"Ended early: not better in {counted(patience or 0, 'epoch')}."
            behind = self._behind(int(epochs)) if due and not last and self.process.is_rank_zero else ""
            if self.process.any(bool(behind)):
                return "stopped", behind
            if not last and self._stop_requested(stop):
                if self.process.is_rank_zero and not due:
                    self._save_checkpoint(["last"])
                return "stopped", f"Stopped after {counted(round(epochs, 2), 'epoch')}. Resume continues there."
        return "finished", ""

    def _behind(self, epoch: int) -> str:
        """Return why a search ends this run early, which is also recorded; "" if it goes on."""
        accuracy = self.progress.best.accuracy if self.progress.best else 0.0
        before, pictures = epoch - self.config.validate_every, len(self.data.validation.labels)
        behind = reason_to_end(self.run, epoch, before, accuracy, pictures)
        if behind:
            write_json(self.run / PRUNED, {"reason": behind})
        return behind

    def _initialise_head_by_probe(self, recorder: Recorder) -> None:
        """Initialise a new head with a linear probe, and save that as epoch 0, so that no run ends below it.

        Source: Kumar et al. 2022, arXiv 2202.10054, section 3.4, where it is called LP-FT.
        """
        data, process, started = self.data, self.process, time.perf_counter()
        heads = [model.head for model in self.update.models.values()]
        new = [head for head in heads if isinstance(head, Linear) and not head.weight.any()]
        if len(new) < len(heads):  # the head was loaded from the checkpoint, which has the same classes
            return
        if process.is_rank_zero:
            order, tick = probe.choose_pictures(data.train.labels), recorder.probing
            features, labels = probe.features_of(
                self.update.model, data.train, data.normalise, order, process.device, tick
            )
            weight, bias = probe.fit(features, labels, len(data.classes))
            with torch.no_grad():
                new[0].weight.copy_(weight)
                new[0].bias.copy_(bias)
        with torch.no_grad():
            for tensor in (new[0].weight, new[0].bias):
                process.send(tensor)
            for head in new[1:]:
                head.load_state_dict(new[0].state_dict())
        results = self._evaluate(recorder)
        if process.is_rank_zero:
            self.progress.seconds += time.perf_counter() - started
            recorder.epoch(0, results, self.progress.better, self.progress.seconds)
            self._save_epoch(results[self.progress.better])

    def _train_epoch(self, recorder: Recorder, stop: threading.Event) -> bool:
        """Train the rest of the current epoch; returns False if stopped before its end."""
        process, data, progress = self.process, self.data, self.progress
        self.update.model.train()
        recorder.resume_clock()
        for images, labels in data.train.batches(self._epoch_order(), data.batch_size // process.world, process.device):
            recorder.begin_step()
            loss, share = self.update.train_step(progress.step, images, labels, recorder.note)
            progress.step += 1
            recorder.step(progress.step, loss, share)
            if progress.step % data.steps_per_epoch == 0:
                break
            if self._stop_requested(stop):
                recorder.flush()
                return False
            if process.is_rank_zero and time.monotonic() - self._saved > _SAVE_SECONDS:
                self._save_checkpoint([])
                recorder.resume_clock()
        return True

    def _epoch_order(self) -> torch.Tensor:
        """Return this process's training indices for the rest of the epoch; they depend on seed and epoch only."""
        data, generators = self.data, self.update.generators
        epoch, first = divmod(self.progress.step, data.steps_per_epoch)
        generators.seed(self.config.seed, -1 - epoch)  # negative, so that it differs from the seeds of all steps
        shuffle = torch.Generator().manual_seed(generators.host.getrandbits(63))
        if self.update.balance == "sampling":
            labels = data.train.labels.cpu()
            shares = class_weights(labels, len(data.classes))[labels]
            order = torch.multinomial(shares, len(labels), replacement=True, generator=shuffle)
        else:
            order = torch.randperm(len(data.train.labels), generator=shuffle)
        order = order[: data.steps_per_epoch * data.batch_size].view(data.steps_per_epoch, data.batch_size)
        return order[first:, self.process.rank :: self.process.world].flatten()

    def _stop_requested(self, stop: threading.Event) -> bool:
        """Whether a stop is requested; with several processes a collective call, so only every 20 steps."""
        if self.process.world > 1 and self.progress.step % self.data.steps_per_epoch % 20:
            return False
        return self.process.any(stop.is_set() or (self.run / "stop").exists())

    # --- Evaluation -------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> VisionTransformer:
        """The model to explain and save: the raw or the averaged one, whichever was better in the last validation."""
        return merged(self.update.models[self.progress.better])

    def _evaluate(self, recorder: Recorder) -> dict[str, Evaluation]:
        """Evaluate each model on the validation pictures, with all processes, and record which one is better."""
        models, results = self.update.models, {}
        for number, (name, model) in enumerate(models.items()):

            def tick(share: float, number: int = number) -> None:
                recorder.validating((number + share) / len(models))

            result = evaluate(
                model,
                self.data.validation,
                self.data.normalise,
                device=self.process.device,
                tick=tick,
                rank=self.process.rank,
                world=self.process.world,
                arithmetic=self.process.arithmetic,
            )
            if not math.isfinite(result.loss):
                raise Diverged(result.loss, self.progress.step)
            results[name] = result
        self.progress.better = max(results, key=lambda name: _merit(results[name]))
        return results

    def _run_test(self, recorder: Recorder) -> None:
        """Evaluate the best checkpoint on the test pictures, like `python -m vit evaluate`, for its model card."""
        best = load_checkpoint(self.state.path.parent / "best")
        best = calibrated(best, self.data.validation, self.data.normalise, self.process.device)
        model = best.model.to(self.process.device)
        by_class = ClassCounts(len(best.labels))
        with exact_products():
            test = evaluate(
                model,
                self.data.test,
                self.data.normalise,
                device=self.process.device,
                tick=recorder.testing,
                observe=by_class.add,
            )
        model.cpu()
        facts = {
            "balanced_accuracy": round(by_class.balanced(), 4),
            "accuracy": round(test.accuracy, 4),
            "accuracy_on": f"{test.pictures:,} test pictures, evaluated once, with the weights of the epoch selected "
            f"on {len(self.data.validation.labels):,} validation pictures",
        }
        record_facts(best, facts)
        self.progress.test = test
        split = self.data.test_split(self.config.data)
        recorder.test(self.progress.best_epoch, test, right=f"{int(by_class.bits, 2):x}", split=split)
        self._save_state()

    def _snapshot_writer(self) -> SnapshotWriter:
        """Choose a few validation pictures, to be explained after every validation."""
        pictures = self.data.validation
        chosen = choose(pictures.labels.cpu())
        images, labels = next(iter(pictures.batches(torch.as_tensor(chosen), len(chosen), torch.device("cpu"))))
        return SnapshotWriter(self.run / "probes", images, labels.tolist(), self.data.classes, self.data.preprocess)

    def _start_facts(self) -> dict[str, Any]:
        """Return the fields of the "start" record."""
        return {
            "total_steps": self.update.total_steps,
            "steps_per_epoch": self.data.steps_per_epoch,
            "batch_size": self.data.batch_size,
            "epochs": self.config.epochs,
            "lr": self.config.lr,
            "train_pictures": len(self.data.train.labels),
            "validation_pictures": len(self.data.validation.labels),
            "test_pictures": len(self.data.test.labels),
            "classes": list(self.data.classes),
            "params": sum(parameter.numel() for parameter in self.update.model.parameters()),
            "device": str(self.process.device),
            "hardware": hardware(self.process.device),
        }

    # --- Saving -----------------------------------------------------------------------------------------------

    def _save_epoch(self, result: Evaluation) -> None:
        """Save the checkpoints "last" and, if it is the best so far, "best"."""
        progress = self.progress
        names, epoch = ["last"], progress.step // self.data.steps_per_epoch
        if progress.best is None or result.accuracy > progress.best.accuracy:
            progress.improved_epoch = epoch
        if progress.best is None or _merit(result) > _merit(progress.best):
            progress.best, progress.best_epoch, progress.test = result, epoch, None
            names.append("best")
        self._save_checkpoint(names, result)

    def _save_checkpoint(self, names: list[str], result: Evaluation | None = None) -> None:
        """Save checkpoints, then the state: a kill in between repeats the epoch and writes the same checkpoints."""
        epochs = self.progress.step / self.data.steps_per_epoch
        on = f"{len(self.data.validation.labels):,} validation pictures, {CHOSE_EPOCH}"
        facts = {
            "data": self.data.name,
            **({"validation_accuracy": round(result.accuracy, 4), "validation_accuracy_on": on} if result else {}),
            "epoch": int(epochs) if epochs.is_integer() else round(epochs, 3),
            **({"weights": self.progress.better} if len(self.update.models) > 1 else {}),
            "seconds": round(self.progress.seconds, 1),
            "hardware": hardware(self.process.device),
            "recipe": self.config.model_dump(
                exclude_defaults=True, exclude={"data", "data_root", "device", "workers", "init_from", "track"}
            ),
            **({"started_from": checkpoint_name(self.config.init_from)} if self.config.init_from else {}),
        }
        for name in names:
            folder = self.state.path.parent / name
            save_checkpoint(folder, self.chosen, self.data.classes, self.data.preprocess, facts=facts)
        self._save_state()

    def _save_state(self) -> None:
        """Save everything that --resume needs."""
        self._saved = time.monotonic()
        progress = self.progress
        self.state.save(
            {
                "models": {name: model.state_dict() for name, model in self.update.models.items()},
                "better": progress.better,
                "optimizers": [optimizer.state_dict() for optimizer in self.update.optimizers],
                "step": progress.step,
                "seconds": progress.seconds,
                "parts": self.update.parts,
                "best": None if progress.best is None else tuple(progress.best),
                "best_epoch": progress.best_epoch,
                "improved_epoch": progress.improved_epoch,
                "test": None if progress.test is None else tuple(progress.test),
                "config": self.config.model_dump(),
                "data": self.data.fingerprint(),
            }
        )

    def load(self) -> None:
        """Load the saved state.

        Raises:
            InvalidRun: no state is intact, or an old version wrote it, which chose the best epoch on test pictures.
            InvalidConfig, InvalidDataset: it belongs to a run with other settings or other data.
        """
        saved, previous = self.state.read(self.process.device, self.process.is_rank_zero)
        if previous:
            self.notes.append(
                f"The last saved state was damaged or missing: the run went on from the one before it, of epoch "
                f"{saved['step'] / self.data.steps_per_epoch:.4g}."
            )
        check_same_run(saved, self.config, self.data.fingerprint(), self.run)
        try:
            for name, model in self.update.models.items():
                model.load_state_dict(saved["models"][name])
            for optimizer, values in zip(self.update.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(values)
            self.update.parts = saved["parts"]
            best, test = (None if saved[key] is None else Evaluation(*saved[key]) for key in ("best", "test"))
            self.progress = Progress(
                step=saved["step"],
                seconds=saved["seconds"],
                better=saved["better"],
                best=best,
                best_epoch=saved["best_epoch"],
                improved_epoch=saved["improved_epoch"],
                test=test,
            )
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise self.state.damaged() from error  # tensors or keys of another version
        if self.config.epochs > saved["config"]["epochs"]:  # the learning rate rises again, so patience begins anew
            self.progress.improved_epoch = self.progress.step // self.data.steps_per_epoch


def _merit(result: Evaluation) -> tuple[float, float]:
    """Sort key of an evaluation: accuracy, then low loss."""
    return result.accuracy, -result.loss


def hardware(device: torch.device) -> str:
    """Describe the device: name of the GPU, or number of threads and type of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads on {platform.processor() or platform.machine()}"
