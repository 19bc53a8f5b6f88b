"""Functions that only PyTorch's newer exporter knows, which cannot express where gradients end."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
NUMBERS = torch.cat([torch.linspace(-12, 12, 97), torch.tensor([0.0, -0.0, 1e-6, -1e-6, 30.0, -30.0, 85.0, -85.0])])
POSITIVE = NUMBERS.abs() + 1e-3
SHARES = NUMBERS.sigmoid().clamp(1e-6, 1 - 1e-6)
ROWS = torch.randn(8, 6, generator=GENERATOR)


class Function(nn.Module):
    """A function, and a part without a gradient."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x) + x.detach().mean() * 0


def compare(function: Callable[[Any], Any], x: Any) -> None:
    """Compares the values of a function and its gradients with PyTorch's."""
    given = [x.clone().requires_grad_() for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = forebay.torch.compile(Function(function))(given[0]), function(given[1])
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6, equal_nan=True)
    weights = torch.arange(1.0, expected.numel() + 1).reshape(expected.shape) / expected.numel()
    for each in (found, expected):
        (each * weights).sum().backward()
    torch.testing.assert_close(given[0].grad, given[1].grad, rtol=1e-4, atol=1e-5, equal_nan=True)


SPECIAL: Dict[str, Any] = {
    "hyperbolic sines": (lambda x: x.sinh() + torch.sinh(x), NUMBERS.clamp(-60, 60)),
    "hyperbolic cosines": (torch.cosh, NUMBERS.clamp(-60, 60)),
    "their inverses": (lambda x: x.asinh() + (x.abs() + 1.5).acosh() + (x.tanh() * 0.9).atanh(), NUMBERS),
    "complements of errors": (torch.erfc, NUMBERS),
    "scaled complements": (torch.special.erfcx, NUMBERS.clamp(-5, 90)),
    "normal distribution": (torch.special.ndtr, NUMBERS),
    "its logarithm": (torch.special.log_ndtr, NUMBERS),
    "its inverse": (torch.special.ndtri, SHARES),
    "Bessel functions": (lambda x: x.i0() + torch.special.i1(x), NUMBERS.clamp(-12, 12)),
    "scaled Bessel functions": (lambda x: torch.special.i0e(x) + torch.special.i1e(x), NUMBERS),
    "second slopes of the gamma function": (lambda x: torch.polygamma(1, x), torch.cat([POSITIVE.clamp(min=0.05), -POSITIVE[:20] - 0.3])),
    "further slopes": (lambda x: torch.polygamma(3, x) + x.polygamma(2) + torch.special.polygamma(0, x), POSITIVE.clamp(min=0.3)),
    "several gammas": (lambda x: torch.special.multigammaln(x, 3) + x.mvlgamma(2), POSITIVE + 2),
    "zeta": (lambda x: x * torch.special.zeta(x.detach() + 2, torch.tensor(1.5)), POSITIVE),
    "exponentials less one": (lambda x: x.expm1() + torch.special.expm1(x / 9), NUMBERS.clamp(max=40)),
    "cardinal sines": (lambda x: x.sinc() * torch.sinc(x / 3), NUMBERS.clamp(-12, 12)),
    "entropies": (torch.special.entr, POSITIVE),
    "products with logarithms": (lambda x: torch.special.xlog1py(x, x.abs()), NUMBERS),
    "logarithms of sums by powers of two": (lambda x: torch.logaddexp2(x, x.flip(0)), NUMBERS),
    "fractions": (lambda x: x.frac() + x * x.trunc() + x * torch.fix(x), NUMBERS + 0.1),
    "signs": (lambda x: x * x.sgn() + x * x.signbit() + x * torch.heaviside(x.detach(), torch.tensor(0.5)), NUMBERS),
    "close numbers": (lambda x: x * torch.isclose(x, x + x.detach().abs() * 1e-5 * (x.detach() > 0)), NUMBERS),
    "powers": (lambda x: torch.ldexp(x, torch.tensor(3)) + x.float_power(2).float(), NUMBERS),
    "in place": (lambda x: (x * 1).erfc_() + (x * 1).sinh_() + (x * 1).trunc_(), NUMBERS.clamp(-9, 9)),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_functions(kind: str) -> None:
    compare(*SPECIAL[kind])


TARGETS = torch.tensor([1, -1] * 4)
CLASSES = torch.arange(8) % 6


def set_diagonal(x: Any) -> Any:
    x.diagonal().mul_(3.0)
    x.diagonal(1).fill_(0.5)
    return x


OTHERS: Dict[str, Callable[[Any], Any]] = {
    "angles": lambda x: functional.cosine_embedding_loss(x, x.flip(0).detach(), TARGETS, 0.1, reduction="none"),
    "margins of classes": lambda x: functional.multi_margin_loss(x, CLASSES, 2, 0.7, torch.arange(1.0, 7.0)) + nn.MultiMarginLoss()(x[0], CLASSES[3]),
    "margins of several classes": lambda x: nn.MultiLabelMarginLoss()(x, torch.tensor([[3, 0, -1, 2, 1, 0], [5, 5, 5, 5, 5, -1]] * 4)),
    "divergences": lambda x: functional.kl_div(x.log_softmax(1), x.softmax(1).detach().flip(0), reduction="batchmean"),
    "running logarithms": lambda x: x.logcumsumexp(1) + torch.logcumsumexp(x, 0),
    "integrals": lambda x: torch.trapezoid(x, dim=1) + torch.trapz(x, ROWS.cumsum(1), dim=1) + torch.trapezoid(x, torch.arange(6.0) ** 2, dim=1),
    "running integrals": lambda x: torch.cumulative_trapezoid(x, dx=0.5, dim=0),
    "spread of a selection": lambda x: x[x > 0].std() + x[x > 0].var(False) + torch.std(x.masked_select(x < 0), correction=2),
    "quantiles": lambda x: x.quantile(0.3, 1, keepdim=True) + torch.quantile(x, torch.tensor([0.1, 0.9]), 0, interpolation="nearest").sum(),
    "quantiles of all": lambda x: x.quantile(torch.tensor([0.0, 0.25, 1.0])) * x.quantile(0.5, interpolation="higher"),
    "sorted columns": lambda x: x.msort() + x * x.histc(4, -1, 1)[1] + x * torch.histc(x, 5)[0] + x * (x > 0).count_nonzero(1)[:, None],
    "numbers that are some": lambda x: torch.where(x > 1, float("nan"), x).nansum(1) + torch.where(x > 1, float("nan"), x).nanmean(),
    "bounded norms": lambda x: x.renorm(2, 0, 1.0) + torch.renorm(x, 1, 1, 0.5) + torch.dist(x, x.detach() * 2, 3),
    "diagonals": lambda x: x[0].diag(1).trace() + torch.diag_embed(x, -1, 0, 2) + x.diag()[0] + x[:6].trace(),
    "diagonals in space": lambda x: (x[:, None] * x).diagonal(-1, 0, 2) + torch.diagonal(x[:, None] * x, 1, dim1=2, dim2=0).sum(),
    "diagonals that change": lambda x: set_diagonal(x * 1) + set_diagonal(x.flip(0) * 2),
    "diagonals in a tensor": lambda x: x.diagonal_scatter(x[0, :5], 1) + x.select_scatter(x[0], 0, -1) + x.slice_scatter(x[:2] * 2, 0, 1, 4, 2),
    "places": lambda x: x.take_along_dim(x.argsort(1), 1) + x.take_along_dim(CLASSES[None], 1)[:, :6] + x.put(torch.tensor([1, -2]), x[0, :2]),
    "sums at places": lambda x: x.put(torch.tensor([1, 1, 7]), x[0, :3], accumulate=True),
    "parts": lambda x: x.ravel()[:6] + x.hsplit(2)[1].sum() + x.vsplit([3])[1].mean() + x[None].dsplit(3)[2].sum(),
    "stacks": lambda x: torch.dstack([x, x * 2]).sum(2) + torch.column_stack([x, x[:, 0]])[:, 1:],
    "blocks": lambda x: torch.block_diag(x, x[0], x[:2, :1] * 3),
    "pairs": lambda x: torch.cartesian_prod(x[0], x[1, :2]).sum(1)[:10] + torch.combinations(x[0, :5]).prod(1),
    "triples": lambda x: torch.combinations(x[0], 3, with_replacement=True),
    "powers of points": lambda x: torch.linalg.vander(x[0], N=3) + x[0, 0],
    "sums of products": lambda x: torch.addbmm(x[:6], x.T[None], x[None], beta=0.5) + torch.addr(x[:6], x[0], x[1], alpha=2) + torch.addmv(x[0], x[:6], x[1]),
    "inner products": lambda x: torch.inner(x, x.flip(0)) + torch.linalg.multi_dot([x, x.T, x, x.T]),
    "outer products of blocks": lambda x: torch.kron(x[:2], x[:3, :2]) + torch.kron(x[0, :2], x[:6, :6]),
    "bilinear forms": lambda x: functional.bilinear(x, x.flip(0), ROWS[:, None] * ROWS[0, :, None], ROWS[:, 0]),
    "thresholds": lambda x: functional.threshold(x, 0.1, 2.0) + nn.Threshold(-0.2, 0.5, inplace=True)(x * 1),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_functions(kind: str) -> None:
    compare(OTHERS[kind], ROWS)


def test_bilinear_layers_are_trained() -> None:
    layer = nn.Bilinear(6, 6, 3)
    with torch.no_grad():
        expected = functional.mse_loss(layer(ROWS, ROWS.flip(0)), torch.zeros(8, 3))
    trainer = forebay.torch.Trainer(layer, (ROWS, ROWS.flip(0)), nn.MSELoss(), torch.optim.SGD(layer.parameters(), 0.1))
    assert trainer.step((ROWS, ROWS.flip(0)), torch.zeros(8, 3)).loss == pytest.approx(float(expected), rel=1e-5)


class Scale(nn.Module):
    """A module whose only parameter is a number, and which makes larger tensors itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Any) -> Any:
        return torch.where(x > 0, x * self.scale, torch.full_like(x, 0.25)) * torch.linspace(1, 2, 6)


def test_tensors_that_a_module_makes_are_not_parameters() -> None:
    module = Scale()
    trainer = forebay.torch.Trainer(module, ROWS[:, 0:1].expand(8, 6), nn.MSELoss(), torch.optim.SGD(module.parameters(), 0.1))
    assert list(trainer.parameters()) == ["scale"]
    compare(lambda x: torch.where(x > 0, x, torch.zeros_like(x)), NUMBERS)
