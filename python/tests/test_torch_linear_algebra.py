"""Functions of linear algebra, which ONNX has no operators for: parameters, losses and gradients are those of PyTorch."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

linalg: Any = torch.linalg
X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


class Applied(nn.Module):
    """Applies a function to matrices that a layer computes."""

    def __init__(self, function: Callable[[Any], Any], shape: Any = (4, 4)) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.function, self.shape = nn.Linear(6, shape[0] * shape[1]), function, shape

    def forward(self, x: Any) -> Any:
        return self.function(self.layer(x).reshape(-1, *self.shape)).flatten(1)


def steps_are_pytorchs(module: Any, x: Any, tolerance: float = 1e-4) -> None:
    theirs = copy.deepcopy(module)
    target = torch.linspace(-1, 1, theirs(x).numel()).reshape(theirs(x).shape)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.02) for each in (module, theirs)]
    trainer = forebay.torch.Trainer(module, x, nn.MSELoss(), optimizers[0])
    for _ in range(2):
        optimizers[1].zero_grad()
        value = nn.functional.mse_loss(theirs(x), target)
        value.backward()
        optimizers[1].step()
        assert trainer.step(x, target).loss == pytest.approx(float(value.detach()), rel=tolerance)
    trainer.write_back()
    for one, other in zip(module.parameters(), theirs.parameters()):
        assert torch.allclose(one, other, rtol=1e-3, atol=tolerance)


def positive(m: Any) -> Any:
    return m @ m.transpose(-2, -1) + torch.eye(4)


def off(m: Any) -> Any:
    """Matrices whose first pivot is 0."""
    return m * (1 - torch.eye(4)) + torch.eye(4).flip(0) * 4


FUNCTIONS: Dict[str, Callable[[Any], Any]] = {
    "inverse": lambda m: linalg.inv(off(m)) + torch.inverse(positive(m)) + positive(m).inverse(),
    "solutions": lambda m: linalg.solve(off(m), m),
    "vectors that solve": lambda m: linalg.solve(off(m), m[:, 0]),
    "solutions on the right": lambda m: linalg.solve(positive(m), m, left=False),
    "lower triangles": lambda m: linalg.solve_triangular(positive(m), m, upper=False),
    "upper triangles": lambda m: linalg.solve_triangular(m, m, upper=True, unitriangular=True, left=False),
    "determinants": lambda m: linalg.det(off(m)).unsqueeze(1) * m[:, 0],
    "logarithms": lambda m: linalg.slogdet(off(m)).logabsdet.unsqueeze(1) * linalg.slogdet(off(m))[0].unsqueeze(1) * m[:, 0],
    "logarithms by the old name": lambda m: torch.slogdet(off(m))[1].unsqueeze(1) + positive(m).logdet().unsqueeze(1) * m[:, 0],
    "roots": lambda m: linalg.cholesky(positive(m)) + torch.linalg.cholesky(positive(m * 2), upper=True),
    "solutions by roots": lambda m: torch.cholesky_solve(m, linalg.cholesky(positive(m))),
    "inverses by roots": lambda m: torch.cholesky_inverse(linalg.cholesky(positive(m))),
    "orthogonal and triangular": lambda m: linalg.qr(m)[0] @ m + linalg.qr(m * 2).R,
    "exponentials": lambda m: linalg.matrix_exp(m * 0.1) + torch.matrix_exp(-m * 3) * 1e-3 + (m - m.mT).matrix_exp(),
    "reflections": lambda m: linalg.householder_product(m, m[:, 0] * 0.1),
    "pseudoinverses": lambda m: linalg.pinv(positive(m)) @ m,
    "powers": lambda m: linalg.vander(m[:, 0]) + linalg.vander(m[:, 1], N=4),
    "norms": lambda m: m / linalg.matrix_norm(m, keepdim=True) + m / linalg.matrix_norm(m, 1, keepdim=True) + m / linalg.norm(m),
    "norms of vectors": lambda m: m / linalg.norm(m, 2, dim=2, keepdim=True) + m / linalg.vector_norm(m, 3, dim=1, keepdim=True),
    "adjoints": lambda m: m.mT @ m.mH,
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_are_pytorchs(kind: str) -> None:
    steps_are_pytorchs(Applied(FUNCTIONS[kind]), X)


def test_matrices_that_are_not_square() -> None:
    steps_are_pytorchs(Applied(lambda m: linalg.qr(m).Q + m, (4, 3)), X)
    steps_are_pytorchs(Applied(lambda m: linalg.qr(m).R, (3, 4)), X)
    steps_are_pytorchs(Applied(lambda m: linalg.pinv(m + torch.eye(4)[:, :3]), (4, 3)), X)
    steps_are_pytorchs(Applied(lambda m: linalg.pinv(m + torch.eye(4)[:3]), (3, 4)), X)
    with pytest.raises(Exception, match="square"):
        forebay.torch.Trainer(Applied(lambda m: linalg.inv(m), (3, 4)), X, nn.MSELoss(), forebay.SGD(0.1))


def test_larger_matrices_and_small_pivots() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(40, 40)
    matrix[0, 0] = 1e-12
    compiled = forebay.torch.compile(Applied(lambda m: linalg.solve(matrix + m * 0.01, m), (40, 40)))
    found = compiled(X)
    assert torch.allclose(found, compiled.module(X), rtol=1e-2, atol=2e-3)


def test_batches_of_other_sizes() -> None:
    module = Applied(lambda m: linalg.inv(positive(m)))
    trainer = forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(0.1))
    expected = float(module(X[:3]).square().mean().detach())
    assert trainer.step(X[:3], torch.zeros(3, 16)).loss == pytest.approx(expected, rel=1e-4)


REFUSED: Dict[str, Callable[[Any], Any]] = {
    "torch.linalg.svd": lambda m: linalg.svd(m)[1],
    "torch.linalg.svdvals": lambda m: linalg.svdvals(m),
    "torch.linalg.eigh": lambda m: linalg.eigh(positive(m))[0],
    "torch.linalg.eigvals": lambda m: linalg.eigvals(m).real,
    "torch.linalg.matrix_norm with ord=2": lambda m: linalg.matrix_norm(m, 2, keepdim=True),
    "torch.linalg.norm with ord='nuc'": lambda m: linalg.norm(m, "nuc", dim=(1, 2), keepdim=True),
    "torch.linalg.qr with mode='complete'": lambda m: linalg.qr(m, mode="complete")[0],
    "torch.linalg.pinv with a tolerance": lambda m: linalg.pinv(m, rtol=0.1),
    "torch.svd": lambda m: m.svd()[1],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_export_cannot_compute_is_refused_by_name(name: str) -> None:
    module = Applied(REFUSED[name])
    for run in (lambda: forebay.torch.compile(module)(X), lambda: forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(0.1))):
        with pytest.raises(forebay.InvalidArgument, match=f"the module calls {name}"):
            run()


@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("size", [6, 4])
def test_orthogonal_weights(kind: str, size: int) -> None:
    torch.manual_seed(0)
    steps_are_pytorchs(nn.Sequential(parametrizations.orthogonal(nn.Linear(6, size), orthogonal_map=kind), nn.Tanh()), X)


class Projecting(nn.Module):
    def __init__(self, packs: bool = False, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.recurrent = nn.LSTM(6, 5, proj_size=3, **settings)
        self.packs = packs

    def forward(self, x: Any) -> Any:
        if self.packs:
            x = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 2]), True)
        found, (output, cell) = self.recurrent(x)
        if self.packs:
            found, _ = nn.utils.rnn.pad_packed_sequence(found, True)
        return found.mean(1) + output[-1].mean() + cell[0].mean()


@pytest.mark.parametrize("settings", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "num_layers": 2}])
def test_projections_of_recurrent_layers(settings: Any) -> None:
    steps_are_pytorchs(Projecting(batch_first=True, **settings), torch.randn(3, 7, 6))


def test_projections_of_packed_sequences_are_refused() -> None:
    with pytest.raises(forebay.InvalidArgument, match="proj_size on a packed sequence"):
        forebay.torch.Trainer(Projecting(True, batch_first=True), torch.randn(3, 7, 6), nn.MSELoss(), forebay.SGD(0.1))
