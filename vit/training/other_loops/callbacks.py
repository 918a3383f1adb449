"""`RunWriter` as a callback for Lightning and transformers' Trainer; each library is imported only by its own function.

The callbacks take epochs, steps and learning rate from the library's trainer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vit.errors import InvalidConfig
from vit.training.other_loops.run_writer import RunWriter

if TYPE_CHECKING:
    from torch import nn


def lightning_callback(
    *, val_loss: str = "val_loss", val_accuracy: str = "val_accuracy", submodule: str = "", **arguments: Any
) -> Any:
    """Return a callback for `Trainer(callbacks=[...])` of `lightning` or `pytorch_lightning`, whichever is imported.

    Args:
        val_loss, val_accuracy: names under which the LightningModule logs them.
        submodule: path of the Vision Transformer in it, such as "student.backbone"; "" to search for it.
        arguments: arguments of `RunWriter`; `epochs` and `steps_per_epoch` only if the Trainer does not know them.
    """
    package = "pytorch_lightning" if "lightning" not in sys.modules and "pytorch_lightning" in sys.modules else ""
    base: Any = import_module(f"{package or 'lightning.pytorch'}.callbacks").Callback

    class RunCallback(base):  # type: ignore[misc]
        writer: RunWriter | None = None

        def on_train_start(self, trainer: Any, module: nn.Module) -> None:
            known: dict[str, Any] = {"loop": "Lightning"}
            if math.isfinite(trainer.num_training_batches):
                steps = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
                endless = (trainer.max_epochs or -1) < 1
                epochs = math.ceil(trainer.max_steps / steps) if endless else trainer.max_epochs
                known |= {"epochs": epochs, "steps_per_epoch": steps}
            module.get_submodule(submodule)  # raises AttributeError before training if it does not exist
            self.writer = _open_writer(known | arguments)
            self.step, self.validated = trainer.global_step, False

        def on_train_batch_end(self, trainer: Any, module: nn.Module, outputs: Any, *_: Any) -> None:
            if self.writer and trainer.global_step > self.step:  # unchanged during gradient accumulation
                self.step = trainer.global_step
                loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
                rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
                if loss is not None:
                    self.writer.log_step(self.step, loss=loss, lr=max(rates, default=None))

        def on_validation_end(self, trainer: Any, module: nn.Module) -> None:
            self.validated = not trainer.sanity_checking

        def on_train_epoch_end(self, trainer: Any, module: nn.Module) -> None:
            if self.writer:
                measured = {"val_loss": val_loss, "val_accuracy": val_accuracy} if self.validated else {}
                values = {name: trainer.callback_metrics.get(logged) for name, logged in measured.items()}
                self.validated = False  # do not record a stale value in the next epoch
                self.writer.log_epoch(trainer.current_epoch + 1, module.get_submodule(submodule), **values)

        def on_train_end(self, trainer: Any, module: nn.Module) -> None:
            if self.writer:
                self.writer.close()

        def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
            if self.writer:
                self.writer.__exit__(type(exception), exception, None)

    return RunCallback()


def _open_writer(arguments: dict[str, Any]) -> RunWriter:
    """Open a writer when training begins.

    Raises:
        InvalidConfig: neither the trainer nor the caller gives the length of the training.
    """
    if missing := [name for name in ("epochs", "steps_per_epoch") if name not in arguments]:
        raise InvalidConfig(f"The Trainer does not know {' and '.join(missing)}. Give them to the callback.")
    return RunWriter(**arguments)


def transformers_callback(*, val_accuracy: str = "eval_accuracy", **arguments: Any) -> Any:
    """Return a callback for `Trainer(callbacks=[...])` of transformers.

    Args:
        val_accuracy: key of the accuracy in the evaluation's metrics, with its prefix "eval_".
        arguments: arguments of `RunWriter`; `epochs` and `steps_per_epoch` only if the Trainer does not know them.
    """
    base: Any = import_module("transformers").TrainerCallback

    class RunCallback(base):  # type: ignore[misc]
        writer: RunWriter | None = None
        due = False  # whether an epoch has ended that is not logged yet

        def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
            batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            known: dict[str, Any] = {"loop": "transformers", "batch_size": batch}
            with suppress(TypeError):  # an IterableDataset has no length
                steps = math.ceil(len(train_dataloader) / args.gradient_accumulation_steps)
                known |= {"epochs": math.ceil(state.max_steps / steps), "steps_per_epoch": steps}
            self.writer = _open_writer(known | arguments)
            self.measured: dict[str, float] = {}

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.writer:
                self.writer.heartbeat()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            if self.writer and logs and "loss" in logs:
                self.writer.log_step(state.global_step, loss=logs["loss"], lr=logs.get("learning_rate"))

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any
        ) -> None:
            metrics = metrics or {}
            named = {"val_loss": metrics.get("eval_loss"), "val_accuracy": metrics.get(val_accuracy)}
            self.measured = {name: value for name, value in named.items() if value is not None}
            self.end_epoch(state, **_)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.due = True
            if not control.should_evaluate:  # otherwise `on_evaluate` logs the epoch
                self.end_epoch(state, **_)

        def end_epoch(self, state: Any, model: nn.Module | None = None, **_: Any) -> None:
            if self.writer and self.due:
                self.writer.log_epoch(round(state.epoch), model, **self.measured)
                self.due, self.measured = False, {}

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.writer:
                self.writer.close()

    return RunCallback()
