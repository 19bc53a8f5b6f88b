"""Functions that PyTorch's exporter writes wrongly, or not at all, for some of their arguments."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, Tuple

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=GENERATOR)
LABELS = torch.arange(8) % 3
SHARES = torch.rand(8, 3, generator=GENERATOR)
WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


class Applied(nn.Module):
    """Applies a function to 36 results of a layer for each sample, as a picture of 6 x 6 or as vectors."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 36), function

    def forward(self, x: Any) -> Any:
        return self.function(self.layer(x).reshape(8, 1, 6, 6)).flatten(1)


def vectors(pictures: Any) -> Any:
    return pictures.reshape(8, 12, 3)


def places(pictures: Any) -> Any:
    return (torch.arange(6) % 3).expand_as(pictures).contiguous()


CLASSES = torch.tensor([[1, 1, 2], [3, 4, 1]])


def scores(pictures: Any) -> Any:
    """Returns logarithms of probabilities [positions, samples, classes]."""
    return pictures[:2, 0].transpose(0, 1).log_softmax(2)


FUNCTIONS: Dict[str, Callable[[Any], Any]] = {
    "softplus": lambda x: functional.softplus(x, 2.0, 0.5),
    "divisor": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "divisor of windows that begin inside": lambda x: functional.avg_pool2d(x, (3, 2), (2, 3), 1, True, True, 5),
    "divisor in space": lambda x: functional.avg_pool3d(x[:, None], (1, 2, 2), divisor_override=5),
    "cosine": lambda x: functional.cosine_similarity(vectors(x), vectors(x).flip(1), dim=2, eps=0.5),
    "distances of pairs": lambda x: functional.pairwise_distance(vectors(x), vectors(x).flip(1) + 1, p=1),
    "cubic distances of pairs": lambda x: functional.pairwise_distance(vectors(x), vectors(x).flip(1) + 1, p=3, keepdim=True),
    "all distances": lambda x: torch.cdist(vectors(x), vectors(x)),
    "all sums of distances": lambda x: torch.cdist(vectors(x), vectors(x).flip(1) * 2, p=1),
    "all largest distances": lambda x: torch.cdist(vectors(x), vectors(x).flip(1) * 2, p=float("inf")),
    "numbers of differences": lambda x: torch.cdist(vectors(x), vectors(x).flip(1), p=0) * x.mean(),
    "means": lambda x: x.scatter_reduce(3, places(x), x * 2, "mean", include_self=False),
    "means with the first": lambda x: torch.scatter_reduce(x, 3, places(x), x.flip(2), "mean"),
    "sums": lambda x: x.scatter_reduce(3, places(x), x * 2, "sum", include_self=False),
    "inner products": lambda x: torch.vdot(x.flatten(), x.flatten()) * x / 300,
    "noise that adds up to one": lambda x: x * functional.gumbel_softmax(x.detach() * 0, dim=3).sum(3, keepdim=True),
    "running products": lambda x: (x * places(x)).cumprod(3) + torch.cumprod(x, dim=2),
    "running products of one": lambda x: x[..., :1].cumprod(-1),
    "running maxima": lambda x: torch.cummax(x, 3)[0] + x * x.clamp(0, 1).cummax(dim=2).indices + x.clamp(0, 1).cummax(2).values,
    "running minima": lambda x: torch.cummin(x, dim=3).values + x.cummin(2)[0],
    "ranks": lambda x: x.kthvalue(2, 3)[0] + torch.kthvalue(x, 5, 2, keepdim=True).values.squeeze(2),
    "medians": lambda x: x.median(3, keepdim=True)[0] + torch.median(x, dim=2, keepdim=True).values,
    "median of all": lambda x: x * x.median(),
    "places in order": lambda x: x * (torch.searchsorted(WEIGHTS - 2, x) + torch.searchsorted(x.sort(3)[0], x, right=True)),
    "places by another order": lambda x: x * torch.searchsorted(x[0, 0, 0], x.detach(), side="right", sorter=x[0, 0, 0].argsort()),
    "hypotenuses": lambda x: torch.hypot(x, x.flip(3) + 1),
    "extremes of numbers": lambda x: x.fmax(torch.where(x.flip(3) > 0, float("nan"), x.flip(3))) + torch.fmin(x.clamp(0, 1), torch.zeros(())),
    "inverse errors": lambda x: torch.erfinv(x.tanh()) + (x.clamp(-0.5, 0.5) * 1.99).erfinv() + torch.special.erfinv(x * 0.01),
    "signs of others": lambda x: torch.copysign(x, x.flip(3)) + x.copysign(-2.0) + torch.copysign(x, x.clamp(min=0) * -0.0),
    "powers of two": lambda x: torch.exp2(x) + x.exp2(),
    "diagonals": lambda x: (x[0, 0] * 1).fill_diagonal_(0.5) * x,
    "logarithms of gamma": lambda x: torch.lgamma(x * x + 0.1) + x.abs().add(9).lgamma() + torch.special.gammaln(x.clamp(-0.9, -0.1)),
    "their derivatives": lambda x: torch.digamma(x * x + 0.3) + x.clamp(-0.9, -0.1).digamma(),
    "most frequent values": lambda x: x * x.round().mode(3, keepdim=True)[0] + x * torch.mode(places(x) * x[..., :1], 3, True).indices,
    "covariances": lambda x: (torch.cov(x.flatten(1)) + x.flatten(1).corrcoef()).expand(8, 8) + x[0].flatten().cov(correction=0),
    "distances in a set": lambda x: x * functional.pdist(vectors(x)[0]).sum() + torch.pdist(x[:, 0, 0], 1).sum(),
    "alignments": lambda x: x * functional.ctc_loss(scores(x), CLASSES, (6, 5), (3, 2), zero_infinity=True),
    "alignments of each": lambda x: x[:2] * functional.ctc_loss(scores(x), CLASSES, torch.tensor([6, 6]), torch.tensor([2, 0]), 5, "none")[:, None, None, None],
    "one of them": lambda x: x * functional.gumbel_softmax(x.detach() * 0, dim=3, hard=True).sum(3, keepdim=True),
}


