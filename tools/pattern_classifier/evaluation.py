"""Evaluation of the pattern classifier on held-out annotated maps: the content of ``evaluation.json``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import PatternNetwork, judge
from tools.pattern_classifier.annotated_maps import AnnotatedMaps
from tools.pattern_classifier.crossvalidation import HeldOutAnswers, PreparedMaps, Scheme
from tools.pattern_classifier.fitting import features_of
from tools.pattern_classifier.scoring import (
    Estimate,
    ReliabilityBin,
    bootstrap_f1,
    calibration_error,
    confusion,
    f1_scores,
    macro_f1,
    reliability,
)
from tools.pattern_labels.labels import majority_of_others, read_labels, votes

_LEAST_MAPS = 10

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class RulesComparison:
    """Network and rules on the same maps.

    Args:
        maps: Number of maps.
        judged: Patterns with at least ten of these maps; the macro-F1 averages over them.
        macro_f1, macro_f1_rules, macro_f1_difference: With 95% intervals over heads.
        accuracy, accuracy_rules: Shares of right answers.
    """

    maps: int
    judged: list[str]
    macro_f1: Estimate
    macro_f1_rules: Estimate
    macro_f1_difference: Estimate
    accuracy: float
    accuracy_rules: float


@dataclass(frozen=True)
class SchemeScores:
    """Scores under one cross-validation scheme; ``f1`` and ``f1_rules`` are by pattern, None for one without maps.

    Args:
        all: On all maps.
        parts: On parts of the maps: clear and unanimous ones, the sample of all maps, and maps sampled for a pattern.
        models, models_clear: On all maps and on the clear maps of each model.
        macro_f1_of_all_patterns: On all maps, over patterns with few maps too.
        without_segments: Macro-F1 of the network for unknown segments, on all maps (``all``) and on each part.
        f1, f1_rules: F1 by pattern.
        confusion: Numbers of maps, annotators' patterns in rows and the network's in columns.
        accuracy_by_task: Share of right answers of the network.
        uncertain: Share of the maps that the classifier calls uncertain.
        macro_f1_of_the_certain: On all other maps.
        calibration_error, calibration_error_before_temperature: Expected calibration errors.
        reliability: Bins of the calibrated network.
    """

    all: RulesComparison
    parts: dict[str, RulesComparison]
    models: dict[str, RulesComparison]
    models_clear: dict[str, RulesComparison]
    macro_f1_of_all_patterns: float
    without_segments: dict[str, float]
    f1: dict[str, float | None]
    f1_rules: dict[str, float | None]
    confusion: list[list[int]]
    accuracy_by_task: dict[str, float]
    uncertain: float
    macro_f1_of_the_certain: float
    calibration_error: float
    calibration_error_before_temperature: float
    reliability: list[ReliabilityBin]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the scores on all maps and the parts are at the top level."""
        content = asdict(self)
        return {**content.pop("all"), **content.pop("parts"), **content}


@dataclass(frozen=True)
class PassScores:
    """Macro-F1 of one pass against the majority of the other passes, and of network and rules on the same maps.

    Args:
        maps: Number of maps that the pass labelled and the others have a majority for.
        annotators: Macro-F1 of the pass.
        network, rules: Macro-F1 by scheme.
    """

    maps: int
    annotators: float
    network: dict[Scheme, float]
    rules: dict[Scheme, float]


@dataclass(frozen=True)
class GeneratedScores:
    """Scores on generated maps, and of a network trained on generated maps alone.

    Args:
        maps: Number of generated maps, not seen in training.
        macro_f1: Of the final network on these maps.
        macro_f1_of_annotated_without_learning_from_them: On the annotated maps, of the network before fine-tuning.
    """

    maps: int
    macro_f1: float
    macro_f1_of_annotated_without_learning_from_them: float


