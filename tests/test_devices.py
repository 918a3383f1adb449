"""GPUs as NVIDIA's library reports them, in torch's order; a table replaces the library."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vit.devices import list_devices, memory, restored_device, visible

GB = 1 << 30


class Nvml(SimpleNamespace):
    """The functions of `pynvml` in use, over a list of (PCI address, identity, name, free memory, use)."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus: tuple[str, str, str, int, int | None], driver: bool = True):
        super().__init__(gpus=gpus, driver=driver)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple:
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: tuple) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu[0].encode())

    def nvmlDeviceGetUUID(self, gpu: tuple) -> str:
        return gpu[1]

    def nvmlDeviceGetName(self, gpu: tuple) -> bytes:
        return gpu[2].encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: tuple) -> SimpleNamespace:
        return SimpleNamespace(total=80 * GB, free=gpu[3])

    def nvmlDeviceGetUtilizationRates(self, gpu: tuple) -> SimpleNamespace:
        if gpu[4] is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=gpu[4])


SMALL = ("00000000:C1:00.0", "GPU-bb", "A slice", 9 * GB, None)
LARGE = ("00000000:21:00.0", "GPU-aa", "NVIDIA H200", 70 * GB, 25)


def test_gpus_are_numbered_by_pci_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(SMALL, LARGE))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu, first, second = list_devices()
    assert cpu.name == "cpu" and cpu.total_memory >= cpu.free_memory > 0
    assert (first.name, first.title, first.free_memory, first.use) == ("cuda:0", "NVIDIA H200", 70 * GB, 0.25)
    assert (second.name, second.use) == ("cuda:1", None)


def test_hidden_gpus_are_not_offered_and_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(SMALL, LARGE))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [device.name for device in list_devices()] == ["cpu", "cuda:1"]


def test_only_the_cpu_is_offered_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(driver=False))
    assert [device.name for device in list_devices()] == ["cpu"]


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [("", []), ("-1", []), ("0,-1,1", [0]), ("GPU-b,GPU-a", [0, 1]), ("GPU-", []), ("0,0", [0]), (" 1 ", [1])],
)
def test_visible_devices_are_parsed_as_cuda_does(setting: str, numbers: list[int]) -> None:
    assert visible(setting, ["GPU-aa", "GPU-bb"]) == numbers


def test_memory_of_this_machine_is_known() -> None:
    total, free = memory()
    assert 0 < free <= total


def test_memory_is_unknown_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training-only machine has just torch and pydantic."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert memory() == (0, 0)
    assert list_devices()[0].name == "cpu"


def test_moved_model_returns_even_after_an_error() -> None:
    moved: list[object] = []

    class Spy(nn.Linear):
        def to(self, device: object) -> nn.Module:
            moved.append(device)
            return self

    model = Spy(2, 2)
    with pytest.raises(KeyError), restored_device(model):
        model.to("cuda")
        raise KeyError
    assert moved == ["cuda", torch.device("cpu")]
