"""Gradients of PyTorch modules that are not those of their operations: ends, own functions, statistics that stay."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
import torch.utils.checkpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402


def close(ours: Any, theirs: Any, what: str) -> None:
    assert torch.allclose(ours, theirs, rtol=2e-4, atol=2e-5), (what, float((ours - theirs).abs().max()))


def compare(module: Any, inputs: Any, labels: Any, loss: Any, **options: Any) -> Any:
    """Compares three steps with PyTorch's, and then the compiled module's gradients."""
    theirs = copy.deepcopy(module)
    optimizers = [torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.1, momentum=0.9) for each in (module, theirs)]
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    trainer = forebay.torch.Trainer(module, inputs, loss=loss, optimizer=optimizers[0], example_labels=labels, **options)
    for _ in range(3):
        optimizers[1].zero_grad()
        value = loss(theirs(*arguments), labels)
        value.backward()
        optimizers[1].step()
        assert trainer.step(inputs, labels).loss == pytest.approx(float(value.detach()), rel=1e-4, abs=1e-5)
    trainer.write_back()
    for name, value in theirs.state_dict().items():
        close(module.state_dict()[name].double(), value.double(), name)
    compiled = forebay.torch.compile(copy.deepcopy(theirs))
    given = [[each.clone().requires_grad_() if each.is_floating_point() else each for each in arguments] for _ in range(2)]
    for run, own in zip((compiled, theirs), given):
        run.zero_grad()
        loss(run(*own), labels).backward()
    for (name, one), other in zip(compiled.module.named_parameters(), theirs.parameters()):
        assert (one.grad is None) == (other.grad is None) or not other.requires_grad or not bool((one.grad if other.grad is None else other.grad).any()), name
        if one.grad is not None and other.grad is not None:
            close(one.grad, other.grad, name)
    for one, other in zip(*given):
        if other.is_floating_point() and other.grad is not None:
            close(one.grad, other.grad, "inputs")
    return trainer


def network() -> Any:
    """Two convolutions with normalizations whose statistics are not those of a new module, and dropout in evaluation mode."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
        nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    with torch.no_grad():
        for normalization in (module[1], module[4]):
            normalization.running_mean.normal_(0, 0.3)
            normalization.running_var.uniform_(0.5, 2)
            normalization.weight.uniform_(0.5, 1.5)
    module.train()
    module[6].eval()
    return module


@pytest.mark.parametrize(
    ("frozen", "options"),
    [((1,), {}), ((1, 4), {}), ((1, 4), {"accumulate": 2}), ((4,), {"simulate_device": "60%"})],
    ids=["one", "all", "in parts", "within a budget"],
)
def test_statistics_that_stay(frozen: Tuple[int, ...], options: Any, tmp_path: Any) -> None:
    module = network()
    for number in frozen:
        module[number].eval()
    x, labels = torch.randn(6, 1, 8, 8), torch.arange(6) % 4
    before = {number: module[number].running_mean.clone() for number in frozen}
    trainer = compare(module, x, labels, nn.CrossEntropyLoss(), **options)
    assert all(torch.equal(module[number].running_mean, mean) for number, mean in before.items())
    assert [each.training for each in module] == [number != 6 and number not in frozen for number in range(10)]
    expected = copy.deepcopy(module).eval()(x).detach().numpy()
    assert np.allclose(trainer.evaluate(x, labels).logits, expected, atol=1e-4)
    trainer.save(tmp_path / "saved.onnx")
    assert np.allclose(next(iter(forebay.Session(tmp_path / "saved.onnx").run(x).values())), expected, atol=1e-4)


def test_statistics_of_each_batch() -> None:
    module = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4, track_running_stats=False), nn.Flatten(), nn.Linear(24, 3))
    compare(module, torch.randn(6, 2, 8), torch.arange(6) % 3, nn.CrossEntropyLoss())


def test_modules_without_a_part_in_training_mode_train() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    trainer = forebay.torch.Trainer(module, torch.randn(8, 6))
    assert sorted(trainer.state()) == ["1.running_mean", "1.running_var"] and not module[1].training


class Ending(nn.Module):  # type: ignore[misc]
    """Two layers, with a function between them through which not all gradients pass."""

    def __init__(self, between: Callable[..., Any]) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.between = between

    def forward(self, x: Any) -> Any:
        return self.last(self.between(self.first(x)))


