"""Score a trained classifier on annotated maps of models that it has not met, without training.

python -m tools.pattern_classifier.score <annotation folder>                                  # the shipped classifier
python -m tools.pattern_classifier.score <annotation folder> --classifier <output folder>
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import SHIPPED, PatternClassifier, load_classifier, rule_out_blocks
from tools.pattern_classifier.annotated_maps import AnnotatedMaps, read_annotated_maps
from tools.pattern_classifier.evaluation import judged_patterns
from tools.pattern_classifier.fitting import features_of
from tools.pattern_classifier.scoring import Estimate, bootstrap_f1, confusion, f1_scores


@dataclass(frozen=True)
class ClassifierScores:
    """Scores on the clear maps of one model, or of all.

    Args:
        maps: Number of maps.
        accuracy: Share of right answers.
        macro_f1: Over patterns with at least ten maps, with a 95% interval over heads.
        f1_P: By pattern; NaN for one without maps.
        count_P: Maps by pattern.
    """

    maps: int
    accuracy: float
    macro_f1: Estimate
    f1_P: NDArray[np.float64]
    count_P: NDArray[np.int64]


def score_classifier(annotated: AnnotatedMaps, classifier: PatternClassifier) -> dict[str, ClassifierScores]:
    """Scores on the clear maps of each model, then of ``all models``."""
    with torch.no_grad():
        logit_NP = classifier.network(features_of(annotated.maps, annotated.first_segment_N))
    predicted_N = rule_out_blocks(logit_NP, torch.from_numpy(annotated.first_segment_N)).argmax(-1).numpy()
    model_N = np.array(annotated.models)
    parts = {model: annotated.clear_N & (model_N == model) for model in sorted(set(annotated.models))}
    scores = {}
    for name, part_N in {**parts, "all models": annotated.clear_N}.items():
        label_N, answer_N = annotated.pattern_N[part_N], predicted_N[part_N]
        heads = [head for head, inside in zip(annotated.heads, part_N, strict=True) if inside]
        scores[name] = ClassifierScores(
            maps=len(label_N),
            accuracy=float((label_N == answer_N).mean()),
            macro_f1=bootstrap_f1(label_N, [answer_N], heads, judged_patterns(label_N))[0],
            f1_P=f1_scores(confusion(label_N, answer_N)),
            count_P=np.bincount(label_N, minlength=len(PATTERNS)),
        )
    return scores


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tools.pattern_classifier.score", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("maps", type=Path, nargs="+", help="annotation folders with imported labels")
    parser.add_argument("--classifier", type=Path, default=SHIPPED, help="folder of the classifier")
    parsed = parser.parse_args(arguments)
    try:
        scores = score_classifier(read_annotated_maps(*parsed.maps), load_classifier(parsed.classifier))
    except UserError as error:
        sys.exit(f"error: {error}")
    console = Console()
    for name, score in scores.items():
        patterns = ", ".join(
            f"{pattern} {f1:.2f} ({count})"
            for pattern, f1, count in zip(PATTERNS, score.f1_P, score.count_P, strict=True)
            if count
        )
        console.print(
            f"{name}: {score.maps} clear maps, accuracy {score.accuracy:.3f}, macro-F1 {score.macro_f1}; {patterns}",
            soft_wrap=True,
            highlight=False,
        )


if __name__ == "__main__":
    main()