def compare(module: Any, loss: Any, labels: Any) -> None:
    """Compares three steps with PyTorch's."""
    theirs = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (module, theirs)]
    trainer = forebay.torch.Trainer(module, X, loss, optimizers[0], example_labels=labels)
    for _ in range(3):
        optimizers[1].zero_grad()
        value = loss(theirs(X), labels)
        value.backward()
        optimizers[1].step()
        assert trainer.step(X, labels).loss == pytest.approx(float(value.detach()), rel=1e-4)
    trainer.write_back()
    for one, other in zip(module.parameters(), theirs.parameters()):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_are_pytorchs(kind: str) -> None:
    torch.manual_seed(0)
    compare(Applied(FUNCTIONS[kind]), lambda result, labels: (result * labels.mean() - 0.3).square().mean(), SHARES)


#: Rows and elements, several of which are the same.
ROWS, COLUMNS = torch.tensor([0, 2, 2, -1]), torch.tensor([1, 3, 3, 0])
#: What adds values at places that occur more than once.
SUMS: Dict[str, Any] = {
    "rows put": lambda x: torch.zeros_like(x).index_put((ROWS,), x[:4], accumulate=True),
    "elements put": lambda x: torch.zeros_like(x).index_put((ROWS, COLUMNS), x[:4, 0], accumulate=True),
    "elements put in place": lambda x: (x * 1).index_put_((ROWS[:, None], COLUMNS), x[:4, :4] * x[:1, :1], accumulate=True),
    "one number": lambda x: (x * 1).index_put((ROWS,), x.sum(), accumulate=True),
    "rows added": lambda x: (x * 1).index_add(0, ROWS % 5, x[:4] * x[:4], alpha=0.5),
    "columns added in place": lambda x: torch.zeros_like(x).index_add_(1, COLUMNS, x[:, :4]),
}


