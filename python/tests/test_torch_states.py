"""Buffers and parameters that a module changes when it runs, and its other attributes."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

BATCHES = [(torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)), (torch.arange(8) * (seed + 1)) % 3) for seed in range(4)]
X, LABELS = BATCHES[0]


class Counting(nn.Module):
    """Counts its calls, in place or not, and divides by their number."""

    def __init__(self, is_in_place: bool, is_saved: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.is_in_place = is_in_place
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=is_saved)

    def forward(self, x: Any) -> Any:
        if self.is_in_place:
            self.calls += 1
        else:
            self.calls = self.calls + 1
        return self.layer(x) * (1 + 1 / self.calls)


class Centered(nn.Module):
    """Subtracts a moving average that it updates through a view, and remembers what nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("means", torch.zeros(2, 3))
        self.register_buffer("latest", torch.zeros(3))
        self.register_buffer("nothing", torch.ones(3))

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.means[0] += 0.1 * y.detach().mean(0)
        self.means[1].mul_(0.5).add_(1)
        self.means.detach().mul_(0.9)
        self.latest.data.copy_(y.amax(0))
        return y - self.means.sum(0) * self.nothing


class Queue(nn.Module):
    """Keeps the latest results in a queue, as MoCo does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("queue", torch.randn(3, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        scores = y @ self.queue.clone().detach()
        with torch.no_grad():
            self.queue[:, 4:] = self.queue[:, :4].clone()
            self.queue[:, :4] = y[:4].t()
        return scores[:, :3]


class Codebook(nn.Module):
    """A codebook of moving averages (VQ-VAE), written in place, or with parameters that are replaced."""

    def __init__(self, is_in_place: bool) -> None:
        super().__init__()
        self.encode, self.decode, self.is_in_place = nn.Linear(6, 4), nn.Linear(4, 3), is_in_place
        self.codes = nn.Embedding(8, 4)
        self.register_buffer("sizes", torch.zeros(8))
        sums = self.codes.weight.detach().clone()
        if is_in_place:
            self.codes.weight.requires_grad_(False)
            self.register_buffer("sums", sums)
        else:
            self.sums = nn.Parameter(sums)

    def forward(self, x: Any) -> Any:
        flat, codes = self.encode(x), self.codes.weight
        nearest = (flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codes.t() + codes.pow(2).sum(1)).argmin(1)
        chosen = functional.one_hot(nearest, 8).to(flat.dtype)
        found = chosen @ codes
        if self.training and self.is_in_place:
            self.sizes.data.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
            self.sums.data.mul_(0.9).add_(chosen.t() @ flat, alpha=0.1)
            self.codes.weight.data.copy_(self.sums / (self.sizes + 1e-2).unsqueeze(1))
        elif self.training:
            self.sizes = self.sizes * 0.9 + 0.1 * chosen.sum(0)
            self.sums = nn.Parameter(self.sums * 0.9 + 0.1 * chosen.t() @ flat)
            self.codes.weight = nn.Parameter(self.sums / (self.sizes + 1e-2).unsqueeze(1))
        return self.decode(flat + (found - flat).detach())


class Momentum(nn.Module):
    """An encoder and its moving average, which is set by ``.data``, as in MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 3)
        self.average = copy.deepcopy(self.encode).requires_grad_(False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def update(self) -> None:
        for own, other in zip(self.average.parameters(), self.encode.parameters()):
            own.data = own.data * 0.9 + other.data * 0.1

    def forward(self, x: Any) -> Any:
        self.update()
        return self.encode(x) * self.average(x.flip(0)).detach()


def spectral(norm: Callable[..., Any]) -> Any:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), norm(nn.Conv1d(1, 4, 3)), nn.ReLU(), nn.Flatten(), norm(nn.Linear(16, 3), n_power_iterations=2))


def normalized(layer: Any) -> Any:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3, bias=False), layer, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


