"""Functions of linear algebra that ONNX has no operators for, computed from others while a module is traced. The sizes of matrices are fixed, so
eliminations are written step by step."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ._torch_mathematics import ended, with_gradient_of
from .errors import InvalidArgument

_untyped: Any = torch
_linalg: Any = torch.linalg
#: Up to this norm, this many terms of the series of an exponential are exact in float32.
_NORM_MAX, _TERMS = 0.5, 8
#: The most times that an exponential is squared.
_SQUARINGS_MAX = 12


def _transposed(matrix: Any) -> Any:
    return matrix.transpose(-2, -1)


def _identity(like: Any) -> Any:
    return torch.eye(int(like.shape[-1]), dtype=like.dtype)


def _square(input: Any) -> Any:
    if input.dim() < 2 or int(input.shape[-1]) != int(input.shape[-2]):
        raise RuntimeError(f"linalg: A must be batches of square matrices, but they are {[int(size) for size in input.shape]}")
    return input


def _eliminated(input: Any) -> Tuple[Any, Any, Any]:
    """Returns the inverse of matrices, the logarithm of the absolute value of their determinants, and its sign, without gradients."""
    matrix = ended(_square(input))
    size = int(matrix.shape[-1])
    numbers = torch.arange(size)
    joined = torch.cat([matrix, _identity(matrix).expand_as(matrix)], -1)
    logarithm, sign = torch.zeros_like(matrix[..., 0, 0]), torch.ones_like(matrix[..., 0, 0])
    for step in range(size):
        # The largest element of the column comes first.
        place = torch.where(numbers >= step, joined[..., step].abs(), -1.0).argmax(-1, keepdim=True)
        order = torch.where(numbers == step, place, torch.where(numbers == place, step, numbers))
        joined = joined.gather(-2, order.unsqueeze(-1).expand_as(joined))
        pivot = joined[..., step : step + 1, step : step + 1]
        row = joined[..., step : step + 1, :] / pivot
        joined = torch.where((numbers == step).unsqueeze(-1), row, joined - joined[..., step : step + 1] * row)
        logarithm = logarithm + pivot.abs().log()[..., 0, 0]
        sign = sign * pivot.sign()[..., 0, 0] * torch.where(place == step, 1.0, -1.0)[..., 0]
    return joined[..., size:], logarithm, sign


def _inverse(input: Any) -> Any:
    found = _eliminated(input)[0]
    # A step of Newton's iteration, whose gradient is that of the inverse.
    return found + found @ (_identity(input) - input @ found)


def _solve_by(inverse: Any, matrix: Any, wanted: Any) -> Any:
    """Returns solutions, given the inverse without gradients."""
    first = ended(inverse @ wanted)
    return first + inverse @ (wanted - matrix @ first)


def _solve(A: Any, B: Any, *, left: bool = True) -> Any:
    is_vector = B.dim() == 1 or (A.dim() - 1 == B.dim() and [int(each) for each in B.shape] == [int(each) for each in A.shape[:-1]])
    wanted = B.unsqueeze(-1) if is_vector else B
    if not left:
        return _transposed(_solve_by(_transposed(_eliminated(A)[0]), _transposed(A), _transposed(wanted)))
    found = _solve_by(_eliminated(A)[0], A, wanted)
    return found.squeeze(-1) if is_vector else found


def _triangle(input: Any, upper: bool) -> Any:
    return input.triu() if upper else input.tril()


def _solve_triangle(input: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    triangle = _triangle(_square(input), upper)
    if unitriangular:
        triangle = torch.where(_identity(input) > 0, 1.0, triangle)
    return _solve(triangle, B, left=left)


def _determinant_in_logarithms(kind: Any) -> Callable[..., Any]:
    def found(input: Any) -> Any:
        inverse, logarithm, sign = _eliminated(input)
        return kind((sign, with_gradient_of(logarithm, (input * _transposed(inverse)).sum((-2, -1)))))

    return found


def _cholesky(input: Any, *, upper: bool = False) -> Any:
    size = int(_square(input).shape[-1])
    own = _transposed(input) if upper else input
    lower = own.tril()
    # As in PyTorch, values are those of one triangle, and gradients are symmetric.
    matrix = with_gradient_of(lower + _transposed(own.tril(-1)), (own + _transposed(own)) / 2)
    numbers = torch.arange(size)
    columns: List[Any] = []
    for step in range(size):
        column = matrix[..., step]
        if columns:
            known = torch.stack(columns, -1)
            column = column - (known @ known[..., step, :].unsqueeze(-1)).squeeze(-1)
        columns.append(torch.where(numbers >= step, column / column[..., step : step + 1].sqrt(), 0.0))
    found = torch.stack(columns, -1)
    return _transposed(found) if upper else found


def _old_cholesky(input: Any, upper: bool = False) -> Any:
    return _cholesky(input, upper=upper)


def _solve_cholesky(B: Any, L: Any, upper: bool = False) -> Any:
    lower = _transposed(L.triu()) if upper else L.tril()
    first = _solve_triangle(lower, B, upper=False)
    return _solve_triangle(_transposed(lower), first, upper=True)


def _inverse_of_cholesky(L: Any, upper: bool = False) -> Any:
    found = _inverse(_transposed(L.triu()) if upper else L.tril())
    return _transposed(found) @ found


def _orthogonal_triangular(A: Any, mode: str = "reduced") -> Any:
    """Householder's reflections, with the signs that LAPACK has."""
    if mode != "reduced":
        raise InvalidArgument(f"the module calls torch.linalg.qr with mode='{mode}', which its export does not have; use mode='reduced'")
    rows, columns = int(A.shape[-2]), int(A.shape[-1])
    least, numbers = min(rows, columns), torch.arange(rows)
    orthogonal, triangular = torch.eye(rows, dtype=A.dtype).expand(*A.shape[:-1], rows), A
    for step in range(min(rows - 1, columns)):
        column = torch.where(numbers >= step, triangular[..., step], 0.0)
        first = column[..., step : step + 1]
        length = (column * column).sum(-1, keepdim=True).sqrt()
        normal = column + torch.where(numbers == step, torch.where(first < 0, -length, length), 0.0)
        normal = normal.unsqueeze(-1)
        scaled = normal * (2 / (normal * normal).sum(-2, keepdim=True))
        triangular = triangular - scaled @ (_transposed(normal) @ triangular)
        orthogonal = orthogonal - (orthogonal @ normal) @ _transposed(scaled)
    return _untyped.return_types.linalg_qr((orthogonal[..., :least], triangular[..., :least, :].triu()))