@pytest.mark.parametrize("kind", SUMS)
def test_values_added_at_the_same_place_are_all_added(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    module = nn.Linear(6, 6)
    module.forward = functools.partial(lambda own, x: SUMS[kind](functional.linear(x, own.weight, own.bias)), module)
    theirs = copy.deepcopy(module)
    theirs.forward = functools.partial(module.forward.func, theirs)
    theirs(x).square().mean().backward()
    report = forebay.torch.Trainer(module, x, nn.MSELoss(), forebay.SGD(0.1)).step(x, torch.zeros(5, 6), gradients=True)
    assert report.loss == pytest.approx(float(theirs(x).square().mean().detach()), rel=1e-4)
    assert report.gradients is not None
    assert torch.allclose(torch.from_numpy(report.gradients["weight"]), theirs.weight.grad, rtol=1e-3, atol=1e-5)


def test_one_hot_needs_a_number_of_classes() -> None:
    module = Applied(lambda x: x * functional.one_hot((x > 0).long()).sum())
    for run in (lambda: forebay.torch.compile(module)(X), lambda: forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(0.1))):
        with pytest.raises(forebay.InvalidArgument, match="one_hot without a number of classes, .* num_classes=10"):
            run()


def test_counts_are_refused() -> None:
    module = Applied(lambda x: x * torch.bincount((x > 0).long().flatten()).sum())
    for run in (lambda: forebay.torch.compile(module)(X), lambda: forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(0.1))):
        with pytest.raises(forebay.InvalidArgument, match="bincount, .* use torch.nn.functional.one_hot"):
            run()


def cross_entropy(**options: Any) -> Any:
    return lambda result, labels: functional.cross_entropy(result, labels, **options).square().mean()