@dataclass(frozen=True)
class Evaluation:
    """Everything that ``evaluation.json`` holds.

    Args:
        maps, heads: Numbers of annotated maps and of their heads.
        tasks: Names of their tasks.
        patterns: Number of maps by pattern.
        passes: Scores of each pass, by its number.
        temperature: Of the final classifier.
        generated: On generated maps.
        held_out: By scheme.
    """

    maps: int
    heads: int
    tasks: list[str]
    patterns: dict[str, int]
    passes: dict[str, PassScores]
    temperature: float
    generated: GeneratedScores
    held_out: dict[Scheme, SchemeScores]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "held_out": {scheme: scores.as_dict() for scheme, scores in self.held_out.items()}}


@torch.no_grad()
def generated_scores(
    network: PatternNetwork,
    start: PatternNetwork,
    unseen: Sequence[torch.Tensor],
    unseen_N: NDArray[np.int64],
    first_segment_N: NDArray[np.int64],
    annotated: AnnotatedMaps,
    prepared: PreparedMaps,
) -> GeneratedScores:
    """Score a network on generated maps, and the network that it started from on annotated maps.

    Args:
        network: The final network.
        start: The network before fine-tuning.
        unseen: Generated maps that were not trained on.
        unseen_N: Their patterns.
        first_segment_N: Their first segments.
        annotated: The annotated maps.
        prepared: Their features.
    """
    predicted_N = network(features_of(unseen, first_segment_N)).argmax(-1).numpy()
    start_N = start(prepared.features).argmax(-1).numpy()
    return GeneratedScores(
        maps=len(unseen),
        macro_f1=float(macro_f1(confusion(unseen_N, predicted_N))),
        macro_f1_of_annotated_without_learning_from_them=float(
            macro_f1(confusion(annotated.pattern_N, start_N), judged_patterns(annotated.pattern_N))
        ),
    )


def scheme_scores(
    annotated: AnnotatedMaps, answers: HeldOutAnswers, margin: float, resamples: int, seed: int
) -> SchemeScores:
    """Score the answers of one scheme.

    Args:
        annotated: The annotated maps.
        answers: The answers while each map was held out.
        margin: Difference of probabilities below which two patterns are a tie.
        resamples: Resamples of heads for the intervals.
        seed: Seed of the resamples.
    """
    label_N, predicted_N = annotated.pattern_N, answers.probability_NP.argmax(1)
    table_PP = confusion(label_N, predicted_N)
    uncertain_N = judge(torch.from_numpy(answers.probability_NP).log(), margin).uncertain.numpy()
    bins = reliability(answers.probability_NP, label_N)
    uncalibrated_NP = torch.from_numpy(answers.logit_NP).softmax(-1).numpy()
    without_segments_N = answers.without_segments_NP.argmax(1)
    everything_N = np.ones(len(label_N), np.bool_)
    parts = {name: chosen_N for name, chosen_N in _parts(annotated).items() if chosen_N.any()}
    model_N = np.array(annotated.models)
    of_model = {model: model_N == model for model in sorted(set(annotated.models))}

    def compare(chosen: Mapping[str, Mask]) -> dict[str, RulesComparison]:
        return {
            name: _compare_with_rules(annotated, answers, chosen_N, resamples, seed)
            for name, chosen_N in chosen.items()
            if chosen_N.any()
        }

    return SchemeScores(
        all=_compare_with_rules(annotated, answers, everything_N, resamples, seed),
        parts=compare(parts),
        models=compare(of_model),
        models_clear=compare({model: chosen_N & annotated.clear_N for model, chosen_N in of_model.items()}),
        macro_f1_of_all_patterns=float(macro_f1(table_PP)),
        without_segments={
            name: float(
                macro_f1(confusion(label_N[chosen_N], without_segments_N[chosen_N]), judged_patterns(label_N[chosen_N]))
            )
            for name, chosen_N in {"all": everything_N, **parts}.items()
        },
        f1=_by_pattern(table_PP),
        f1_rules=_by_pattern(confusion(label_N, answers.rules_N)),
        confusion=table_PP.astype(int).tolist(),
        accuracy_by_task={
            task: float((predicted_N == label_N)[[name == task for name in annotated.tasks]].mean())
            for task in sorted(set(annotated.tasks))
        },
        uncertain=float(uncertain_N.mean()),
        macro_f1_of_the_certain=float(
            macro_f1(confusion(label_N[~uncertain_N], predicted_N[~uncertain_N]), judged_patterns(annotated.pattern_N))
        ),
        calibration_error=calibration_error(bins),
        calibration_error_before_temperature=calibration_error(reliability(uncalibrated_NP, label_N)),
        reliability=bins,
    )