def _product_of_reflections(input: Any, tau: Any) -> Any:
    rows, columns, count = int(input.shape[-2]), int(input.shape[-1]), int(tau.shape[-1])
    numbers = torch.arange(rows)
    found = torch.eye(rows, dtype=input.dtype)[:, :columns].expand_as(input)
    for step in reversed(range(count)):
        normal = torch.where(numbers > step, input[..., step], torch.where(numbers == step, 1.0, 0.0)).unsqueeze(-1)
        found = found - (tau[..., step : step + 1].unsqueeze(-1) * normal) @ (_transposed(normal) @ found)
    return found


def _exponential(input: Any) -> Any:
    """The exponential of a part of a matrix, which is then squared as often as its norm asks for."""
    norm = ended(_square(input)).abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    times = (norm / _NORM_MAX).clamp(min=1.0).log2().ceil().clamp(max=float(_SQUARINGS_MAX))
    part, identity = input * torch.pow(2.0, -times), _identity(input)
    found = identity + part / _TERMS
    for term in range(_TERMS - 1, 0, -1):
        found = identity + part @ found / term
    for step in range(_SQUARINGS_MAX):
        is_squared = times > step
        # What is not used must not become infinite.
        own = torch.where(is_squared, found, identity)
        found = torch.where(is_squared, own @ own, found)
    return found


