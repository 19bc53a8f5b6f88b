"""Special functions that PyTorch's exporter without decompositions does not know, from approximations that are exact in float32 or nearly so, while
a module is traced. Their slopes are those of the functions, not of the approximations."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from ._torch_mathematics import digamma, ended, inverse_of_error, lgamma, polynomial

_untyped: Any = torch
_special: Any = _untyped.special

#: The logarithm of t times the factor of ``exp(-x * x)`` in ``erfc``, by t = 2 / (2 + x), for positive x (Press and others).
_TAIL = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223)
#: The modified Bessel functions (Abramowitz and Stegun, 9.8.1 to 9.8.4): of the square of x / 3.75, and of 3.75 / x from there on.
_BESSEL: Tuple[Tuple[Sequence[float], Sequence[float]], ...] = (
    (
        (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0),
        (0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319, 0.01328592, 0.39894228),
    ),
    (
        (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5),
        (-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018, -0.03988024, 0.39894228),
    ),
)
_BESSEL_MIN = 3.75
#: Euler and Maclaurin's sum is exact in float32 after this many terms, with these Bernoulli numbers divided by factorials.
_TERMS = 9
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240)


def sloped(input: Any, value: Any, slope: Any) -> Any:
    """Returns a function's value with its slope as the gradient, which is 0 where either is infinite."""
    x, slope = ended(input), ended(slope)
    is_finite = (x.abs() < math.inf) & (slope.abs() < math.inf)
    zero = torch.zeros_like(x)
    return ended(value) + torch.where(is_finite, slope, zero) * (torch.where(is_finite, input, zero) - torch.where(is_finite, x, zero))