def pass_scores(
    folders: Sequence[Path], annotated: AnnotatedMaps, answers: dict[Scheme, HeldOutAnswers]
) -> dict[str, PassScores]:
    """Score each pass, and the network and the rules on the same maps, against the majority of the other passes.

    Args:
        folders: The annotation folders.
        annotated: Their maps.
        answers: The answers of each scheme.
    """
    labels = [label for folder in folders for label in read_labels(folder)]
    pattern_by_pass = votes(labels)
    index_of = {row.map: number for number, row in enumerate(annotated.rows)}
    judged_P = judged_patterns(annotated.pattern_N)
    scores = {}
    for number in sorted({label.number for label in labels}):
        others = {name: pattern for name, pattern in majority_of_others(labels, number).items() if name in index_of}
        if not others:
            continue
        label_N = np.array([PATTERNS.index(pattern) for pattern in others.values()])
        index_N = np.array([index_of[name] for name in others])

        def score(predicted_N: NDArray[np.int64], label_N: NDArray[np.int64] = label_N) -> float:
            return float(macro_f1(confusion(label_N, predicted_N), judged_P))

        scores[str(number)] = PassScores(
            maps=len(others),
            annotators=score(np.array([PATTERNS.index(pattern_by_pass[name][number]) for name in others])),
            network={scheme: score(answer.probability_NP.argmax(1)[index_N]) for scheme, answer in answers.items()},
            rules={scheme: score(answer.rules_N[index_N]) for scheme, answer in answers.items()},
        )
    return scores


def _parts(annotated: AnnotatedMaps) -> dict[str, Mask]:
    """Parts of the maps. Maps sampled for a pattern are harder: classifiers chose them, with their own mistakes."""
    clear_N = annotated.clear_N
    sought_N = np.array([bool(row.sought) for row in annotated.rows])
    return {
        "clear": clear_N,
        "unanimous": annotated.vote_NP.max(1) == 1,
        "taken_whatever_they_show": ~sought_N,
        "taken_whatever_they_show_clear": ~sought_N & clear_N,
        "sought": sought_N,
        "sought_clear": sought_N & clear_N,
    }


def _compare_with_rules(
    annotated: AnnotatedMaps, answers: HeldOutAnswers, chosen_N: Mask, resamples: int, seed: int
) -> RulesComparison:
    label_N, predicted_N = annotated.pattern_N[chosen_N], answers.probability_NP.argmax(1)[chosen_N]
    rules_N = answers.rules_N[chosen_N]
    heads = [head for head, chosen in zip(annotated.heads, chosen_N, strict=True) if chosen]
    judged_P = judged_patterns(label_N)
    network, rules, difference = bootstrap_f1(
        label_N, [predicted_N, rules_N], heads, judged_P, resamples=resamples, seed=seed
    )
    return RulesComparison(
        maps=len(label_N),
        judged=[name for name, judged in zip(PATTERNS, judged_P, strict=True) if judged],
        macro_f1=network,
        macro_f1_rules=rules,
        macro_f1_difference=difference,
        accuracy=float((predicted_N == label_N).mean()),
        accuracy_rules=float((rules_N == label_N).mean()),
    )


def judged_patterns(pattern_N: NDArray[np.int64]) -> Mask:
    """The patterns with enough maps for a meaningful F1."""
    return np.bincount(pattern_N, minlength=len(PATTERNS)) >= _LEAST_MAPS


def _by_pattern(table_PP: NDArray[np.float64]) -> dict[str, float | None]:
    scores = zip(PATTERNS, f1_scores(table_PP).tolist(), strict=True)
    return {name: None if math.isnan(score) else score for name, score in scores}
