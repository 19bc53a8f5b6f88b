"""Modules that run by Forebay inside programs of PyTorch."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402
from forebay import _torch_module  # noqa: E402


class Pair(nn.Module):  # type: ignore[misc]
    """Two inputs, of which one is used twice; two outputs in a dictionary; a parameter that is used in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 6)
        self.other = nn.Linear(6, 3)
        self.register_buffer("shift", torch.full((3,), 0.5))

    def forward(self, x: Any, y: Any) -> Any:
        h = torch.tanh(self.one(x)) * y + self.one(y)
        return {"first": self.other(h) + self.shift, "second": h.sum(1)}


def convolutions() -> Any:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 5))


def attention() -> Any:
    return nn.Sequential(nn.LayerNorm(16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True))


def compare(ours: Any, theirs: Any, what: str) -> None:
    assert ours is not None and theirs is not None, what
    assert torch.allclose(ours, theirs, rtol=2e-4, atol=2e-5), (what, float((ours - theirs).abs().max()))


def step(module: Any, inputs: Any, loss: Any) -> Any:
    inputs = [value.clone().requires_grad_() for value in inputs]
    value = loss(module(*inputs))
    value.backward()
    return value.detach(), [one.grad for one in inputs]


@pytest.mark.parametrize(
    ("make", "shapes", "loss"),
    [
        (convolutions, [(16, 1, 8, 8)], lambda out: out.square().mean()),
        (attention, [(4, 7, 16)], lambda out: (out * torch.arange(16.0)).sum()),
        (Pair, [(5, 6), (5, 6)], lambda out: out["first"].square().sum() + out["second"].sum()),
    ],
    ids=["convolutions", "attention", "pair"],
)
def test_a_step_is_pytorchs(make: Any, shapes: Any, loss: Any) -> None:
    torch.manual_seed(0)
    theirs = make()
    ours = copy.deepcopy(theirs)
    compiled = forebay.torch.compile(ours)
    for _ in range(2):
        inputs = [torch.randn(shape) for shape in shapes]
        value, gradients = step(theirs, inputs, loss)
        our_value, our_gradients = step(compiled, inputs, loss)
        compare(our_value, value, "loss")
        for index, (left, right) in enumerate(zip(our_gradients, gradients)):
            compare(left, right, f"input {index}")
    for (name, left), right in zip(ours.named_parameters(), theirs.parameters()):
        compare(left.grad, right.grad, name)
    for (name, left), right in zip(ours.named_buffers(), theirs.buffers()):
        compare(left.double(), right.double(), name)


def test_it_is_a_layer_like_others() -> None:
    torch.manual_seed(1)
    theirs = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)), nn.Linear(8, 2))
    ours = copy.deepcopy(theirs)
    ours[1] = forebay.torch.compile(ours[1], simulate_device="64KiB")
    x, y = torch.randn(16, 8), torch.randn(16, 2)
    losses = []
    for net in (theirs, ours):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x), rtol=1e-3, atol=1e-4)
    assert ours(x[:3]).shape == (3, 2), "other sizes get a plan of their own"
    again = copy.deepcopy(ours)
    assert torch.equal(again(x), ours(x)) and again.state_dict().keys() == ours.state_dict().keys()


def test_a_budget_changes_no_bit() -> None:
    torch.manual_seed(2)
    module = convolutions()
    x = torch.randn(16, 1, 8, 8)
    results = []
    for options in ({}, {"simulate_device": "96KiB"}):
        compiled = forebay.torch.compile(copy.deepcopy(module), **options)
        value, (gradient,) = step(compiled, [x], lambda out: out.square().sum())
        results.append([value, gradient, *(parameter.grad for parameter in compiled.parameters())])
    assert all(torch.equal(left, right) for left, right in zip(*results))
    with pytest.raises(forebay.OutOfBudget) as error:
        forebay.torch.compile(module, simulate_device="4KiB")(x)
    assert error.value.least is not None


def test_evaluation_mode_and_what_does_not_train() -> None:
    torch.manual_seed(3)
    module = convolutions().eval()
    module[0].weight.requires_grad_(False)
    x = torch.randn(4, 1, 8, 8)
    compiled = forebay.torch.compile(module)
    with torch.no_grad():
        compare(compiled(x), module(x), "evaluation")
    compiled(x).square().sum().backward()
    assert module[0].weight.grad is None
    ours = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.requires_grad}
    module.zero_grad()
    module(x).square().sum().backward()
    for name, gradient in ours.items():
        compare(gradient, module.get_parameter(name).grad, name)
    assert int(module[1].num_batches_tracked) == 0
    compiled.train()
    compiled(x)
    assert module.training and int(module[1].num_batches_tracked) == 1


def test_dropout_drops_the_same_backwards() -> None:
    compiled = forebay.torch.compile(nn.Dropout(0.5))
    x = torch.ones(1000, requires_grad=True)
    kept = compiled(x)
    kept.sum().backward()
    assert torch.equal(x.grad, kept.detach()) and 300 < int((kept > 0).sum()) < 700
    assert not torch.equal(compiled(x), kept)


