"""Modules and trainers as they occur in programs: hooks, compiled parts, batches of data sets, gradients of gradients."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
import torch.nn.utils.prune  # noqa: E402
import torch.utils.checkpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

X, LABELS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def steps_are_pytorchs(make: Callable[[], Any]) -> None:
    """Compares three steps of two modules that are made alike."""
    ours, theirs = make(), make()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (ours, theirs)]
    trainer = forebay.torch.Trainer(ours, X, nn.CrossEntropyLoss(), optimizers[0])
    for _ in range(3):
        optimizers[1].zero_grad()
        loss = functional.cross_entropy(theirs(X), LABELS)
        loss.backward()
        optimizers[1].step()
        assert trainer.step(X, LABELS).loss == pytest.approx(float(loss.detach()), rel=1e-4)
    trainer.write_back()
    for one, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(one, other, atol=1e-5)


def pruned() -> Any:
    module = network()
    torch.nn.utils.prune.l1_unstructured(module[0], "weight", 0.5)
    return module


def hooked() -> Any:
    module = network()
    module[0].register_forward_hook(lambda _, inputs, output: output * 2)
    module[2].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
    return module


def weight_normed(norm: Callable[..., Any]) -> Any:
    module = network()
    norm(module[0])
    norm(module[2], dim=1)
    return module


@pytest.mark.parametrize(
    "make",
    [
        pruned,
        hooked,
        lambda: weight_normed(nn.utils.parametrizations.weight_norm),
        lambda: weight_normed(nn.utils.weight_norm),
        lambda: nn.DataParallel(network()),
        lambda: torch.optim.swa_utils.AveragedModel(network()),
    ],
    ids=["pruned", "forward hooks", "weight norm", "older weight norm", "DataParallel", "AveragedModel"],
)
def test_modules_that_others_have_changed(make: Any) -> None:
    steps_are_pytorchs(make)


@pytest.mark.skipif(not hasattr(torch, "compiler") or not hasattr(torch.compiler, "set_stance"), reason="only newer PyTorch can skip torch.compile")
def test_what_torch_has_compiled_is_exported_as_it_was_written() -> None:
    def whole() -> Any:
        return torch.compile(network(), backend="eager")

    def part() -> Any:
        module = network()
        module[0] = torch.compile(module[0], backend="eager")
        return module

    steps_are_pytorchs(whole)
    steps_are_pytorchs(part)
    module = part()
    assert torch.allclose(forebay.torch.compile(module)(X), module(X), atol=1e-5)


class Hooking(nn.Module):
    """Adds a hook to a gradient when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 3)
        return y.relu()


def test_hooks_on_gradients_are_refused() -> None:
    by_parameter, by_layer, by_accumulation = network(), network(), network()
    by_parameter[0].weight.register_hook(lambda gradient: gradient * 2)
    by_layer[1].register_full_backward_hook(lambda *_: None)
    by_accumulation[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    for module, words in [
        (by_parameter, "'0.weight' has a hook on its gradient"),
        (by_accumulation, "'0.weight' has a hook on its gradient"),
        (by_layer, "'1' has a hook for its backward pass"),
        (Hooking(), "adds a hook to a gradient in forward, .*test_torch_programs.py"),
    ]:
        with pytest.raises(forebay.Error, match=words):
            forebay.torch.Trainer(module, X)
    for module in (by_layer, Hooking()):
        with pytest.raises(forebay.Error, match="hook"):
            forebay.torch.compile(module)(X)
    # Those of parameters are called.
    gradients = []
    for module in (forebay.torch.compile(by_parameter), network()):
        module(X).square().sum().backward()
        gradients.append(next(module.parameters()).grad)
    assert torch.allclose(gradients[0], 2 * gradients[1], rtol=1e-4)
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(forebay.InvalidArgument, match="SGD optimizer has a hook for its steps"):
        forebay.torch.Trainer(network(), X, optimizer=optimizer)


def test_modules_that_cannot_be_exported_say_so() -> None:
    for module, words in [
        (torch.jit.script(network()), "the module was compiled by torch.jit"),
        (nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3)), "'0' has parameters without sizes"),
    ]:
        with pytest.raises(forebay.InvalidArgument, match=words):
            forebay.torch.Trainer(module, X)
        with pytest.raises(forebay.InvalidArgument, match=words):
            forebay.torch.compile(module)(X)


