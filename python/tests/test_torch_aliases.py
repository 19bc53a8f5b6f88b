"""Changes in place of tensors that share elements with others."""

from __future__ import annotations

from typing import Any, Callable, Dict

import pytest

torch = pytest.importorskip("torch", reason="there is no PyTorch")
from torch import nn  # noqa: E402

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


class Changing(nn.Module):
    """Changes a view of the results of a layer twice, and returns these."""

    def __init__(self, view: Callable[[Any], Any], change: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 4)
        self.view, self.change = view, change

    def forward(self, x: Any) -> Any:
        whole = self.layer(x) * 1
        part = self.view(whole)
        self.change(part)
        return whole + 0.5


VIEWS: Dict[str, Callable[[Any], Any]] = {
    "all in a row": lambda x: x.view(-1),
    "some in a row": lambda x: x.view(-1)[::3],
    "transposed": lambda x: x.t(),
    "a column": lambda x: x.t()[1],
    "another axis": lambda x: x.unsqueeze(0),
    "a row": lambda x: x[0],
    "rows": lambda x: x[1:3],
    "some rows and columns": lambda x: x[1:5][:, ::2],
    "columns": lambda x: x.narrow(1, 1, 2),
    "a diagonal": lambda x: x.diagonal(),
    "permuted": lambda x: x.permute(1, 0)[1:3],
    "flat": lambda x: x.flatten()[3:9],
    "unflattened": lambda x: x.unflatten(1, (2, 2))[:, 0],
}
CHANGES: Dict[str, Callable[[Any], Any]] = {
    "once": lambda part: part.mul_(-0.5),
    "twice": lambda part: part.mul_(-0.5).add_(0.7),
    "elements": lambda part: part.__setitem__(part > 0, 0.25),
    "a part": lambda part: part.__setitem__(slice(0, 1), 0.25),
    "a function": lambda part: nn.functional.relu_(part),
}


def steps_are_pytorchs(make: Callable[[], Any]) -> None:
    ours, theirs = make(), make()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (ours, theirs)]
    compiled = forebay.torch.compile(ours)(X)
    assert torch.allclose(compiled, theirs(X), atol=1e-5)
    targets = torch.zeros_like(compiled)
    trainer = forebay.torch.Trainer(ours, X, nn.MSELoss(), optimizers[0])
    for _ in range(3):
        optimizers[1].zero_grad()
        loss = theirs(X).square().mean()
        loss.backward()
        optimizers[1].step()
        assert trainer.step(X, targets).loss == pytest.approx(float(loss.detach()), rel=1e-4)
    trainer.write_back()
    for one, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_view_changes_what_it_is_a_view_of(view: str, change: str) -> None:
    steps_are_pytorchs(lambda: Changing(VIEWS[view], CHANGES[change]))


class Seen(nn.Module):
    """Changes the results of a layer, and returns a view of them that was made before."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 4)
        self.view = view

    def forward(self, x: Any) -> Any:
        whole = self.layer(x) * 1
        part, other = self.view(whole), whole[2:]
        other.mul_(0.3)
        whole.mul_(0.5)
        return part


@pytest.mark.parametrize("view", VIEWS)
def test_a_change_changes_views_made_before(view: str) -> None:
    steps_are_pytorchs(lambda: Seen(VIEWS[view]))


def test_batches_of_other_sizes_after_a_change_are_refused() -> None:
    module = Changing(lambda x: x[:, :2], lambda part: part.zero_())
    trainer = forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(0.1))
    with pytest.raises(forebay.InvalidArgument, match="5 samples is not one of 8"):
        trainer.step(X[:5], torch.zeros(5, 4))


class Detached(nn.Module):
    """Changes the results of a layer without gradients, and uses them or not."""

    def __init__(self, uses: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(6, 4)
        self.other = nn.Linear(6, 4)
        self.uses = uses

    def forward(self, x: Any) -> Any:
        whole = self.layer(x)
        part = whole.detach()
        part.clamp_(min=0)
        return self.other(x) - (whole if self.uses else part)


@pytest.mark.parametrize("uses", [False, True])
def test_changes_without_gradients(uses: bool) -> None:
    steps_are_pytorchs(lambda: Detached(uses))


class Unseen(nn.Module):
    """Returns the results of a layer after a change that autograd does not see."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.change = nn.Linear(6, 4), change

    def forward(self, x: Any) -> Any:
        whole = self.layer(x)
        found = self.change(whole)
        return whole if found is None else found


def without_gradients(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(x: Any) -> Any:
        with torch.no_grad():
            change(x)

    return changed


def first_columns(x: Any) -> None:
    x[:, 0].mul_(3)
    x.clamp_(-1, 1)


def mask_and_mean(x: Any) -> None:
    x[x > 0] = 0.1
    x.add_(x.mean())


def detached(x: Any) -> None:
    x.detach().mul_(2)


def data(x: Any) -> None:
    x.data.clamp_(-0.1, 0.1)


def other_data(x: Any) -> None:
    x.data = x.data.clone() * 3


def changed_sum(x: Any) -> Any:
    part = x.detach()
    part[:, 1] = 7
    part += 1
    return x + part


def into_others(x: Any) -> Any:
    parts = [torch.empty(0), torch.zeros_like(x), torch.empty_like(x)]
    with torch.no_grad():
        torch.add(x, 1, out=parts[0])
        torch.mul(x[:, :2], 2, out=parts[1][:, :2])
        torch.clamp(x, -0.5, 0.5, out=parts[2])
    return x * parts[0] + parts[1] + parts[2]


UNSEEN: Dict[str, Callable[[Any], Any]] = {
    "detached": detached,
    "data": data,
    "set data": other_data,
    "in place": without_gradients(lambda x: x.mul_(2)),
    "an item": without_gradients(lambda x: x.__setitem__((slice(None), 0), 0.0)),
    "views": without_gradients(first_columns),
    "a mask": without_gradients(mask_and_mean),
    "detached and used": changed_sum,
    "the detached output of a function": without_gradients(lambda x: torch.clamp(x, -0.5, 0.5, out=x.detach())),
    "outputs of functions": into_others,
}


@pytest.mark.parametrize("change", UNSEEN)
def test_changes_that_autograd_does_not_see(change: str) -> None:
    steps_are_pytorchs(lambda: Unseen(UNSEEN[change]))


def test_a_change_as_another_type_is_refused() -> None:
    module = Unseen(without_gradients(lambda x: x.view(torch.int32).mul_(2)))
    with pytest.raises(forebay.Error):
        forebay.torch.Trainer(module, X, nn.MSELoss(), forebay.SGD(0.1))
