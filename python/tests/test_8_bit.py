"""Adam with moments of 8 bits, next to bitsandbytes where that is installed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

import forebay

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402

import forebay.torch  # noqa: E402


class Net(nn.Module):  # type: ignore[misc]
    """Two matrices with codes, of which the last block of one has a part of its elements, and biases with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(48, 110)
        self.head = nn.Linear(110, 41)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.hidden(x)))


def data(seed: int) -> Tuple[Any, Any]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(16, 48, generator=random), torch.randint(41, (16,), generator=random)


def trained(optimizer: Any, steps: int = 3, **options: Any) -> Tuple[List[float], Dict[str, Any]]:
    torch.manual_seed(0)
    trainer = forebay.torch.Trainer(Net(), data(0)[0], loss=nn.CrossEntropyLoss(), optimizer=optimizer, **options)
    losses = [trainer.step(*data(step)).loss for step in range(steps)]
    return losses, {**trainer.parameters(), **trainer.state()}


def test_names_and_classes_are_one() -> None:
    by_name = trained("adamw8bit")
    by_class = trained(forebay.AdamW8bit())
    assert by_name[0] == by_class[0]
    limited = trained(forebay.AdamW8bit(), simulate_device="60%")
    assert limited[0] == by_class[0]
    for name, value in by_class[1].items():
        assert np.array_equal(value, limited[1][name]), name
    codes = [name for name in by_class[1] if name.endswith("_moment_codes")]
    assert len(codes) == 4 and all(by_class[1][name].dtype == np.uint8 for name in codes)
    assert forebay.Adam8bit(1e-3) != forebay.Adam(1e-3)
    with pytest.raises(forebay.InvalidArgument, match="adamw8bit"):
        trained("adam9bit")


def test_checkpoints_hold_codes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Net()

    def make() -> Any:
        return forebay.torch.Trainer(copy.deepcopy(module), data(0)[0], optimizer=forebay.Adam8bit(1e-2))

    whole = make()
    whole.step(*data(0))
    whole.save_checkpoint(tmp_path / "run")
    expected = whole.step(*data(1)).loss
    again = make()
    again.restore(tmp_path / "run")
    assert again.step(*data(1)).loss == expected
    for name, value in whole.state().items():
        assert np.array_equal(value, again.state()[name]), name


def bitsandbytes_step(module: Any, optimizer: Any, seed: int) -> float:
    x, labels = data(seed)
    optimizer.zero_grad()
    loss: Any = nn.functional.cross_entropy(module(x), labels)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@pytest.fixture
def bitsandbytes() -> Any:
    return pytest.importorskip("bitsandbytes", reason="there is no bitsandbytes")


def two_alike() -> Tuple[Net, Net]:
    torch.manual_seed(0)
    module = Net()
    return module, copy.deepcopy(module)


@pytest.mark.parametrize("kind", ["Adam8bit", "AdamW8bit"])
def test_bitsandbytes_makes_the_same_steps(bitsandbytes: Any, kind: str) -> None:
    module, theirs = two_alike()

    def optimizer(of: Any) -> Any:
        return getattr(bitsandbytes.optim, kind)(of.parameters(), lr=1e-3, weight_decay=0.01)

    ours, other = optimizer(module), optimizer(theirs)
    trainer = forebay.torch.Trainer(module, data(0)[0], loss=nn.CrossEntropyLoss(), optimizer=ours)
    for step in range(3):
        assert trainer.step(*data(step)).loss == pytest.approx(bitsandbytes_step(theirs, other, step), rel=1e-4)
    trainer.write_back()
    for own, their in zip(module.parameters(), theirs.parameters()):
        # A code that differs by one moves an element by a part of a step.
        assert torch.allclose(own, their, atol=1e-3) and float((own - their).abs().mean().detach()) < 1e-5
        left, right = ours.state[own], other.state[their]
        assert left["step"] == right["step"] == 3
        if own.numel() < 4096:
            assert torch.allclose(left["state1"], right["state1"], rtol=1e-3, atol=1e-7)
            continue
        for number in "12":
            assert torch.allclose(left[f"absmax{number}"], right[f"absmax{number}"], rtol=1e-3)
            distance = (left[f"state{number}"].int() - right[f"state{number}"].int()).abs()
            assert float((distance > 0).float().mean()) < 0.05 and float((distance > 1).float().mean()) < 0.005, distance.flatten().bincount()
    # bitsandbytes goes on, and Forebay after it.
    for run, its_optimizer in ((module, ours), (theirs, other)):
        bitsandbytes_step(run, its_optimizer, 3)
    again = forebay.torch.Trainer(module, data(0)[0], loss=nn.CrossEntropyLoss(), optimizer=ours)
    assert again.step(*data(4)).loss == pytest.approx(bitsandbytes_step(theirs, other, 4), rel=1e-3)
    assert again.step_count == 5
    refused = getattr(bitsandbytes.optim, kind)(module.parameters(), min_8bit_size=1024)
    with pytest.raises(forebay.InvalidArgument, match="min_8bit_size"):
        forebay.torch.Trainer(module, data(0)[0], optimizer=refused)


@pytest.mark.parametrize("kind", ["Adam8bit", "AdamW8bit"])
def test_bitsandbytes_goes_on_with_an_optimizer_of_ours(bitsandbytes: Any, kind: str) -> None:
    module, theirs = two_alike()
    decay = 0.01 if kind == "AdamW8bit" else 0.0
    trainer = forebay.torch.Trainer(
        module, data(0)[0], loss=nn.CrossEntropyLoss(), optimizer=getattr(forebay, kind)(1e-3, weight_decay=decay)
    )
    other = getattr(bitsandbytes.optim, kind)(theirs.parameters(), lr=1e-3, weight_decay=decay)
    for step in range(2):
        trainer.step(*data(step))
        bitsandbytes_step(theirs, other, step)
    trainer.write_back()
    made = trainer.make_optimizer()
    assert type(made) is type(other)
    for step in range(2, 4):
        assert bitsandbytes_step(module, made, step) == pytest.approx(bitsandbytes_step(theirs, other, step), rel=1e-3)
    for own, their in zip(module.parameters(), theirs.parameters()):
        assert made.state[own]["step"] == other.state[their]["step"] == 4
        assert float((own - their).abs().mean().detach()) < 1e-5


def test_bitsandbytes_has_no_decay_in_gradients() -> None:
    trainer = forebay.torch.Trainer(Net(), data(0)[0], optimizer=forebay.Adam8bit(1e-3, weight_decay=0.01))
    trainer.step(*data(0))
    with pytest.raises(forebay.InvalidArgument, match="AdamW8bit"):
        trainer.make_optimizer()