def _pseudoinverse(input: Any, *arguments: Any, **named: Any) -> Any:
    if arguments or any(value not in (None, False) for value in named.values()):
        raise InvalidArgument("the module calls torch.linalg.pinv with a tolerance, which its export does not have; leave it out")
    is_wide = int(input.shape[-1]) > int(input.shape[-2])
    orthogonal, triangular = _orthogonal_triangular(_transposed(input) if is_wide else input)
    found = _solve_triangle(triangular, _transposed(orthogonal), upper=True)
    return _transposed(found) if is_wide else found


def _powers(x: Any, *, N: Optional[int] = None) -> Any:
    columns = [torch.ones_like(x)]
    for _ in range(1, int(x.shape[-1]) if N is None else N):
        columns.append(columns[-1] * x)
    return torch.stack(columns, -1)


def _matrix_norm(norm: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns a norm without the orders that singular values give."""

    def found(input: Any, ord: Any = None, *arguments: Any, **named: Any) -> Any:
        axes = arguments[0] if arguments else named.get("dim")
        is_matrix = name == "matrix_norm" or (input.dim() == 2 if axes is None else isinstance(axes, (tuple, list)) and len(axes) == 2)
        if ord == "nuc" or is_matrix and ord in (2, -2):
            raise _missing(f"torch.linalg.{name} with ord={ord!r}")
        if ord is None and name == "matrix_norm":
            ord = "fro"
        return norm(input, ord, *arguments, **named)

    return found


def _missing(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"the module calls {name}, which is computed from singular values, eigenvalues or factors that no operator of ONNX computes; compute it outside "
        "the module and pass the result as an input, or train this part with PyTorch and the rest with forebay.torch.compile"
    )


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise _missing(name)

    return refuse


_inverses = (_linalg.inv, _untyped.inverse, torch.Tensor.inverse)
_exponentials = (_linalg.matrix_exp, _untyped.matrix_exp, torch.Tensor.matrix_exp)
#: What computes these functions in an export.
ALGEBRA: Dict[Any, Callable[..., Any]] = {
    **{each: _inverse for each in _inverses},
    **{each: _exponential for each in _exponentials},
    _linalg.solve: _solve,
    _linalg.solve_triangular: _solve_triangle,
    _linalg.slogdet: _determinant_in_logarithms(_untyped.return_types.linalg_slogdet),
    _untyped.slogdet: _determinant_in_logarithms(_untyped.return_types.slogdet),
    torch.Tensor.slogdet: _determinant_in_logarithms(_untyped.return_types.slogdet),
    _linalg.cholesky: _cholesky,
    _untyped.cholesky: _old_cholesky,
    torch.Tensor.cholesky: _old_cholesky,
    _untyped.cholesky_solve: _solve_cholesky,
    torch.Tensor.cholesky_solve: _solve_cholesky,
    _untyped.cholesky_inverse: _inverse_of_cholesky,
    torch.Tensor.cholesky_inverse: _inverse_of_cholesky,
    _linalg.qr: _orthogonal_triangular,
    _linalg.householder_product: _product_of_reflections,
    _linalg.pinv: _pseudoinverse,
    _untyped.pinverse: _pseudoinverse,
    torch.Tensor.pinverse: _pseudoinverse,
    _linalg.vander: _powers,
    _linalg.matrix_norm: _matrix_norm(_linalg.matrix_norm, "matrix_norm"),
    _linalg.norm: _matrix_norm(_linalg.norm, "norm"),
}
for _name in (
    "cholesky_ex cond eig eigh eigvals eigvalsh inv_ex ldl_factor ldl_factor_ex ldl_solve lstsq lu lu_factor lu_factor_ex lu_solve matrix_rank "
    "solve_ex svd svdvals tensorinv tensorsolve"
).split():
    if hasattr(_linalg, _name):
        ALGEBRA[getattr(_linalg, _name)] = _refused(f"torch.linalg.{_name}")
for _name in "geqrf lobpcg lu lu_solve lu_unpack ormqr orgqr pca_lowrank qr svd svd_lowrank triangular_solve".split():
    for _holder in (_untyped, torch.Tensor):
        if hasattr(_holder, _name):
            ALGEBRA[getattr(_holder, _name)] = _refused(f"torch.{_name}")
