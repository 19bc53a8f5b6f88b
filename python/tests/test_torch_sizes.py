"""Batches of other sizes than the examples, such as the last one of a data set."""

from __future__ import annotations

import copy
import math
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402


class Function(nn.Module):
    """A linear layer and a function of its result and its input."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer(x), x)


def batch(count: int) -> Any:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 3


def checked(y: Any, number: Any) -> Any:
    """Returns the number if the sizes are as they should be."""
    torch._assert(y.dim() == 2, f"expected samples and classes, but got {y.shape} and {y.shape[0]!r}")
    if y.shape[1] != 3:
        raise ValueError(f"there are not three classes of {y.shape[0]} samples")
    return number


#: Functions whose export is for all batch sizes.
OPEN = {
    "size": lambda y, x: y / x.shape[0],
    "positions": lambda y, x: y * torch.arange(x.shape[0])[:, None],
    "slice": lambda y, x: torch.cat([y, y])[: x.shape[0]],
    "matrix": lambda y, x: torch.ones(x.shape[0], x.shape[0]).tril() @ y / 5,
    "other sizes": lambda y, x: checked(y, y / len(y[0])) + sum(range(int(x.shape[1]))),
    "halves": lambda y, x: torch.cat([part * (place + 1) for place, part in enumerate(y.chunk(2))]),
    "pairs": lambda y, x: y.repeat(2, 1).view(x.shape[0], 2, 3).flip(1).reshape(-1, 3)[: x.shape[0]],
    "of the newer exporter": lambda y, x: y * y.quantile(0.3, 1, keepdim=True) + torch.fft.rfft(x).abs()[:, :3],
    "always the same decision": lambda y, x: y * 2 if x.shape[0] > 0 else y,
}
#: Functions that use the batch size as a Python number.
CLOSED = {
    "length": lambda y, x: y / len(x),
    "number": lambda y, x: y * float(x.shape[0]),
    "logarithm": lambda y, x: y * math.log(x.shape[0]),
    "decision": lambda y, x: y if x.shape[0] > 6 else y * 3,
    "range": lambda y, x: sum(y * number for number in range(x.shape[0])),
    "median of the batch": lambda y, x: y * y.median(),
    "products in the batch": lambda y, x: y.cumprod(0),
    "loop": lambda y, x: torch.stack([row * 2 for row in y]),
}


#: Functions in whose export the batch size is a number that PyTorch does not say it is.
WRITTEN = {
    "roll": lambda y, x: y + x.roll(x.shape[0] // 4, 0)[:, :3],
    "parts": lambda y, x: torch.cat([part * (place + 1) for place, part in enumerate(y.split(4))]),
    "rows": lambda y, x: torch.stack([row * (place + 1) for place, row in enumerate(y.unbind())]),
    "list": lambda y, x: y * torch.tensor([x.shape[0] * 1.0]),
    "index": lambda y, x: y + y[torch.tensor([x.shape[0] - 1, 0])].sum(0),
    "window": lambda y, x: y + functional.max_pool1d(y.t()[None], x.shape[0] // 2)[0].t().sum(0),
    "adaptive window": lambda y, x: y + functional.adaptive_avg_pool1d(y.t()[None], 2)[0].t().sum(0),
}


def trainer_of(function: Callable[[Any, Any], Any], **options: Any) -> Any:
    torch.manual_seed(0)
    module = Function(function)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return module, optimizer, forebay.torch.Trainer(module, batch(8)[0], nn.CrossEntropyLoss(), optimizer, **options)


@pytest.mark.parametrize("name", OPEN)
def test_other_batch_sizes(name: str) -> None:
    module, _, trainer = trainer_of(OPEN[name])
    theirs = copy.deepcopy(module)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for count in (8, 4, 12, 1):
        x, labels = batch(count)
        loss = functional.cross_entropy(theirs(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step(x, labels).loss == pytest.approx(float(loss.detach()), rel=1e-4)


@pytest.mark.parametrize("name", CLOSED)
def test_numbers_of_one_batch_size(name: str) -> None:
    module, _, trainer = trainer_of(CLOSED[name])
    x, labels = batch(8)
    expected = float(functional.cross_entropy(module(x), labels).detach())
    assert trainer.evaluate(x, labels).loss == pytest.approx(expected, rel=1e-4)
    assert trainer.step(x, labels).loss == pytest.approx(expected, rel=1e-4)
    for run in (trainer.step, trainer.evaluate):
        with pytest.raises(forebay.InvalidArgument, match="a batch of 4 samples is not one of 8, .*uses it as a Python number in .*test_torch_sizes.py"):
            run(*batch(4))
    with pytest.raises(forebay.InvalidArgument, match="a batch of 16 samples is not one of 8"):
        trainer_of(CLOSED[name], batch_size=16)
    # A compiled module has a plan for each size.
    compiled = forebay.torch.compile(module)
    for count in (8, 4):
        assert torch.allclose(compiled(batch(count)[0]), module(batch(count)[0]), atol=1e-4)


@pytest.mark.parametrize("name", WRITTEN)
def test_exports_that_have_the_number(name: str) -> None:
    module, _, trainer = trainer_of(WRITTEN[name])
    x, labels = batch(8)
    assert trainer.step(x, labels).loss == pytest.approx(float(functional.cross_entropy(module(x), labels).detach()), rel=1e-4)
    for count in (4, 16):
        with pytest.raises(forebay.InvalidArgument, match="is not one of 8, .* for 4 samples, the export has another node '"):
            trainer.step(*batch(count))


def test_losses_that_divide_by_the_number_of_labels() -> None:
    def trainer(loss: Callable[[Any, Any], Any], **options: Any) -> Any:
        module = Function(lambda y, x: y)
        return module, forebay.torch.Trainer(module, batch(8)[0], loss, "sgd", learning_rate=0.1, example_labels=batch(8)[1], **options)

    def summed(outputs: Any, labels: Any) -> Any:
        return functional.cross_entropy(outputs, labels, reduction="sum")

    module, opened = trainer(lambda outputs, labels: summed(outputs, labels) / labels.shape[0])
    x, labels = batch(5)
    assert opened.step(x, labels).loss == pytest.approx(float(functional.cross_entropy(module(x), labels).detach()), rel=1e-4)
    _, closed = trainer(lambda outputs, labels: summed(outputs, labels) / len(labels), accumulate=2)
    with pytest.raises(forebay.InvalidArgument, match=r"x.shape\[0\], unlike len\(x\)"):
        closed.step(x, labels)
    # Two parts.
    closed.step(*batch(16))


def test_exports_of_the_newer_exporter_can_be_for_one_batch_size() -> None:
    module, _, trainer = trainer_of(lambda y, x: y * y.nanquantile(0.3) / x.shape[0])
    x, labels = batch(8)
    assert trainer.step(x, labels).loss == pytest.approx(float(functional.cross_entropy(module(x), labels).detach()), rel=1e-4)
    with pytest.raises(forebay.InvalidArgument, match="a batch of 4 samples is not one of 8, .*PyTorch's newer exporter"):
        trainer.step(*batch(4))
