"""What modules take and give: arguments by name, values that are no tensors, and ways that hang on numbers."""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional, Tuple

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")

import forebay  # noqa: E402
import forebay.torch  # noqa: E402
from torch import nn  # noqa: E402

X, Y = torch.randn(6, 4), torch.randn(6, 5)
LABELS = torch.arange(6) % 3


class Scaled(nn.Module):
    """Takes a tensor and arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: Any = 1.0, bias: Optional[torch.Tensor] = None, squared: bool = False) -> torch.Tensor:
        y = self.layer(x) * scale
        y = y if bias is None else y + bias
        return y.square() if squared else y


class Nested(nn.Module):
    """Takes and gives tensors in dictionaries and tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, given: Dict[str, Any], parts: Tuple[int, str] = (1, "mean")) -> Dict[str, Any]:
        one, other = self.one(given["x"]), self.other(given["rest"][0])
        return {"sum": one + other * parts[0], "apart": (one, getattr(other, parts[1])(0))}


class Deciding(nn.Module):
    """Takes one of two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.layer(x)
        return -self.layer(x)


class Sized(nn.Module):
    """Decides by sizes, which is no matter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[1] // 2):
            x = x + 1 if x.size(0) > 3 else x - 1
        return self.layer(x.reshape(len(x), int(x.numel() / len(x))))


def same(one: Any, other: Any) -> None:
    """Whether two results are arranged alike, with the same numbers."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        same(tuple(one.values()), tuple(other.values()))
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other):
            same(left, right)
    else:
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    "named",
    [
        {"scale": torch.tensor(2.0)},
        {"scale": 3},
        {"scale": torch.full((3,), 0.5), "bias": torch.ones(3)},
        {"bias": torch.ones(3), "squared": True},
        {},
    ],
    ids=["a tensor", "a number", "two tensors", "a flag", "none"],
)
def test_arguments_by_name(named: Dict[str, Any]) -> None:
    module = Scaled()
    compiled = forebay.torch.compile(copy.deepcopy(module))
    expected = module(X, **named)
    found = compiled(X, **named)
    same(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    for one, other in zip(compiled.parameters(), module.parameters()):
        assert torch.allclose(one.grad, other.grad, atol=1e-4)
    # Other values are another plan.
    same(compiled(X, scale=7.0), module(X, scale=7.0))
    same(compiled(X, scale=8.0), module(X, scale=8.0))


def test_arguments_and_results_are_arranged_as_the_module_does() -> None:
    module = Nested()
    compiled = forebay.torch.compile(copy.deepcopy(module))
    given = {"x": X, "rest": [Y]}
    same(compiled(given), module(given))
    same(compiled(given, parts=(2, "sum")), module(given, parts=(2, "sum")))
    with pytest.raises(forebay.InvalidArgument, match="not object"):
        compiled({"x": object(), "rest": [Y]})


def test_a_trainer_takes_inputs_by_name() -> None:
    def make() -> Tuple[nn.Module, Any]:
        torch.manual_seed(3)
        module = Scaled()
        return module, torch.optim.SGD(module.parameters(), lr=0.1)

    module, optimizer = make()
    given = {"bias": torch.ones(6, 3), "x": X}
    trainer = forebay.torch.Trainer(module, given, nn.CrossEntropyLoss(), optimizer)
    for _ in range(3):
        loss = trainer.step(given, LABELS).loss
    trainer.write_back()
    theirs, stepping = make()
    for _ in range(3):
        stepping.zero_grad()
        expected = nn.functional.cross_entropy(theirs(**given), LABELS)
        expected.backward()
        stepping.step()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    same(tuple(module.parameters()), tuple(theirs.parameters()))
    assert forebay.torch.plan(Scaled(), given).least > 0
    with pytest.raises(forebay.InvalidArgument, match="'squared' is bool"):
        forebay.torch.Trainer(Scaled(), {"x": X, "squared": True}, nn.CrossEntropyLoss())


def test_a_way_that_hangs_on_numbers_is_refused_and_one_that_hangs_on_sizes_is_not() -> None:
    refused = "Python number in forward, .*test_torch_arguments.py, line [0-9]+ .`if x.sum.. > 0:`"
    with pytest.raises(forebay.Error, match=refused):
        forebay.torch.compile(Deciding())(X)
    with pytest.raises(forebay.Error, match=refused):
        forebay.torch.Trainer(Deciding(), X, nn.CrossEntropyLoss())
    with pytest.raises(forebay.Error, match=refused):
        forebay.torch.plan(Deciding(), X)
    assert bool(torch.ones(1) > 0) and "__bool__" not in vars(torch.Tensor), "PyTorch is as before"
    module = Sized()
    compiled = forebay.torch.compile(copy.deepcopy(module))
    for rows in (6, 2):
        same(compiled(X[:rows]), module(X[:rows]))


class Two(nn.Module):
    """Gives two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:
        return {"one": self.one(x), "other": self.other(x)}


