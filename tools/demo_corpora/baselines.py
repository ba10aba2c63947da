"""Scores of word overlap alone on the demo tasks, as a Markdown table.

python -m tools.demo_corpora.baselines            # a few seconds
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertsecrets.data.example import Example
from bertsecrets.data.sources.demo import CORPORA, demo_examples
from tools.demo_corpora.corpus import overlap

Features = NDArray[np.float64]


def overlap_features(rows: list[Example]) -> Features:
    """Jaccard overlap, difference in length and number of shared words of each pair: [examples, 3]."""
    return np.array([overlap(*([word.form for word in part.words] for part in row.annotations)) for row in rows])


def labels(rows: list[Example]) -> Features:
    """The labels of a split that has them: [examples]."""
    return np.array([row.label for row in rows], dtype=float)


def constant_baseline(task: str) -> float:
    """Accuracy of always answering the commonest class of the training split; 0 (no correlation) for scores."""
    if task == "demo_similarity":
        return 0.0
    train, valid = (labels(demo_examples(task, split)) for split in ("train", "validation"))
    classes, counts = np.unique(train, return_counts=True)
    return float(np.mean(valid == classes[counts.argmax()]))


def overlap_baseline(task: str) -> float:
    """Validation accuracy (Pearson correlation for scores) of a linear model on the overlap features."""
    train, valid = (demo_examples(task, split) for split in ("train", "validation"))
    if task == "demo_similarity":
        ridge = make_pipeline(StandardScaler(), Ridge()).fit(overlap_features(train), labels(train))
        return float(pearsonr(ridge.predict(overlap_features(valid)), labels(valid)).statistic)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(overlap_features(train), labels(train))
    return float(model.score(overlap_features(valid), labels(valid)))


def bag_of_words_baseline(task: str) -> float:
    """The same of a linear model on the words of each sentence, without their order."""
    train, valid = (demo_examples(task, split) for split in ("train", "validation"))
    # Words of the second sentence are distinct features from those of the first.
    marked = [[" ".join(f"{n}_{w.form}" for n, a in enumerate(row.annotations) for w in a.words) for row in rows]
              for rows in (train, valid)]  # fmt: skip
    words = CountVectorizer(binary=True, token_pattern=r"\S+")
    if task == "demo_similarity":
        ridge = make_pipeline(words, Ridge()).fit(marked[0], labels(train))
        return float(pearsonr(ridge.predict(marked[1]), labels(valid)).statistic)
    model = make_pipeline(words, LogisticRegression(max_iter=1000)).fit(marked[0], labels(train))
    return float(model.score(marked[1], labels(valid)))


def main() -> None:
    print("| task | figure | constant | word overlap | bag of words |\n|---|---|---|---|---|")
    for task in CORPORA:
        figure = "Pearson r" if task == "demo_similarity" else "accuracy"
        shared = "-" if task == "demo_sentiment" else f"{overlap_baseline(task):.3f}"
        print(f"| {task} | {figure} | {constant_baseline(task):.3f} | {shared} | {bag_of_words_baseline(task):.3f} |")


if __name__ == "__main__":
    main()