MODULES: Dict[str, Callable[[], Any]] = {
    "in place": lambda: Counting(True, True),
    "replaced": lambda: Counting(False, True),
    "not saved": lambda: Counting(True, False),
    "views": Centered,
    "queue": Queue,
    "codebook": lambda: Codebook(True),
    "replaced parameters": lambda: Codebook(False),
    "set by data": Momentum,
    "spectral norm": lambda: spectral(nn.utils.parametrizations.spectral_norm),
    "older spectral norm": lambda: spectral(nn.utils.spectral_norm),
    "average of all batches": lambda: normalized(nn.BatchNorm1d(4, momentum=None)),
    "average without weights": lambda: normalized(nn.BatchNorm1d(4, momentum=None, affine=False)),
    "instances": lambda: normalized(nn.InstanceNorm1d(4, track_running_stats=True)),
}
#: Those whose results do not depend on what they change, or that ONNX expresses in evaluation mode.
EVALUATED = ("queue", "codebook", "replaced parameters", "average of all batches", "average without weights")


def made(kind: str) -> List[Any]:
    """Returns two equal modules."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(MODULES[kind]())
    return found


def values(module: Any) -> Dict[str, Any]:
    return {name: value.detach().clone() for name, value in [*module.named_parameters(), *module.named_buffers()]}


def close(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.allclose(ours[name].double(), value.double(), rtol=2e-4, atol=2e-5), (name, ours[name], value)


class Activated(nn.BatchNorm1d):
    """A normalization with an activation."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).relu()


def test_averages_of_layers_with_a_forward_of_their_own_are_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 4), Activated(4, momentum=None), nn.Linear(4, 3))
    with pytest.raises(forebay.InvalidArgument, match="'1' \\(Activated\\) has a forward of its own.*momentum"):
        forebay.torch.Trainer(module, X, nn.CrossEntropyLoss(), forebay.SGD(0.05))


@pytest.mark.parametrize("kind", MODULES)
def test_steps_begin_with_what_the_last_one_left(kind: str) -> None:
    ours, theirs = made(kind)
    optimizers = [torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.05, momentum=0.9) for each in (ours, theirs)]
    before, objects = values(ours), [id(value) for value in ours.state_dict(keep_vars=True).values()]
    trainer = forebay.torch.Trainer(ours, X, nn.CrossEntropyLoss(), optimizers[0])
    assert all(torch.equal(value, before[name]) for name, value in values(ours).items()), "the export left a trace"
    assert objects == [id(value) for value in ours.state_dict(keep_vars=True).values()]

    def their_step(x: Any, labels: Any) -> float:
        optimizers[1].zero_grad()
        loss = functional.cross_entropy(theirs(x), labels)
        loss.backward()
        optimizers[1].step()
        return float(loss.detach())

    for x, labels in BATCHES[:3]:
        assert trainer.step(x, labels).loss == pytest.approx(their_step(x, labels), rel=1e-4)
    trainer.write_back()
    close(values(ours), values(theirs))
    # PyTorch goes on, and the trainer after it.
    theirs_loss = their_step(*BATCHES[3])
    optimizers[0].zero_grad()
    loss = functional.cross_entropy(ours(BATCHES[3][0]), BATCHES[3][1])
    loss.backward()
    optimizers[0].step()
    assert float(loss.detach()) == pytest.approx(theirs_loss, rel=1e-4)
    assert trainer.step(*BATCHES[0]).loss == pytest.approx(their_step(*BATCHES[0]), rel=1e-4)
    trainer.write_back()
    close(values(ours), values(theirs))
    if kind in EVALUATED:
        expected = theirs.eval()(X).detach().numpy()
        assert np.allclose(trainer.evaluate(X, LABELS).logits, expected, atol=1e-4)
    else:
        with pytest.raises(forebay.InvalidArgument, match="results depend on '.*', which it changes when it runs"):
            trainer.evaluate(X, LABELS)


@pytest.mark.parametrize("kind", MODULES)
def test_compiled_modules_change_what_the_module_does(kind: str) -> None:
    ours, theirs = made(kind)
    compiled = forebay.torch.compile(ours)
    for x, labels in BATCHES[:3]:
        for module in (compiled, theirs):
            module.zero_grad()
            functional.cross_entropy(module(x), labels).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.05 * parameter.grad
    close(values(ours), values(theirs))


