"""GPUs as NVIDIA's library reports them, in torch's order; a table replaces the library. Lost GPUs, and slices."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vit.devices import list_devices, memory, restored_device, visibility, visible

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

    def nvmlDeviceGetMigMode(self, gpu: tuple) -> tuple[int, int]:
        if gpu[2] == "GeForce":
            raise self.NVMLError("Not Supported")
        return (int(gpu is SLICED),) * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: tuple) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: tuple, index: int) -> tuple:
        if index not in (0, 2):
            raise self.NVMLError("Not Found")
        return "", f"MIG-{index}", f"{gpu[2]} MIG 1g.10gb", 9 * GB, None

    def nvmlDeviceGetPciInfo(self, gpu: tuple) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu[0].encode())

    def nvmlDeviceGetUUID(self, gpu: tuple) -> str:
        return gpu[1]

    def nvmlDeviceGetName(self, gpu: tuple) -> bytes:
        return gpu[2].encode()

    def nvmlDeviceGetMemoryInfo(self, gpu: tuple) -> SimpleNamespace:
        if gpu is LOST:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(total=80 * GB, free=gpu[3])

    def nvmlDeviceGetUtilizationRates(self, gpu: tuple) -> SimpleNamespace:
        if gpu[4] is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=gpu[4])


SMALL = ("00000000:C1:00.0", "GPU-bb", "A slice", 9 * GB, None)
LOST = ("00000000:41:00.0", "GPU-cc", "NVIDIA H200", 0, 0)
SLICED = ("00000000:61:00.0", "GPU-dd", "NVIDIA H100", 0, 0)
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


def test_lost_gpu_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(LOST, SMALL, LARGE))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [device.name for device in list_devices()] == ["cpu", "cuda:0", "cuda:2"]


def test_slices_are_offered_in_place_of_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(SLICED, LARGE))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _, whole, first, second = list_devices()
    assert (whole.name, whole.cuda_id) == ("cuda:0", "0")
    assert (first.title, first.cuda_id, first.free_memory) == ("NVIDIA H100 MIG 1g.10gb", "MIG-0", 9 * GB)
    assert visibility([second.name])["CUDA_VISIBLE_DEVICES"] == second.cuda_id == "MIG-2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2")
    assert [device.cuda_id for device in list_devices()[1:]] == ["MIG-2"]
    assert visibility(["cpu"]) == {}


def test_eight_gpus_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = [(f"00000000:{place:02X}:00.0", f"GPU-{place}", "GeForce", 8 * GB, 100) for place in range(8)]
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*reversed(eight)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [(device.name, device.use) for device in list_devices()[1:]] == [(f"cuda:{i}", 1.0) for i in range(8)]
    assert visibility(["cuda:5", "cuda:1"])["CUDA_VISIBLE_DEVICES"] == "5,1"


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