def test_old_plans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_module, "_PASSES_MAX", 2)
    compiled = forebay.torch.compile(nn.Linear(4, 3))
    first = compiled(torch.ones(1, 4))
    for count in (2, 3, 2, 4):
        assert compiled(torch.ones(count, 4)).shape == (count, 3)
    assert len(compiled._passes) == 2
    # The backward pass of a call whose plans have gone.
    first.sum().backward()
    assert torch.equal(compiled.module.weight.grad, torch.ones(3, 4))


def test_buffers_that_change_are_seen() -> None:
    module = Pair()
    compiled = forebay.torch.compile(module)
    x, y = torch.randn(2, 6), torch.randn(2, 6)
    before = compiled(x, y)["first"]
    module.shift.add_(1.0)
    assert torch.allclose(compiled(x, y)["first"], before + 1, atol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(forebay.InvalidArgument, match="float"):
        forebay.torch.compile(nn.Linear(2, 2))(3.0)


def test_autocast_is_part_of_a_plan() -> None:
    torch.manual_seed(4)
    theirs = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    ours = copy.deepcopy(theirs)
    compiled = forebay.torch.compile(ours)
    x = torch.randn(4, 6)
    for is_enabled in (True, False, True):
        gradients = []
        for module in (compiled, theirs):
            module.zero_grad()
            given = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
                # The layer before gives bfloat16, too.
                out = module(given.bfloat16() if is_enabled else given)
            out.float().square().sum().backward()
            gradients.append([out.detach().float(), given.grad, *(each.grad for each in module.parameters())])
            assert out.dtype == (torch.bfloat16 if is_enabled else torch.float32)
        tolerance = 5e-2 if is_enabled else 1e-4
        assert all(torch.allclose(one, other, rtol=tolerance, atol=tolerance) for one, other in zip(*gradients))


def test_results_can_be_constants() -> None:
    compiled = forebay.torch.compile(nn.MultiheadAttention(8, 2))
    x = torch.randn(5, 2, 8)
    out, weights = compiled(x, x, x, need_weights=False)
    compare(out, compiled.module(x, x, x, need_weights=False)[0], "attention")
    assert weights is None


def test_threads_do_not_mix_statistics() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=0.5))
    compiled = forebay.torch.compile(module)
    compiled(torch.randn(8, 6))
    before = int(module[1].num_batches_tracked)
    threads = [threading.Thread(target=lambda: [compiled(torch.randn(8, 6)) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(module[1].num_batches_tracked) == before + 40


class Adding(nn.Module):  # type: ignore[misc]
    """Adds rows at indices."""

    def forward(self, x: Any) -> Any:
        return torch.zeros(3, 6).index_add(0, torch.tensor([0, 0, 2, 1]), x)


def test_exporters_that_know_less_than_pytorch() -> None:
    x = torch.randn(4, 6)
    # Two rows at one place.
    try:
        compare(forebay.torch.compile(Adding())(x), Adding()(x), "sums")
    except forebay.Error as error:
        assert "index_add" in str(error)
    # The fused layer of evaluation mode, and an operator that only one exporter has.
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()
    with torch.no_grad():
        compare(forebay.torch.compile(layer)(x[None]), layer(x[None]), "attention")
    compare(forebay.torch.compile(nn.AdaptiveAvgPool1d(4))(x[None]), nn.AdaptiveAvgPool1d(4)(x[None]), "pooling")
    for refused in (nn.Embedding(5, 3, max_norm=1.0), nn.Embedding(5, 3, scale_grad_by_freq=True)):
        with pytest.raises(forebay.InvalidArgument, match="which ONNX does not have"):
            forebay.torch.compile(refused)(torch.tensor([1, 2]))


def test_compiled_modules_inside_one_another_and_changed_ones() -> None:
    inner = nn.Linear(6, 6)
    outer = nn.Sequential(forebay.torch.compile(inner), nn.Tanh())
    compiled = forebay.torch.compile(outer)
    x = torch.randn(4, 6)
    compare(compiled(x), torch.tanh(inner(x)), "inside")
    compiled(x).sum().backward()
    assert inner.weight.grad is not None
    outer.append(nn.ReLU())
    compare(compiled(x), torch.relu(torch.tanh(inner(x))), "one more layer")
    empty = compiled(torch.empty(0, 6))
    assert empty.shape == (0, 6)
    empty.sum().backward()


def test_a_layer_that_is_used_twice_counts_twice() -> None:
    class Twice(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return self.norm(self.layer(self.norm(x)))

    theirs = Twice()
    ours, trained = copy.deepcopy(theirs), copy.deepcopy(theirs)
    x = torch.randn(4, 6)
    theirs(x)
    forebay.torch.compile(ours)(x)
    compare(ours.norm.running_var, theirs.norm.running_var, "statistics")
    with forebay.torch.Trainer(trained, x) as trainer:
        trainer.step(x, torch.arange(4))
    assert [int(each.norm.num_batches_tracked) for each in (theirs, ours, trained)] == [2, 2, 2]


class Sized(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x), x.shape[0], tuple(x.shape), x.numel() * 2, x.dtype == torch.float32


def test_sizes_are_results() -> None:
    compiled = forebay.torch.compile(Sized())
    for count in (8, 5):
        found, *sizes = compiled(torch.randn(count, 6))
        assert found.shape == (count, 2) and sizes == [count, (count, 6), count * 12, True]
        assert all(type(each) in (int, tuple, bool) for each in sizes)
        found.sum().backward()
