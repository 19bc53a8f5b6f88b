"""Makes metrics.json: metrics of small tables, as scikit-learn computes them."""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn import metrics as m

random = np.random.default_rng(5)
rounded = lambda values: [float(f"{value:.9g}") for value in np.asarray(values).flatten()]

# Classes: 40 positions of 5 classes. Every class is a label.
logits = np.round(random.normal(size=(40, 5)), 2)
labels = np.concatenate([np.arange(5), random.integers(0, 5, size=35)])
logits[np.arange(40), labels] += 0.75
logits = np.round(logits, 2)
predicted = logits.argmax(1)
shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
classes = {
    "accuracy": m.accuracy_score(labels, predicted),
    "top2": m.top_k_accuracy_score(labels, logits, k=2, labels=range(5)),
    "f1": m.f1_score(labels, predicted, average="macro"),
    "dice": m.f1_score(labels, predicted, average="macro"),
    "iou": m.jaccard_score(labels, predicted, average="macro"),
    "auc": m.roc_auc_score(labels, shares, multi_class="ovr", average="macro"),
    "perplexity": np.exp(m.log_loss(labels, shares)),
}
# Decisions: 30 samples of 3, with scores that are equal now and then.
scores = np.round(random.normal(size=(30, 3)), 1)
targets = (random.random((30, 3)) < 1 / (1 + np.exp(-scores))).astype(int)
yes = (scores > 0).astype(int)
decisions = {
    "accuracy": m.accuracy_score(targets.flatten(), yes.flatten()),
    "f1": m.f1_score(targets, yes, average="macro"),
    "dice": m.f1_score(targets, yes, average="macro"),
    "iou": m.jaccard_score(targets, yes, average="macro"),
    "auc": m.roc_auc_score(targets, scores, average="macro"),
}
a, b = np.round(random.normal(size=(2, 12)), 3)
table = {
    "classes": {
        "logits": rounded(logits),
        "labels": labels.tolist(),
        "values": {k: float(v) for k, v in classes.items()},
        "confusion": m.confusion_matrix(labels, predicted).tolist(),
    },
    "decisions": {"scores": rounded(scores), "targets": targets.flatten().tolist(), "values": {k: float(v) for k, v in decisions.items()}},
    "numbers": {"predicted": rounded(a), "targets": rounded(b), "values": {"mae": float(m.mean_absolute_error(b, a))}},
}
Path(sys.argv[1]).write_text(json.dumps(table, separators=(",", ":")).replace('"decisions"', '\n"decisions"').replace('"numbers"', '\n"numbers"') + "\n")
