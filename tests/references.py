"""Metrics by scikit-learn and scipy, for tests to compare with."""

import warnings

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def metric_value(metric: str, label_N: np.ndarray, prediction_N: np.ndarray) -> float:
    """The metric of one set of predictions."""
    if metric == "accuracy":
        return float(accuracy_score(label_N, prediction_N))
    if metric == "f1":
        return float(f1_score(label_N, prediction_N, zero_division=0.0))
    if metric == "macro_f1":
        return float(f1_score(label_N, prediction_N, average="macro", zero_division=0.0))
    if metric == "matthews":
        return float(matthews_corrcoef(label_N, prediction_N))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float((pearsonr if metric == "pearson" else spearmanr)(prediction_N, label_N).statistic)
