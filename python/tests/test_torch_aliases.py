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


def test_changes_without_gradients() -> None:
    steps_are_pytorchs(lambda: Detached(False))
    with pytest.raises(forebay.Error, match="in place; change a copy|lets no gradient pass"):
        forebay.torch.Trainer(Detached(True), X, nn.MSELoss(), forebay.SGD(0.1))