def test_losses_of_several_outputs_are_functions() -> None:
    with pytest.raises(forebay.InvalidArgument, match="returns 2 tensors .dict., but this loss accepts only one"):
        forebay.torch.Trainer(Two(), X, nn.CrossEntropyLoss())

    def loss(outputs: Dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["one"], labels) + outputs["other"].square().mean()

    module = Two()
    expected = loss(module(X), LABELS).item()
    trainer = forebay.torch.Trainer(module, X, loss, torch.optim.SGD(module.parameters(), lr=0.1), example_labels=LABELS)
    assert trainer.step((X,), LABELS).loss == pytest.approx(expected, abs=1e-5)


class Doubled(nn.CrossEntropyLoss):
    """Computes something other than its base class."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input, target)


class Weighted(nn.CrossEntropyLoss):
    """Computes what its base class does."""

    def __init__(self) -> None:
        super().__init__(label_smoothing=0.1)


class Decayed(torch.optim.Adam):
    """Steps that are not Adam's."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_subclasses_are_not_taken_for_their_base_class() -> None:
    module = nn.Linear(4, 3)

    def loss_of(loss: nn.Module) -> float:
        own = copy.deepcopy(module)
        trainer = forebay.torch.Trainer(own, X, loss, torch.optim.SGD(own.parameters(), lr=0.1), example_labels=LABELS)
        return float(trainer.step(X, LABELS).loss)

    assert loss_of(Doubled()) == pytest.approx(2 * loss_of(nn.CrossEntropyLoss()), abs=1e-5)
    with pytest.raises(forebay.InvalidArgument, match="pass example_labels"):
        forebay.torch.Trainer(copy.deepcopy(module), X, Doubled())
    # One that only changes defaults needs no example_labels.
    trainer = forebay.torch.Trainer(copy.deepcopy(module), X, Weighted())
    assert trainer.step(X, LABELS).loss == pytest.approx(Weighted()(module(X), LABELS).item(), abs=1e-5)
    with pytest.raises(forebay.InvalidArgument, match="does not support Decayed"):
        forebay.torch.Trainer(module, X, nn.CrossEntropyLoss(), Decayed(module.parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_that_have_no_gradients_here_say_so(dtype: Any) -> None:
    module = nn.Linear(4, 3).to(dtype)
    compiled = forebay.torch.compile(copy.deepcopy(module))
    with pytest.raises(forebay.InvalidArgument, match="requires a gradient, .*module.float"):
        compiled(X.to(dtype))
    with torch.no_grad():
        found = compiled(X.to(dtype))
        assert found.dtype == dtype
        assert torch.allclose(found.float(), module(X.to(dtype)).float(), atol=0.05)
    with pytest.raises(forebay.InvalidArgument, match="trained parameters must be float32"):
        forebay.torch.Trainer(module, X.to(dtype), nn.CrossEntropyLoss())
    for make in (forebay.torch.compile, lambda given: forebay.torch.Trainer(given, X), lambda given: forebay.torch.plan(given, X)):
        with pytest.raises(forebay.InvalidArgument, match="not str"):
            make("module")


def test_a_trainer_of_a_module_takes_what_a_trainer_does() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = forebay.torch.Trainer(module, X, nn.CrossEntropyLoss(), optimizer, clip_global_norm=0.01, precision="bf16")
    before = [parameter.detach().clone() for parameter in module.parameters()]
    report = trainer.step(X, LABELS)
    trainer.write_back()
    moved = sum((one - other).square().sum() for one, other in zip(module.parameters(), before)).sqrt().item()
    assert report.gradient_norm > 0.01 and moved == pytest.approx(0.1 * 0.01, rel=0.05)