def test_parts_of_a_batch_follow_one_another() -> None:
    module = Counting(True, True)
    trainer = forebay.torch.Trainer(module, X[:4], nn.CrossEntropyLoss(), torch.optim.SGD(module.parameters(), lr=0.0), accumulate=2)
    expected = [functional.cross_entropy(module.layer(x) * (1 + 1 / n), y) for n, x, y in [(1, X[:4], LABELS[:4]), (2, X[4:], LABELS[4:])]]
    assert trainer.step(X, LABELS).loss == pytest.approx(float(sum(expected).detach()) / 2, rel=1e-5)
    trainer.write_back()
    assert int(module.calls) == 2


def test_a_budget_and_a_checkpoint_keep_the_bits(tmp_path: Any) -> None:
    losses = []
    for options in ({}, {"simulate_device": "60%"}):
        torch.manual_seed(0)
        module = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2048)), nn.ReLU(), nn.Linear(2048, 3))
        trainer = forebay.torch.Trainer(module, X, nn.CrossEntropyLoss(), torch.optim.SGD(module.parameters(), lr=0.05), **options)
        losses.append([trainer.step(*batch).loss for batch in BATCHES[:2]])
        trainer.save_checkpoint(tmp_path / str(len(losses)))
        losses[-1].append(trainer.step(*BATCHES[2]).loss)
        trainer.restore(tmp_path / str(len(losses)))
        assert trainer.step(*BATCHES[2]).loss == losses[-1][-1]
    assert losses[0] == losses[1]


def test_saved_models_have_one_output(tmp_path: Any) -> None:
    module = made("codebook")[0]
    trainer = forebay.torch.Trainer(module, X, nn.CrossEntropyLoss(), forebay.SGD(0.05))
    trainer.step(X, LABELS)
    trainer.write_back()
    trainer.save(tmp_path / "saved.onnx")
    (result,) = forebay.Session(tmp_path / "saved.onnx").run(X).values()
    assert np.allclose(result, module.eval()(X).detach().numpy(), atol=1e-5)
    assert forebay.torch.plan(module, X).least > 0


class Wrong(nn.Module):
    """Changes something in a way that no export has."""

    def __init__(self, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(6, 3), change
        self.register_buffer("state", torch.zeros(4, 3))

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.change(self, y.detach())
        return y


def grow(module: Any, y: Any) -> None:
    module.state = torch.cat([module.state, y])


def clamp(module: Any, y: Any) -> None:
    module.layer.weight.data.clamp_(-0.1, 0.1)


def by_other_types(module: Any, y: Any) -> None:
    module.state.view(torch.int32).add_(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [(grow, "parameter state .*from torch.float32 .4, 3. to torch.float32 .12, 3."), (clamp, "layer.weight .*optimizer changes"), (by_other_types, "state when it runs, in a way")],
)  # fmt: skip
def test_changes_that_no_export_has_are_refused(change: Any, words: str) -> None:
    module = Wrong(change)
    before = values(module)
    with pytest.raises(forebay.InvalidArgument, match=words):
        forebay.torch.Trainer(module, X)
    assert all(torch.equal(value, before[name]) for name, value in values(module).items())


class Attributes(nn.Module):
    """Has a number and a tensor that are not buffers."""

    def __init__(self, counts: bool, remembers: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.counts, self.remembers = counts, remembers
        self.factor, self.state, self.seen = 2.0, None, None

    def forward(self, x: Any) -> Any:
        y = self.layer(x) * self.factor
        self.seen = y.detach()
        if self.counts:
            self.factor += 1
        if self.remembers:
            y = y if self.state is None else y + self.state
            self.state = y.detach()
        return y


def test_attributes_that_are_no_buffers() -> None:
    run = [lambda module: forebay.torch.Trainer(module, X), lambda module: forebay.torch.compile(module)(X)]
    for each in run:
        with pytest.raises(forebay.InvalidArgument, match="keeps a tensor in its attribute 'state' from one run to the next"):
            each(Attributes(False, True))
        module = Attributes(True, False)
        with pytest.warns(UserWarning, match="changes its attribute factor whenever it runs"):
            each(module)
        assert module.factor == 2.0 and module.seen is None and module.state is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            each(Attributes(False, False))
    # A number that the program changes between calls belongs to the plan.
    module = Attributes(False, False)
    compiled = forebay.torch.compile(module)
    for factor in (2.0, 3.0, 2.0):
        module.factor = factor
        assert torch.allclose(compiled(X), module(X), atol=1e-5)
    assert len(compiled._passes) == 2