def without_gradients(h: Any) -> Any:
    with torch.no_grad():
        factors = torch.zeros_like(h)
        factors[:, 0] = h[:, 1]
        factors.add_(h.abs())
        factors /= factors.norm()
    return h * factors


def viewed_without_gradients(h: Any) -> Any:
    with torch.no_grad():
        other = h.view(-1, 2, 3).transpose(1, 2)
    return h * (other.reshape(h.shape) + 1)


def one_hot(h: Any) -> Any:
    soft = h.softmax(-1)
    return functional.one_hot(soft.argmax(-1), 6).to(soft.dtype) - soft.detach() + soft


class Reversed(torch.autograd.Function):  # type: ignore[misc]
    """Reverses a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -ctx.factor * gradient, None


class Sign(torch.autograd.Function):  # type: ignore[misc]
    """The sign, with the gradient of a clamped identity."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class Swish(torch.autograd.Function):  # type: ignore[misc]
    """Computes the gradient of its operations in another way."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        y = torch.sigmoid(x)
        return gradient * (y * (1 + x * (1 - y)))


class Turned(torch.autograd.Function):  # type: ignore[misc]
    """Has a gradient that no export can express."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.cumsum(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.flip(-1)


reverse = Reversed.apply


class Lazy:
    """Stands for a package that is missing, as optional imports do: to look at it is an error."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)


missing = Lazy()


@pytest.mark.parametrize(
    "between",
    [
        lambda h: h * h.detach(),
        lambda h: h * torch.sigmoid(h.data),
        lambda h: h + (torch.round(h) - h).detach(),
        without_gradients,
        viewed_without_gradients,
        one_hot,
        lambda h: reverse(h, 0.7) + 2 * h,
        lambda h: Sign.apply(h) + h,
        lambda h: Swish.apply(h),
        lambda h: torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=True),
        lambda h: torch.utils.checkpoint.checkpoint(torch.tanh, h, use_reentrant=False),
    ],
    ids=["detach", "data", "straight through", "no_grad", "views", "one hot", "reversed", "sign", "swish", "reentrant", "checkpoint"],
)
def test_gradients_end_where_pytorchs_do(between: Any) -> None:
    torch.manual_seed(1)
    module = Ending(between)
    compare(module, torch.randn(8, 6), torch.arange(8) % 3, nn.CrossEntropyLoss())
    assert not torch.ones(1, requires_grad=True).detach().requires_grad


class Twins(nn.Module):  # type: ignore[misc]
    """Predicts the projection of one view from another, as BYOL and SimSiam do."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.predict = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.project).requires_grad_(False)

    def forward(self, one: Any, other: Any) -> List[Any]:
        with torch.no_grad():
            target = self.target(other)
        return [self.predict(self.project(one)), target, self.project(other).detach()]


def test_losses_that_ignore_labels() -> None:
    def loss(outputs: Any, labels: Any) -> Any:
        predicted, target, other = outputs
        return -(functional.cosine_similarity(predicted, target) + functional.cosine_similarity(predicted, other)).mean()

    torch.manual_seed(2)
    x = torch.randn(8, 6)
    compare(Twins(), (x, x + 0.1 * torch.randn_like(x)), torch.zeros(8), loss)


def test_gradients_that_no_export_can_express_are_refused() -> None:
    x = torch.randn(8, 6)
    with pytest.raises(forebay.Error, match="the module defines the gradient of Turned, in .*test_torch_gradients"):
        forebay.torch.Trainer(Ending(Turned.apply), x)
    with pytest.raises(forebay.Error, match="the module defines the gradient of Turned"):
        forebay.torch.compile(Ending(lambda h: Turned.apply(h)))(x)
    # Only the newer exporter has the pooling. What it cannot express is found even if the other one fails before that.
    module = nn.Sequential(Ending(lambda h: h * h.detach()), nn.Unflatten(1, (1, 3)), nn.AdaptiveAvgPool1d(2), nn.Flatten())
    with pytest.raises(forebay.Error, match="the module lets no gradient pass in .*, and uses operators that only PyTorch's newer exporter has"):
        forebay.torch.Trainer(module, x)