def test_gradients_of_gradients_are_refused_and_others_can_be_used() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    compiled = forebay.torch.compile(module)
    x = X.clone().requires_grad_()
    (ours,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    (theirs,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    assert ours.requires_grad and torch.allclose(ours, theirs, atol=1e-5)
    for penalty in (lambda: ours.square().sum().backward(), lambda: torch.autograd.functional.hessian(lambda x: compiled(x).sum(), X)):
        with pytest.raises(forebay.InvalidArgument, match="no gradients of gradients"):
            penalty()
    with pytest.raises(forebay.InvalidArgument, match="transforms of torch.func"):
        torch.func.vmap(compiled)(X)


def test_compiled_modules_within_checkpoints() -> None:
    module = network()
    compiled = forebay.torch.compile(copy.deepcopy(module))
    for each in (module, compiled):
        torch.utils.checkpoint.checkpoint(each, X.clone().requires_grad_(), use_reentrant=False).square().sum().backward()
    for one, other in zip(compiled.parameters(), module.parameters()):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_inputs_that_a_module_changes() -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))
    x = X.clone()
    with pytest.raises(forebay.InvalidArgument, match="changes its input in place"):
        forebay.torch.compile(module)(x)
    assert torch.equal(x, X)
    # A step of a trainer has its own copy.
    trainer = forebay.torch.Trainer(module, x, nn.CrossEntropyLoss())
    expected = functional.cross_entropy(module(X.clone()), LABELS).item()
    assert trainer.step(x, LABELS).loss == pytest.approx(expected, rel=1e-5) and torch.equal(x, X)


class Both(nn.Module):
    """Takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(4, 3)

    def forward(self, x: Any, z: Any) -> Any:
        return self.one(x) + self.other(z)


class Samples(torch.utils.data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Samples that are made of two inputs and a label."""

    def __init__(self, sample: Callable[..., Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return self.sample(torch.full((6,), 0.1 * index), torch.full((4,), 0.2 * index), index % 3)


@pytest.mark.parametrize(
    "sample",
    [
        lambda x, z, y: {"x": x, "z": z, "labels": y, "number": y, "file": "a.png"},
        lambda x, z, y: ((x, z), y),
        lambda x, z, y: ({"x": x, "z": z, "number": y}, y),
        lambda x, z, y: (x, z, y),
    ],
    ids=["names", "nested", "nested names", "in order"],
)
def test_batches_of_data_sets(sample: Any) -> None:
    loader = torch.utils.data.DataLoader(Samples(sample), batch_size=8)
    torch.manual_seed(0)
    module = Both()
    theirs = copy.deepcopy(module)
    trainer = forebay.torch.Trainer(module, {"x": X, "z": torch.zeros(8, 4)}, nn.CrossEntropyLoss(), forebay.SGD(0.1))
    found = trainer.fit(loader, progress=False).losses[0]
    x, z, y = (torch.stack([torch.as_tensor(Samples(lambda *all: all)[i][part]) for i in range(8)]) for part in range(3))
    assert found == pytest.approx(functional.cross_entropy(theirs(x, z), y).item(), rel=1e-5)


def test_what_a_module_takes_is_not_left_out() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Any, shift: Any = None) -> Any:
            return self.layer(x) if shift is None else self.layer(x) + shift

    trainer = forebay.torch.Trainer(Optional(), {"x": X})
    trainer.step({"x": X, "number": X}, LABELS)
    with pytest.raises(forebay.InvalidArgument, match="no input 'shift'"):
        trainer.step({"x": X, "shift": torch.ones(8, 3)}, LABELS)


def test_targets_of_any_type() -> None:
    module = nn.Linear(6, 1)
    targets = LABELS.reshape(8, 1) % 2
    trainer = forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(1e-30))
    expected = functional.mse_loss(module(X), targets.float()).item()
    for given in (targets, targets.double(), targets.half(), targets.bool()):
        assert trainer.step(X, given).loss == pytest.approx(expected, rel=1e-5)


@dataclass
class Result:
    """What a module returns."""

    logits: Any
    features: Any


def test_results_that_are_no_tensors() -> None:
    class Structured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return Result(y, y * 2)

    def loss(result: Any, labels: Any) -> Any:
        return functional.cross_entropy(result.logits, labels) + result.features.square().mean()

    module = Structured()
    expected = loss(module(X), LABELS).item()
    trainer = forebay.torch.Trainer(module, X, loss, forebay.SGD(0.1), example_labels=LABELS)
    assert trainer.step(X, LABELS).loss == pytest.approx(expected, rel=1e-5)
    with pytest.raises(forebay.InvalidArgument, match="the module returns Result, but this loss accepts only one tensor"):
        forebay.torch.Trainer(module, X, nn.CrossEntropyLoss())
    with pytest.raises(forebay.InvalidArgument, match="example labels must be a tensor, not tuple"):
        forebay.torch.Trainer(module, X, loss, example_labels=(LABELS, LABELS))
