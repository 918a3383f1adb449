"""The pretended device refuses what a GPU refuses, accepts what it accepts, and counts waits."""

import pretended
import pytest
import torch


def test_tensors_of_two_devices_are_refused() -> None:
    here, there = torch.ones(3, device="pretend"), torch.ones(3)
    with pytest.raises(RuntimeError, match="device"):
        here + there
    with pytest.raises(RuntimeError, match="device"):
        torch.where(there > 0, here, here)


def test_generator_of_the_other_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.rand(3, device="pretend", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="device"):
        torch.rand(3, generator=torch.Generator("pretend"))


def test_numbers_and_indices_of_the_host_are_accepted_and_reading_values_counts() -> None:
    here = torch.ones(3, device="pretend")
    with pretended.count_waits() as waits:
        accepted = here + torch.tensor(2.0) + here[torch.tensor([0, 2, 1])]
        assert not waits
        assert accepted.tolist() == [4.0, 4.0, 4.0] and bool((here > 0).all())
        assert sum(waits.values()) == 2