LOSSES: Dict[str, Tuple[Any, Any]] = {
    "probabilities": (cross_entropy(label_smoothing=0.1), SHARES),
    "weighted probabilities": (cross_entropy(weight=WEIGHTS, reduction="none"), SHARES),
    "smoothed": (cross_entropy(label_smoothing=0.1, ignore_index=1, weight=WEIGHTS), LABELS),
    "smoothed, each": (cross_entropy(label_smoothing=0.2, reduction="none"), LABELS),
    "smoothed, in all": (nn.CrossEntropyLoss(label_smoothing=0.2, reduction="sum", ignore_index=0), LABELS),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_cross_entropies_are_pytorchs(kind: str) -> None:
    torch.manual_seed(0)
    compare(nn.Linear(6, 3), *LOSSES[kind])


def fixed(x: Any) -> Any:
    """Targets, through which no gradient passes."""
    return x.flip(1).detach()


#: Losses of the two results of a layer and of targets that are detached.
DETACHED: Dict[str, Callable[[Any], Any]] = {
    "absolute": lambda x: functional.l1_loss(x, fixed(x)) + nn.L1Loss(reduction="sum")(x, fixed(x)),
    "absolute, by the old arguments": lambda x: functional.l1_loss(x, fixed(x), reduce=False).square().sum(),
    "smooth": lambda x: functional.smooth_l1_loss(x, fixed(x), beta=0.5) + nn.SmoothL1Loss(beta=0.0)(x, fixed(x)),
    "Huber": lambda x: functional.huber_loss(x, fixed(x), delta=0.5) + nn.HuberLoss(reduction="sum")(x, fixed(x)),
    "binary": lambda x: functional.binary_cross_entropy(x.sigmoid(), fixed(x).sigmoid(), weight=torch.arange(6.0)),
    "binary at its ends": lambda x: functional.binary_cross_entropy((x * 0.3 + 0.5).clamp(0, 1), (fixed(x) > 0).float()),
    "binary with learned targets": lambda x: functional.binary_cross_entropy(fixed(x).sigmoid(), x.sigmoid()),
    "Poisson": lambda x: functional.poisson_nll_loss(x, fixed(x).abs(), full=True) + nn.PoissonNLLLoss(False)(x.sigmoid(), fixed(x).abs()),
    "hinge": lambda x: functional.hinge_embedding_loss(x, fixed(x).sign(), margin=0.3),
    "ranks": lambda x: nn.MarginRankingLoss(0.2)(x, x.flip(0), fixed(x).sign()),
    "triplets": lambda x: functional.triplet_margin_loss(x, fixed(x), x.flip(0)) + nn.TripletMarginLoss(swap=True, p=1)(x, fixed(x), x.flip(0)),
    "margins": lambda x: functional.soft_margin_loss(x, fixed(x).sign()),
    "products of logarithms": lambda x: (torch.xlogy(x.sigmoid(), fixed(x).exp()) + torch.xlogy(torch.zeros(6), x.exp())).square().mean(),
    "sums in logarithms": lambda x: torch.logaddexp(x, fixed(x)).square().mean(),
    "added products": lambda x: (torch.addcmul(x, x, fixed(x), value=0.5) + x.addcdiv(x, fixed(x).exp())).square().mean(),
    "differences": lambda x: (x.diff(n=2) * fixed(x)[:, 2:] + torch.diff(fixed(x), prepend=fixed(x)[:, :1])[:, 2:]).square().mean(),
    "turned": lambda x: (torch.rot90(x, 2).fliplr() * fixed(x) + x.rot90(1)[:, :6].flipud().sum()).square().mean(),
}


@pytest.mark.parametrize("kind", DETACHED)
def test_losses_of_what_is_detached(kind: str) -> None:
    torch.manual_seed(0)
    compare(nn.Linear(6, 6), lambda result, labels: DETACHED[kind](result) * labels.mean(), SHARES)


#: Losses of the samples that have a label.
SELECTED: Dict[str, Callable[[Any, Any], Any]] = {
    "cross-entropy": lambda x, mask: functional.cross_entropy(x[mask], LABELS[mask]),
    "weighted": lambda x, mask: functional.cross_entropy(x[mask], LABELS[mask], weight=WEIGHTS, reduction="sum"),
    "smoothed": lambda x, mask: functional.cross_entropy(x[mask], LABELS[mask], label_smoothing=0.1),
    "each": lambda x, mask: functional.cross_entropy(x[mask], LABELS[mask], reduction="none").square().mean(),
    "negative logarithms": lambda x, mask: functional.nll_loss(x.log_softmax(1)[mask], LABELS[mask]),
    "gathered": lambda x, mask: -x.log_softmax(1)[mask].gather(1, LABELS[mask][:, None]).mean(),
    "absolute": lambda x, mask: functional.l1_loss(x[mask], SHARES[mask]) + functional.huber_loss(x[mask], SHARES[mask]),
    "norms": lambda x, mask: x[mask].norm() + x[mask].logsumexp(0).sum() + x[mask].prod(0).sum(),
}


@pytest.mark.parametrize("kind", SELECTED)
def test_losses_of_selected_samples(kind: str) -> None:
    torch.manual_seed(0)
    compare(nn.Linear(6, 3), lambda result, labels: SELECTED[kind](result, labels[:, 0] > 0.4), SHARES)


def test_noise_differs_from_step_to_step() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.Flatten())
    module.forward = lambda x: functional.gumbel_softmax(module[0](x), hard=True)
    trainer = forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(1e-30))
    losses = {trainer.step(X, SHARES).loss for _ in range(4)}
    assert len(losses) > 1
    # Gradients pass by the probabilities.
    gradients = trainer.step(X, SHARES, gradients=True).gradients
    assert gradients is not None and float(abs(gradients["0.weight"]).max()) > 1e-3
