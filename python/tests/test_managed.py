"""Tensors that are larger than the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay

ROWS, COLUMNS = 8, 1 << 16


@pytest.fixture
def memory() -> Any:
    with forebay.Context(record=True) as context:
        yield forebay.managed.Memory("1MiB", "touch", unit_size="128KiB")
        context.check()


def filled(memory: forebay.managed.Memory) -> Any:
    numbers = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    tensor = forebay.managed.empty((ROWS, COLUMNS), memory=memory)
    tensor[:] = numbers
    return tensor, numbers


def test_twice_as_much_as_the_device_holds(memory: Any) -> None:
    tensor, numbers = filled(memory)
    assert tensor.nbytes == 2 << 20 > memory.device_memory == 1 << 20
    for _ in range(2):
        for row in range(ROWS):
            assert tensor[row].max().item() == numbers[row].max()
    statistics = memory.statistics()
    assert statistics.evictions > 0 and statistics.faults > 0 and statistics.fetched_bytes > 0
    assert 0 < tensor.resident_bytes <= 1 << 20 and statistics.resident_bytes <= 1 << 20
    assert np.array_equal(tensor.numpy(), numbers)


def test_views_are_the_same_bytes(memory: Any) -> None:
    tensor, numbers = filled(memory)
    tensor[2].fill_(3)
    numbers[2] = 3
    tensor[4:6] = 2 * numbers[4:6]
    numbers[4:6] *= 2
    tensor[7] = 1.5
    numbers[7] = 1.5
    for key in (2, -1, slice(4, 6), slice(0, 4, 2), (3, slice(10, 20)), (slice(1, 3), 5), (None, 1)[1:]):
        assert np.array_equal(tensor[key].numpy(), numbers[key]), key
    assert np.array_equal(tensor.numpy(), numbers)
    with pytest.raises(forebay.InvalidArgument, match="step 1"):
        tensor[::2] = numbers[::2]
    with pytest.raises(IndexError):
        tensor[8]
    with pytest.raises((forebay.Error, ValueError)):
        tensor[0] = np.zeros(3, np.float32)


def test_rows_may_begin_anywhere(memory: Any) -> None:
    numbers = np.arange(7 * 33, dtype=np.float32).reshape(7, 33)
    tensor = forebay.managed.empty((7, 33), memory=memory).copy_(numbers)
    for row in range(7):
        assert np.array_equal(tensor[row].numpy(), numbers[row])
    assert np.array_equal(tensor[2:5, 3].numpy(), numbers[2:5, 3])
    assert np.array_equal((tensor + 1).numpy(), numbers + 1), "what fits the device is a tensor like others"
    assert np.array_equal(tensor[[6, 0]].numpy(), numbers[[6, 0]])
    small = forebay.managed.empty(5, "int8", memory=memory).fill_(-3)
    assert small.tolist() == [-3] * 5 and small[1:3].tolist() == [-3, -3]
    assert forebay.managed.empty((3, 2), "int64", memory=memory).fill_(-9).tolist() == [[-9, -9]] * 3
    assert forebay.managed.empty((3, 2), "float64", memory=memory).fill_(0.1).tolist() == [[0.1, 0.1]] * 3


def test_one_row_and_no_dimensions(memory: Any) -> None:
    one = forebay.managed.empty((1, 4), memory=memory)
    one[0] = 5
    one[-1] = one[0] + 1
    assert one.tolist() == [[6.0] * 4]
    for tensor in (one, forebay.managed.empty((2, 4), memory=memory)):
        for key, error in [(2, IndexError), ("foo", forebay.InvalidArgument), (None, forebay.InvalidArgument), ((), forebay.InvalidArgument)]:
            with pytest.raises(error):
                tensor[key] = 7
    assert one.tolist() == [[6.0] * 4]
    assert forebay.managed.empty((), "int64", memory=memory).fill_(3).item() == 3
    scalar = forebay.managed.empty((), memory=memory).copy_(2.5)
    assert scalar.item() == 2.5
    scalar[...] = 1.5
    assert scalar.item() == 1.5 and scalar.fill_(0.5).item() == 0.5
    scalar[()] = 4.5
    assert scalar.item() == 4.5


def test_the_whole_of_what_does_not_fit_is_refused(memory: Any) -> None:
    tensor, _ = filled(memory)
    with pytest.raises(forebay.Error, match="1048576"):
        tensor.exp()
    assert tensor[0].exp().shape == (COLUMNS,)


def test_prefetch_and_discard(memory: Any) -> None:
    tensor, numbers = filled(memory)
    tensor.prefetch(slice(0, 2))
    memory.synchronize()
    assert tensor.resident_bytes >= 2 * COLUMNS * 4 and memory.statistics().prefetches > 0
    before = memory.statistics().faults
    assert tensor[1].sum().item() == pytest.approx(numbers[1].sum(), rel=1e-3, abs=1e-2)
    assert memory.statistics().faults == before, "it was there"
    tensor.prefetch(to="host")
    memory.synchronize()
    assert np.array_equal(tensor[0].numpy(), numbers[0])
    copied = memory.statistics().copied_back_bytes
    tensor[0].fill_(1)
    tensor.discard(0)
    tensor.prefetch(slice(1, 5))
    memory.synchronize()
    assert memory.statistics().copied_back_bytes == copied, "what is discarded is not copied back"
    assert tensor.cancel_prefetch() >= 0
    with pytest.raises(forebay.InvalidArgument, match="moon"):
        tensor.prefetch(to="moon")


def test_advice(memory: Any) -> None:
    tensor, _ = filled(memory)
    tensor.advise("preferred_location", "device", rows=0)
    tensor.advise("accessed_by", "host", rows=slice(1, 3))
    tensor.advise("read_mostly")
    tensor.withdraw_advice("read_mostly")
    with pytest.raises(forebay.InvalidArgument, match="read_mostly"):
        tensor.advise("hardly")


def test_what_is_planned_leaves_last() -> None:
    with forebay.Context():
        memory = forebay.managed.Memory("256KiB", "planned", unit_size="64KiB")
        tensors = [memory.empty(1 << 14) for _ in range(5)]
        for tensor in tensors[:4]:
            tensor.fill_(1)
        memory.set_next_uses([[tensors[4]], [tensors[0]], [tensors[1]], [tensors[3]]])
        tensors[4].fill_(2)
        forebay.synchronize()
        assert [tensor.resident_bytes > 0 for tensor in tensors] == [True, True, False, True, True]


def test_files_take_what_the_host_may_not(tmp_path: Path) -> None:
    with forebay.Context():
        small = forebay.managed.Memory("256KiB", host_memory="256KiB", unit_size="64KiB")
        with pytest.raises(forebay.OutOfBudget, match="host") as error:
            small.empty(1 << 18).fill_(1)
        assert error.value.budget == "host_memory"
        memory = forebay.managed.Memory("256KiB", host_memory="256KiB", unit_size="64KiB", spill_dir=tmp_path)
        with memory:
            tensor = forebay.managed.empty(1 << 18)
            tensor[:] = np.arange(1 << 18, dtype=np.float32)
        assert memory.statistics().file_bytes > 0
        assert np.array_equal(tensor.numpy(), np.arange(1 << 18, dtype=np.float32))


def test_a_context_keeps_a_memory() -> None:
    with forebay.Context(device_memory="1MiB") as context:
        one, other = forebay.managed.empty((4, 4)), forebay.managed.empty(3, "int32", context=context)
        assert one.memory is other.memory and one.memory.device_memory == 512 << 10 and one.memory.policy == "driver"
    nothing = forebay.managed.empty((0, 4))
    nothing[...] = np.zeros((0, 4))
    nothing.prefetch()
    assert nothing[3:].shape == (0, 4) and nothing.sum().item() == 0 and one[9:].shape == one[3:1].shape == (0, 4)
    with pytest.raises(forebay.Error, match="unit"):
        forebay.managed.Memory("1KiB")
    with pytest.raises(forebay.InvalidArgument, match="fifo"):
        forebay.managed.Memory("1MiB", "fifo")


def test_the_probe_finds_what_was_measured_on_a_gpu() -> None:
    findings = forebay.managed.probe(chunk_size="128KiB", chunk_count=6)
    assert len(findings) == 11 and all(finding.is_as_measured for finding in findings)
    assert findings[1].action == "prefetch chunk 0 to the device" and findings[1].evicted == [1]
    assert [touch.resident for touch in findings[1].touches] == [True, False, True]
    with pytest.raises(forebay.InvalidArgument, match="chunks"):
        forebay.managed.probe(chunk_count=2)


def test_shapes_and_rows_that_make_no_sense() -> None:
    for shape in (4.5, "ab", (2, 1.5)):
        with pytest.raises(forebay.InvalidArgument, match="not a shape"):
            forebay.managed.empty(shape)
    with pytest.raises(forebay.InvalidArgument, match="address space"):
        forebay.managed.empty((1 << 40, 1 << 40))
    with pytest.raises(IndexError, match="row 17 is out of range for 4 rows"):
        forebay.managed.empty((4, 4)).prefetch(17)