class DropPath(nn.Module):  # type: ignore[misc]
    """Stochastic depth, as in timm."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.drop_prob)
        return x * kept.div_(1 - self.drop_prob)


def test_paths_drop_in_training_only(tmp_path: Any) -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 4), DropPath(0.5))
    x = torch.randn(64, 6)
    zeros = torch.zeros(64, 4)
    trainer = forebay.torch.Trainer(module, x, loss=nn.MSELoss(), optimizer=torch.optim.SGD(module.parameters(), lr=0.0))
    losses = {round(trainer.step(x, zeros).loss, 6) for _ in range(4)}
    whole = float(functional.mse_loss(module.eval()(x), zeros).detach())
    # Half of the samples are twice as large, so the loss is twice as large on average.
    assert len(losses) == 4 and sum(losses) / 4 == pytest.approx(2 * whole, rel=0.3)
    assert trainer.evaluate(x, zeros).loss == pytest.approx(whole, rel=1e-5)
    trainer.save(tmp_path / "saved.onnx")
    assert np.allclose(next(iter(forebay.Session(tmp_path / "saved.onnx").run(x).values())), module(x).detach().numpy(), atol=1e-5)


class Noisy(nn.Module):  # type: ignore[misc]
    """Adds noise in training, or always."""

    def __init__(self, is_always: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.is_always = is_always

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y + torch.randn_like(y) if self.training or self.is_always else y


def test_evaluation_with_random_numbers_of_training_is_refused(tmp_path: Any) -> None:
    x, labels = torch.randn(8, 6), torch.arange(8) % 4
    trainer = forebay.torch.Trainer(Noisy(False), x)
    trainer.step(x, labels)
    for evaluate in (lambda: trainer.evaluate(x, labels), lambda: trainer.save(tmp_path / "saved.onnx"), lambda: trainer.validate([(x, labels)])):
        with pytest.raises(forebay.InvalidArgument, match="draws random numbers in forward, .*randn_like.*in training mode only"):
            evaluate()
    assert trainer.module.training
    assert forebay.torch.Trainer(Noisy(True), x).evaluate(x, labels).loss > 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout1d(0.5), (16, 6, 5)),
        (nn.Dropout2d(0.5), (16, 6, 5, 2)),
        (nn.Dropout3d(0.5), (16, 6, 5, 2, 2)),
        (nn.AlphaDropout(0.5), (16, 30)),
        (nn.FeatureAlphaDropout(0.5), (16, 6, 5)),
        (nn.RReLU(), (16, 30)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_dropped_in_training_only(layer: Any, shape: Tuple[int, ...]) -> None:
    torch.manual_seed(4)
    shift = nn.Parameter(torch.ones(shape[1:]))
    module = nn.Module()
    module.shift, module.layer = shift, layer
    module.forward = lambda x: module.layer(x + module.shift)
    x = torch.randn(shape)
    trainer = forebay.torch.Trainer(module, x, loss=nn.MSELoss(), optimizer=torch.optim.SGD([shift], lr=0.0))
    ours = sum(trainer.step(x, torch.zeros(shape)).loss for _ in range(20)) / 20
    theirs = sum(float((module(x).detach() ** 2).mean()) for _ in range(20)) / 20
    assert ours == pytest.approx(theirs, rel=0.25)
    assert np.allclose(trainer.evaluate(x, torch.zeros(shape)).logits, module.eval()(x).detach().numpy(), atol=1e-5)


class Halves(nn.Module):  # type: ignore[misc]
    """Fails in the exporter that is tried first, before anything else."""

    def __init__(self, rest: Any) -> None:
        super().__init__()
        self.rest = rest

    def forward(self, x: Any) -> Any:
        if torch.jit.is_tracing():
            raise RuntimeError("not traced")
        return self.rest(x)


@pytest.mark.parametrize(
    ("rest", "words"),
    [(Ending(lambda h: h * h.detach()), "lets no gradient pass"), (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3).eval()), "normalizes")],
    ids=["end", "statistics"],
)
def test_the_other_exporter_refuses_what_it_cannot_express(rest: Any, words: str) -> None:
    with pytest.raises(forebay.Error, match=f"the module {words}"):
        forebay.torch.Trainer(Halves(rest), torch.randn(8, 6))