def _operator(name: str) -> Callable[[Any], Any]:
    """Returns a function that ONNX has."""
    compute: Any = getattr(torch, name.lower())

    class Operator(torch.autograd.Function):
        """The function."""

        @staticmethod
        def forward(ctx: Any, input: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = compute(input)
            return found

        @staticmethod
        def symbolic(graph: Any, input: Any) -> Any:
            """Returns its node."""
            return graph.op(name, input).setType(input.type())

    apply: Any = Operator.apply
    return lambda input: apply(input if input.is_floating_point() else input.float())


def _scaled_tail(x: Any) -> Any:
    """Returns erfc(x) * exp(x * x) for positive x."""
    t = 2 / (2 + x)
    return t * polynomial(_TAIL, t).exp()


def _complement_at(x: Any) -> Any:
    tail = _scaled_tail(x.abs()) * (-x * x).exp()
    return torch.where(x < 0, 2 - tail, tail)


def complement(input: Any) -> Any:
    """Computes ``erfc``."""
    x = ended(input)
    return sloped(input, _complement_at(x), (-x * x).exp() * (-2 / math.sqrt(math.pi)))


def _scaled_complement_at(x: Any) -> Any:
    tail = _scaled_tail(x.abs())
    return torch.where(x < 0, 2 * (x * x).exp() - tail, tail)


def _scaled_complement(input: Any) -> Any:
    x = ended(input)
    value = _scaled_complement_at(x)
    return sloped(input, value, 2 * x * value - 2 / math.sqrt(math.pi))


def _normal(input: Any) -> Any:
    return 0.5 * complement(input * -math.sqrt(0.5))


def _logarithm_of_normal(input: Any) -> Any:
    x = ended(input)
    scaled = _scaled_complement_at(x * -math.sqrt(0.5))
    rest = 0.5 * _complement_at(x * math.sqrt(0.5))
    # The logarithm of 1 less a small number needs two terms of its series.
    of_rest = torch.where(rest < 1e-3, -rest - 0.5 * rest * rest, (1 - rest).log())
    value = torch.where(x < -1, scaled.log() - math.log(2) - 0.5 * x * x, of_rest)
    return sloped(input, value, math.sqrt(2 / math.pi) / scaled)


def _inverse_of_normal(input: Any) -> Any:
    """A share and the distances from both ends of what is twice as large and less one, without what a difference loses."""
    scaled = 2 * input - 1
    return math.sqrt(2) * inverse_of_error(scaled, -(4 * ended(input) * (1 - ended(input))).log())


def _bessel(order: int, x: Any) -> Tuple[Any, Any]:
    """Returns a modified Bessel function of a positive number, divided by exp(x) from ``_BESSEL_MIN`` on, and where it is."""
    near, far = _BESSEL[order]
    is_far = x >= _BESSEL_MIN
    t = torch.where(is_far, torch.zeros_like(x), x / _BESSEL_MIN)
    inner = polynomial(near, t * t)
    large = torch.where(is_far, x, torch.full_like(x, _BESSEL_MIN))
    outer = polynomial(far, _BESSEL_MIN / large) / large.sqrt()
    return torch.where(is_far, outer, inner * x if order == 1 else inner), is_far


def _bessel_function(order: int, is_scaled: bool) -> Callable[[Any], Any]:
    def value_of(each: int, x: Any) -> Any:
        size = x.abs()
        found, is_far = _bessel(each, size)
        of_far = torch.where(is_far, size, torch.zeros_like(size))
        of_near = torch.where(is_far, torch.zeros_like(size), size)
        found = found * ((-of_near).exp() if is_scaled else of_far.exp())
        return found * x.sign() if each == 1 else found

    def function(input: Any) -> Any:
        x = ended(input if input.is_floating_point() else input.float())
        zero, one = value_of(0, x), value_of(1, x)
        is_zero = x == 0
        of_one = zero - torch.where(is_zero, 0.5, one / torch.where(is_zero, torch.ones_like(x), x))
        value, slope = (one, of_one) if order == 1 else (zero, one)
        return sloped(input, value, slope - x.sign() * value if is_scaled else slope)

    return function


def zeta(input: Any, other: Any) -> Any:
    """Computes Hurwitz' zeta function: the sum of ``(other + k) ** -input`` over all k."""
    s, q = (each if isinstance(each, torch.Tensor) else torch.tensor(float(each)) for each in (input, other))
    s = ended(s if s.is_floating_point() else s.float())
    last = q + _TERMS
    total = last ** (1 - s) / (s - 1) + 0.5 * last**-s
    for k in range(_TERMS):
        total = total + (q + k) ** -s
    factor = s
    for number, bernoulli in enumerate(_BERNOULLI):
        total = total + bernoulli * factor * last ** (-s - (2 * number + 1))
        factor = factor * (s + (2 * number + 1)) * (s + (2 * number + 2))
    return total


def _second_slope(x: Any) -> Any:
    """Returns the slope of ``digamma``."""
    is_small = x < 0.5
    found = zeta(2.0, torch.where(is_small, 1 - x, x))
    sines = torch.where(is_small, (x * math.pi).sin(), torch.ones_like(x))
    return torch.where(is_small, (math.pi / sines) ** 2 - found, found)


def _polygamma(n: Any, input: Any) -> Any:
    # The method and the function have their arguments in different orders.
    order, x = (n, input) if isinstance(n, int) else (input, n)
    if order == 0:
        return digamma(x)
    if order == 1:
        return _second_slope(x)
    return (-1) ** (order + 1) * math.factorial(order) * zeta(order + 1.0, x)


def _many_gammas(a: Any, p: int) -> Any:
    total = torch.full_like(a, p * (p - 1) / 4 * math.log(math.pi))
    for j in range(p):
        total = total + lgamma(a - j / 2)
    return total


def _cardinal_sine(input: Any) -> Any:
    is_zero = input == 0
    angle = torch.where(is_zero, torch.ones_like(input), input) * math.pi
    return torch.where(is_zero, torch.ones_like(input), angle.sin() / angle)


def _less_one(input: Any) -> Any:
    """Computes ``expm1`` without a difference of numbers that are nearly the same."""
    x = ended(input)
    near = torch.where(x.abs() < 1, x, torch.zeros_like(x))
    value = torch.where(x.abs() < 1, (0.5 * near).tanh() * (near.exp() + 1), x.exp() - 1)
    return sloped(input, value, x.exp())


def _entropy(input: Any) -> Any:
    is_positive = input > 0
    x = torch.where(is_positive, input, torch.ones_like(input))
    return torch.where(is_positive, -x * x.log(), torch.where(input < 0, -math.inf, torch.zeros_like(input)))


def _logarithm_product(input: Any, other: Any) -> Any:
    x, y = (each if isinstance(each, torch.Tensor) else torch.tensor(float(each)) for each in (input, other))
    # Nothing times an infinite logarithm is 0.
    is_zero = (x == 0) & (y == y)
    return torch.where(is_zero, 0.0, x * torch.where(is_zero, 1.0, 1 + y).log())


def _logarithm_of_sum(input: Any, other: Any) -> Any:
    pair = torch.stack(list(_untyped.broadcast_tensors(input, other)))
    return (pair * math.log(2)).logsumexp(0) / math.log(2)


def _truncated(input: Any) -> Any:
    """No gradient passes it."""
    x = ended(input)
    return x.sign() * x.abs().floor() if input.is_floating_point() else input


def _fraction(input: Any) -> Any:
    return input - _truncated(input)


def _sign(input: Any) -> Any:
    return input.sign()


def _is_negative(input: Any) -> Any:
    if not input.is_floating_point():
        return input < 0
    # The sign of a zero is that of its reciprocal.
    x = ended(input)
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _step(input: Any, values: Any) -> Any:
    return torch.where(input == 0, values, (input > 0).to(input.dtype))


def _is_close(input: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    found = (input == other) | ((input - other).abs() <= atol + rtol * other.abs())
    return found | ((input != input) & (other != other)) if equal_nan else found


def _with_exponent(input: Any, other: Any) -> Any:
    return input * torch.pow(2.0, other.to(input.dtype))


def _power(input: Any, exponent: Any) -> Any:
    base, power = (each.double() if isinstance(each, torch.Tensor) else float(each) for each in (input, exponent))
    return _untyped.pow(base, power)


def _without_nan(reduce: str) -> Callable[..., Any]:
    def reduced(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        x = input if dtype is None else input.to(dtype)
        is_number = x == x
        axes: List[int] = list(range(x.dim())) if dim is None else dim
        total = torch.where(is_number, x, torch.zeros_like(x)).sum(axes, keepdim)
        return total if reduce == "nansum" else total / is_number.to(x.dtype).sum(axes, keepdim)

    return reduced


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that overwrites its first operand with its result."""
    return lambda input, *arguments, **named: input.copy_(function(input, *arguments, **named))


_function: Any
#: What computes these functions in an export.
SPECIAL: Dict[Any, Callable[..., Any]] = {}
for _name, _function in (
    *((name.lower(), _operator(name)) for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")),
    ("erfc", complement),
    ("sinc", _cardinal_sine),
    ("i0", _bessel_function(0, False)),
    ("polygamma", _polygamma),
    ("expm1", _less_one),
    ("trunc", _truncated),
    ("fix", _truncated),
    ("frac", _fraction),
    ("sgn", _sign),
    ("signbit", _is_negative),
    ("heaviside", _step),
    ("isclose", _is_close),
    ("ldexp", _with_exponent),
    ("float_power", _power),
    ("logaddexp2", _logarithm_of_sum),
    ("nansum", _without_nan("nansum")),
    ("nanmean", _without_nan("nanmean")),
    ("mvlgamma", _many_gammas),
):
    SPECIAL[getattr(torch, _name)] = SPECIAL[getattr(torch.Tensor, _name)] = _function
for _name, _of_special in (
    ("erfc", complement),
    ("erfcx", _scaled_complement),
    ("ndtr", _normal),
    ("ndtri", _inverse_of_normal),
    ("log_ndtr", _logarithm_of_normal),
    ("entr", _entropy),
    ("xlog1py", _logarithm_product),
    ("sinc", _cardinal_sine),
    ("expm1", _less_one),
    ("i0", _bessel_function(0, False)),
    ("i0e", _bessel_function(0, True)),
    ("i1", _bessel_function(1, False)),
    ("i1e", _bessel_function(1, True)),
    ("zeta", zeta),
    ("polygamma", _polygamma),
    ("multigammaln", _many_gammas),
):
    SPECIAL[getattr(_special, _name)] = _of_special
for _name in "sinh cosh asinh acosh atanh erfc sinc i0 polygamma expm1 trunc fix frac sgn ldexp float_power".split():
    for _holder in (torch.Tensor, _untyped):
        if hasattr(_holder, f"{_name}_"):
            SPECIAL[getattr(_holder, f"{_name}_")] = _in_place(SPECIAL[getattr(torch.Tensor, _name)])
