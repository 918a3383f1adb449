"""Forward and backward pass as one CUDA graph: launching the kernels of a small model takes longer than their work."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

_WARM_UP = 3  # passes before the capture, which compile and select kernels


class GraphedGradients:
    """Computes the gradients of batches of one shape by replaying a CUDA graph.

    Args:
        gradients: accumulates the gradient of a batch's mean loss in the parameters, and returns the loss, as
            `TrainStep.gradients`. It must not synchronise the device.
        parameters: of the model.

    Source: docs.pytorch.org/docs/stable/notes/cuda.html, section Whole-network capture.
    """

    def __init__(self, gradients: Callable[[Tensor, Tensor], Tensor], parameters: Iterable[nn.Parameter]):
        self._compute = gradients
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, inputs: Tensor, targets: Tensor) -> None:
        """Capture the graph with the shapes of a batch, unless it exists. It draws random numbers, so seed afterwards.

        Args:
            inputs, targets: as of `TrainStep.gradients`.
        """
        if self._graph is not None:
            return
        self._inputs, self._targets = inputs.clone(), targets.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._clear_gradients()
                self._compute(self._inputs, self._targets)
        torch.cuda.current_stream().wait_stream(stream)
        self._clear_gradients()  # so that the captured pass allocates them in the graph's memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._loss = self._compute(self._inputs, self._targets)
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._graph = graph

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Set the parameters' gradients to those of a batch, and return its loss, on the device."""
        assert self._graph is not None, "capture() comes first"
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._loss.clone()

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
