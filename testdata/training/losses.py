"""Makes losses.json: losses and their gradients by the prediction, as PyTorch and MONAI compute them in float64."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from monai.losses import DiceCELoss, DiceLoss, TverskyLoss
from torch import nn
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

random = np.random.default_rng(26)
CASES = []


def numbers(*shape, scale=2.0):
    return torch.tensor(np.round(random.normal(size=shape) * scale, 3), dtype=torch.float64)


def classes(shape, axis, count, ignored=None):
    shape = [size for i, size in enumerate(shape) if i != axis]
    labels = random.integers(0, count, size=shape)
    if ignored is not None:
        labels.flat[1] = ignored
        labels.flat[-1] = ignored
    return torch.tensor(labels)


def case(name, prediction, labels, loss, other=None):
    inputs = [prediction] + ([] if other is None else [other])
    for each in inputs:
        each.requires_grad_(True)
    value = loss(*inputs, labels)
    value.backward()
    round_all = lambda tensor: [float(f"{number:.9g}") for number in tensor.detach().flatten().tolist()]
    CASES.append(
        {
            "name": name,
            "shape": list(prediction.shape),
            "prediction": round_all(prediction),
            "other": None if other is None else round_all(other),
            "labels_shape": list(labels.shape),
            "labels": labels.flatten().tolist() if labels.dtype == torch.int64 else round_all(labels),
            "has_targets": labels.dtype != torch.int64,
            "loss": float(f"{value.item():.9g}"),
            "gradient": round_all(prediction.grad),
        }
    )


WEIGHTS = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)


def cross_entropies():
    for name, options in {
        "smoothing": {"label_smoothing": 0.1},
        "weights": {"weight": WEIGHTS},
        "ignored": {"ignore_index": -100, "label_smoothing": 0.1},
        "all": {"weight": WEIGHTS, "label_smoothing": 0.2, "ignore_index": 1},
        "weights_ignored": {"weight": WEIGHTS, "ignore_index": 255},
    }.items():
        shape = (2, 3, 2, 2)
        case(
            f"cross_entropy_{name}",
            numbers(*shape),
            classes(shape, 1, 3, options.get("ignore_index")),
            nn.CrossEntropyLoss(**options),
        )
    shape = (2, 4, 3)
    last = nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1)
    case("cross_entropy_last_axis", numbers(*shape), classes(shape, 2, 3), lambda x, y: last(x.movedim(-1, 1), y))


def focal(gamma, weight=None, ignored=None):
    def loss(x, labels):
        taken = labels if ignored is None else torch.where(labels == ignored, 0, labels)
        logarithms = F.log_softmax(x, 1).gather(1, taken.unsqueeze(1)).squeeze(1)
        weights = torch.ones_like(logarithms) if weight is None else weight[taken]
        if ignored is not None:
            weights = weights * (labels != ignored)
        return (-weights * (1 - logarithms.exp()) ** gamma * logarithms).sum() / weights.sum()

    return loss


def focals():
    shape = (2, 3, 4)
    case("focal_2", numbers(*shape), classes(shape, 1, 3), focal(2.0))
    case("focal_weighted", numbers(*shape), classes(shape, 1, 3, -1), focal(1.5, WEIGHTS, -1))
    case("focal_0", numbers(*shape), classes(shape, 1, 3), lambda x, y: F.cross_entropy(x, y, weight=WEIGHTS))
    for name, alpha, gamma in [("usual", 0.25, 2.0), ("no_alpha", -1.0, 1.5), ("gamma_0", 0.75, 0.0)]:
        targets = classes((3, 1, 4), 1, 2).to(torch.float64)
        case(
            f"binary_focal_{name}",
            numbers(3, 4, scale=4.0),
            targets,
            lambda x, y, alpha=alpha, gamma=gamma: sigmoid_focal_loss(x, y, alpha, gamma, reduction="mean"),
        )


def regressions():
    for name, loss in {
        "l1": nn.L1Loss(),
        "huber": nn.HuberLoss(),
        "huber_delta": nn.HuberLoss(delta=0.3),
        "smooth_l1": nn.SmoothL1Loss(),
        "smooth_l1_beta": nn.SmoothL1Loss(beta=2.5),
        "smooth_l1_0": nn.SmoothL1Loss(beta=0.0),
    }.items():
        case(name, numbers(3, 2, 4), numbers(3, 2, 4), loss)


def binaries():
    large = numbers(2, 3, 2, scale=4.0)
    large.flatten()[:3] = torch.tensor([60.0, -60.0, 18.0])
    case("bce", large, classes((2, 3, 1, 2), 2, 2).to(torch.float64), nn.BCEWithLogitsLoss())
    soft = torch.sigmoid(numbers(4, 3))
    soft = torch.tensor(np.round(soft.numpy(), 3))
    case("bce_soft", numbers(4, 3), soft, nn.BCEWithLogitsLoss())
    one = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0, dtype=torch.float64))
    case("bce_one_weight", numbers(4, 3), soft.clone(), one)
    each = nn.BCEWithLogitsLoss(pos_weight=WEIGHTS.reshape(3, 1))
    case("bce_weights", numbers(2, 3, 4), classes((2, 3, 1, 4), 2, 2).to(torch.float64), each)


def divergences():
    targets = torch.softmax(numbers(3, 4), 1)
    targets = torch.tensor(np.round(targets.numpy(), 4))
    targets[0, 1] = 0.0
    logs = F.log_softmax(numbers(3, 4), 1)
    logs = torch.tensor(np.round(logs.numpy(), 4))
    case("kl", logs, targets, nn.KLDivLoss(reduction="batchmean"))
    case("kl_mean", logs.detach().clone(), targets, nn.KLDivLoss(reduction="mean"))
    wanted = torch.tensor(np.round(F.log_softmax(numbers(3, 4), 1).numpy(), 4))
    of_logarithms = nn.KLDivLoss(reduction="batchmean", log_target=True)
    case("kl_log_targets", logs.detach().clone(), wanted, of_logarithms)
    of_logits = nn.KLDivLoss(reduction="batchmean")
    case("kl_logits", numbers(3, 4), targets, lambda x, y: of_logits(F.log_softmax(x, 1), y))


def cosines():
    ones = lambda x: torch.ones(x.shape[0])
    case("cosine", numbers(3, 4), numbers(3, 4), lambda x, y: F.cosine_embedding_loss(x, y, ones(x)))
    labels = torch.tensor([1, -1, 1, -1, -1])
    pairs = nn.CosineEmbeddingLoss(margin=0.2)
    case("cosine_pairs", numbers(5, 3), labels, lambda x, z, y: pairs(x, z, y), other=numbers(5, 3))


def of_classes(loss):
    return lambda x, y: loss(x, y.unsqueeze(1))


def regions():
    plane, volume = (2, 3, 3, 2), (2, 3, 2, 2, 2)
    for name, shape, loss in [
        ("dice", plane, DiceLoss(softmax=True, to_onehot_y=True)),
        ("dice_3d", volume, DiceLoss(softmax=True, to_onehot_y=True, include_background=False)),
        ("dice_sigmoid", plane, DiceLoss(sigmoid=True, to_onehot_y=True)),
        ("dice_batch", volume, DiceLoss(softmax=True, to_onehot_y=True, batch=True)),
        ("dice_squared", plane, DiceLoss(softmax=True, to_onehot_y=True, squared_pred=True, smooth_nr=0.5, smooth_dr=0.25)),
        ("dice_weights", plane, DiceLoss(softmax=True, to_onehot_y=True, weight=WEIGHTS)),
        ("dice_weights_foreground", plane, DiceLoss(softmax=True, to_onehot_y=True, include_background=False, weight=WEIGHTS[1:])),
        ("dice_ce", plane, DiceCELoss(softmax=True, to_onehot_y=True)),
        ("dice_ce_3d", volume, DiceCELoss(softmax=True, to_onehot_y=True, include_background=False, lambda_dice=0.5, lambda_ce=2.0)),
        ("dice_ce_weights", plane, DiceCELoss(softmax=True, to_onehot_y=True, weight=WEIGHTS)),
        ("tversky", plane, TverskyLoss(softmax=True, to_onehot_y=True, alpha=0.3, beta=0.7)),
        ("tversky_3d", volume, TverskyLoss(softmax=True, to_onehot_y=True, include_background=False)),
        ("tversky_batch", plane, TverskyLoss(sigmoid=True, to_onehot_y=True, batch=True, alpha=0.8, beta=0.1)),
    ]:
        case(name, numbers(*shape), classes(shape, 1, 3), of_classes(loss))
    targets = lambda shape: classes((*shape, 1), len(shape), 2).to(torch.float64)
    case("dice_targets", numbers(*plane), targets(plane), DiceLoss(sigmoid=True))
    case("dice_one_channel", numbers(2, 1, 3, 3), targets((2, 1, 3, 3)), DiceLoss(sigmoid=True))
    case("dice_ce_one_channel", numbers(2, 1, 3, 3), targets((2, 1, 3, 3)), DiceCELoss(sigmoid=True))
    case("dice_given", torch.sigmoid(numbers(2, 2, 5)), targets((2, 2, 5)), DiceLoss())
    case("tversky_targets", numbers(*plane), targets(plane), TverskyLoss(sigmoid=True, alpha=0.2, beta=0.8))


def sequences():
    """Logits [samples, positions, classes]; the last case has the positions first, as PyTorch has it. -1 stands behind the labels."""
    # Two labels in a row, as many labels as there can be, and none at all.
    rows = [[1, 3, 3, 2], [2, -1, -1, -1], [4, 1, 2, 3], [-1, -1, -1, -1]]
    impossible = [[1, 1, 1, 1], [2, 1, -1, -1], [3, -1, -1, -1], [4, 4, -1, -1]]
    for name, labels, positions, lengths, blank, zero_infinity, time_first in [
        ("ctc", rows, 7, None, 0, False, False),
        ("ctc_peaked", rows, 12, None, 0, False, False),
        ("ctc_lengths", rows, 8, [8, 2, 5, 1], 0, False, False),
        ("ctc_impossible", impossible, 5, None, 0, True, False),
        ("ctc_blank_last_time_first", [[0, 0, 2, 1], [3, -1, -1, -1], [2, 1, 0, -1], [1, 2, -1, -1]], 9, None, 5, False, True),
    ]:
        labels = torch.tensor(labels)
        loss = nn.CTCLoss(blank=blank, zero_infinity=zero_infinity)
        ends = torch.tensor([positions] * 4 if lengths is None else lengths)
        first = lambda x: x if time_first else x.transpose(0, 1)
        of = lambda x, y: loss(F.log_softmax(first(x), 2), y.clamp_min(0), ends, (y >= 0).sum(1))
        shape = (positions, 4, 6) if time_first else (4, positions, 6)
        case(name, numbers(*shape, scale=12.0 if name == "ctc_peaked" else 2.0), labels, of)
        CASES[-1]["lengths"] = lengths


def soft_labels():
    """Probabilities of classes; a class in the first place is impossible."""
    for name, options in {
        "plain": {},
        "smoothing": {"label_smoothing": 0.1},
        "all": {"weight": WEIGHTS, "label_smoothing": 0.2},
    }.items():
        shape = (2, 3, 2, 2)
        probabilities = torch.softmax(numbers(*shape), 1)
        probabilities[0, 0] = 0.0
        case(f"soft_{name}", numbers(*shape), probabilities, nn.CrossEntropyLoss(**options))
    shape = (2, 4, 3)
    last = nn.CrossEntropyLoss(weight=WEIGHTS)
    probabilities = torch.softmax(numbers(*shape), 2)
    case("soft_last_axis", numbers(*shape), probabilities, lambda x, y: last(x.movedim(-1, 1), y.movedim(-1, 1)))


for make in [cross_entropies, focals, regressions, binaries, divergences, cosines, regions, sequences, soft_labels]:
    make()
made_with = f"PyTorch {torch.__version__.split('+')[0]} in float64, and MONAI for regions"
lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in CASES)
Path(sys.argv[1]).write_text(f'{{"made_with": "{made_with}", "cases": [\n{lines}\n]}}\n')
