"""Makes optimizers.json: five steps of optimizers on a small model, as PyTorch computes them in float64.

Lion and LAMB are not part of PyTorch: they are written here as their papers have them (Chen et al. 2023, algorithm 2; You et al. 2020,
algorithm 2, with the identity as phi)."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

random = np.random.default_rng(7)
numbers = lambda *shape: np.round(random.normal(size=shape), 3)
START = {"w1": numbers(4, 5), "b1": np.zeros(5), "w2": numbers(5, 2), "b2": np.full(2, 0.25)}
BATCHES = [(numbers(3, 4), numbers(3, 2)) for _ in range(5)]


class Lion(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas, weight_decay):
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self):
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for p in group["params"]:
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                direction = torch.sign(beta1 * moment + (1 - beta1) * p.grad)
                p.data = p.data - rate * (direction + group["weight_decay"] * p.data)
                self.state[p]["moment"] = beta2 * moment + (1 - beta2) * p.grad


class Lamb(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas, eps, weight_decay):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                state["m"] = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * p.grad
                state["v"] = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * p.grad**2
                m, v = state["m"] / (1 - beta1**t), state["v"] / (1 - beta2**t)
                direction = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p.data
                size, length = p.data.norm(), direction.norm()
                trust = size / length if size > 0 and length > 0 else 1.0
                p.data = p.data - group["lr"] * trust * direction


def run(make, matrices_only):
    p = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in START.items()}
    matrices, vectors = [p["w1"], p["w2"]], [p["b1"], p["b2"]]
    groups = [{"params": matrices}, {"params": vectors, **({"weight_decay": 0.0} if matrices_only else {})}]
    optimizer, losses = make(groups), []
    for x, y in BATCHES:
        optimizer.zero_grad()
        hidden = torch.tanh(torch.tensor(x) @ p["w1"] + p["b1"])
        loss = torch.nn.functional.mse_loss(hidden @ p["w2"] + p["b2"], torch.tensor(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, p


o = torch.optim
CASES = {
    "rmsprop": (lambda g: o.RMSprop(g, lr=0.02), False),
    "rmsprop_all": (lambda g: o.RMSprop(g, lr=0.01, alpha=0.9, eps=1e-6, momentum=0.8, centered=True, weight_decay=0.1), False),
    "adagrad": (lambda g: o.Adagrad(g, lr=0.1), False),
    "adagrad_all": (lambda g: o.Adagrad(g, lr=0.1, lr_decay=0.5, eps=1e-6, weight_decay=0.1), False),
    "damped_sgd": (lambda g: o.SGD(g, lr=0.05, momentum=0.8, dampening=0.4, weight_decay=0.1), False),
    "ams_grad": (lambda g: o.Adam(g, lr=0.05, betas=(0.8, 0.5), eps=1e-3, weight_decay=0.1, amsgrad=True), False),
    "ams_grad_w": (lambda g: o.AdamW(g, lr=0.05, betas=(0.8, 0.5), eps=1e-3, weight_decay=0.1, amsgrad=True), True),
    "ada_max": (lambda g: o.Adamax(g, lr=0.05, betas=(0.8, 0.5), eps=1e-3, weight_decay=0.1), False),
    "n_adam": (lambda g: o.NAdam(g, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, momentum_decay=0.1), False),
    "n_adam_w": (lambda g: o.NAdam(g, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True), True),
    "r_adam": (lambda g: o.RAdam(g, lr=0.05, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1), False),
    "r_adam_w": (lambda g: o.RAdam(g, lr=0.01, betas=(0.9, 0.999), weight_decay=0.1, decoupled_weight_decay=True), True),
    "adadelta": (lambda g: o.Adadelta(g, lr=1.0, rho=0.8, eps=1e-3, weight_decay=0.1), False),
    "lion": (lambda g: Lion(g, 0.01, (0.9, 0.99), 0.0), True),
    "lion_decay": (lambda g: Lion(g, 0.02, (0.8, 0.7), 0.5), True),
    "lamb": (lambda g: Lamb(g, 0.01, (0.9, 0.999), 1e-6, 0.01), True),
    "lamb_all": (lambda g: Lamb(g, 0.05, (0.8, 0.95), 1e-3, 0.3), True),
    "adafactor": (lambda g: o.Adafactor(g, lr=0.05, eps=(2.0**-23, 1e-3)), True),
    "adafactor_all": (lambda g: o.Adafactor(g, lr=0.1, beta2_decay=-0.5, eps=(2.0**-23, 0.01), d=1.5, weight_decay=0.2), True),
}
rounded = lambda values: [float(f"{value:.9g}") for value in np.asarray(values).flatten()]
table = {
    "made_with": f"PyTorch {torch.__version__.split('+')[0]} in float64",
    "start": {name: rounded(value) for name, value in START.items()},
    "batches": [{"x": rounded(x), "y": rounded(y)} for x, y in BATCHES],
    "cases": [],
}
for name, (make, matrices_only) in CASES.items():
    losses, p = run(make, matrices_only)
    end = {key: rounded(value.detach().numpy()) for key, value in p.items()}
    table["cases"].append({"name": name, "losses": rounded(losses), "end": end})
Path(sys.argv[1]).write_text(json.dumps(table, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
