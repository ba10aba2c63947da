"""Train the pattern classifier on generated and annotated maps, and evaluate it on held-out maps.

python -m tools.pattern_classifier <output folder>                             # the project's maps; four minutes on two
cores python -m tools.pattern_classifier <output folder> --maps <annotation folder>  # yours; or several
python -m tools.pattern_classifier <output folder> fit.seed=1 margin=0.2
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from pydantic import Field
from rich.console import Console
from safetensors.torch import save_file

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.classifier import CARD, INPUT, WEIGHTS, PatternClassifier
from bertsecrets.results.files import atomic_write, write_text
from bertsecrets.results.progress import progress_over
from bertsecrets.settings import Settings
from tools.pattern_classifier.annotated_maps import (
    PROJECT_MAPS,
    AnnotatedMaps,
    check_enough_to_train,
    read_annotated_maps,
)
from tools.pattern_classifier.crossvalidation import (
    HeldOutAnswers,
    PreparedMaps,
    Scheme,
    cross_validate,
    folds,
    schemes_of,
)
from tools.pattern_classifier.evaluation import Evaluation, generated_scores, pass_scores, scheme_scores
from tools.pattern_classifier.fitting import (
    FitSettings,
    LabelledFeatures,
    finetune,
    generated_maps,
    one_hot,
    partly_hidden,
    pretrain,
)
from tools.pattern_classifier.page import HELD_OUT, PAGE, write_classifier_page
from tools.pattern_classifier.scoring import fit_temperature
from tools.pattern_labels.labels import write_csv
from tools.pattern_labels.rules import masses

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.csv"
_UNSEEN = 2000
"""Number of generated maps that the network is evaluated on."""


class TrainingSettings(Settings):
    """Settings of the training and of the evaluation.

    Args:
        fit: How the network is trained.
        margin: Difference of probabilities below which two patterns are a tie.
        mistakes: Number of mistakes on the classifier's page.
        resamples: Resamples of heads for the intervals.
    """

    fit: FitSettings = Field(default=FitSettings(), description="a section of keys and values")
    margin: float = Field(default=0.1, ge=0, le=1, description="a number from 0 to 1")
    mistakes: int = Field(default=20, ge=1, description="a whole number from 1")
    resamples: int = Field(default=2000, ge=100, description="a whole number from 100")


def train_classifier(
    sources: Sequence[Path], folder: Path, settings: TrainingSettings, progress: bool = True
) -> Evaluation:
    """Train and evaluate the classifier, and print its scores.

    Writes ``weights.safetensors`` and ``weights.json`` (a classifier for the ``classifier`` setting of the patterns
    measure), ``evaluation.json``, ``predictions.csv`` (the answers for each held-out map), ``classifier.html`` and its
    figures.

    Args:
        sources: Folders of annotated maps.
        folder: Output folder; created if missing.
        settings: Settings of the training and of the evaluation.
        progress: Whether to show progress bars.

    Raises:
        UserError: If a source holds no annotated maps, or all hold too few for cross-validation.
    """
    fit = settings.fit
    annotated = read_annotated_maps(*sources)
    check_enough_to_train(annotated)
    folder.mkdir(parents=True, exist_ok=True)
    with progress_over(fit.generated + _UNSEEN, "maps generated", progress, unit="map") as advance:
        maps, pattern_N, first_segment_N = generated_maps(fit.generated, fit.seed, advance)
        unseen = generated_maps(_UNSEEN, fit.seed + 1, advance)
    generated = LabelledFeatures.of(maps, one_hot(pattern_N), partly_hidden(first_segment_N, fit))
    generated_masses_N3 = masses(maps, first_segment_N.tolist())
    start = pretrain(generated, fit)
    prepared = PreparedMaps.of(annotated, fit)
    answers: dict[Scheme, HeldOutAnswers] = {}
    schemes = schemes_of(annotated)
    total = sum(len(folds(annotated, scheme, fit.seed)) for scheme in schemes)
    with progress_over(total, "folds", progress, unit="fold") as advance:
        for scheme in schemes:
            answers[scheme] = cross_validate(
                annotated, prepared, generated, generated_masses_N3, start, scheme, fit, advance
            )
    network = finetune(start, generated, prepared.variants, fit)
    temperature = fit_temperature(answers["head"].logit_NP, annotated.pattern_N)
    classifier = PatternClassifier(network, temperature, settings.margin)

    counts = np.bincount(annotated.pattern_N, minlength=len(PATTERNS)).tolist()
    evaluation = Evaluation(
        maps=len(annotated.rows),
        heads=len(set(annotated.heads)),
        tasks=sorted(set(annotated.tasks)),
        patterns=dict(zip(PATTERNS, counts, strict=True)),
        passes=pass_scores(sources, annotated, answers),
        temperature=temperature,
        generated=generated_scores(network, start, *unseen, annotated, prepared),
        held_out={
            scheme: scheme_scores(annotated, answer, classifier.margin, settings.resamples, fit.seed)
            for scheme, answer in answers.items()
        },
    )
    content = evaluation.as_dict()
    save_classifier(classifier, folder, {"training": fit.model_dump(), "evaluation": content})
    write_text(folder / EVALUATION, json.dumps(content, indent=1) + "\n")
    _write_predictions(folder, annotated, answers)
    write_classifier_page(folder, annotated, answers, evaluation, settings.mistakes)
    _print(folder, evaluation)
    return evaluation


def save_classifier(classifier: PatternClassifier, folder: Path, card: dict[str, Any]) -> None:
    """Write ``weights.safetensors`` and ``weights.json``.

    Args:
        classifier: Weights, temperature and margin.
        folder: Created if missing.
        card: Further entries of ``weights.json``: training, evaluation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in classifier.network.state_dict().items()}
    with atomic_write(folder / WEIGHTS) as temporary:
        save_file(state, temporary)
    content = {**INPUT, "temperature": classifier.temperature, "margin": classifier.margin, **card}
    with atomic_write(folder / CARD) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _write_predictions(folder: Path, annotated: AnnotatedMaps, answers: dict[Scheme, HeldOutAnswers]) -> None:
    rows = []
    for scheme, answer in answers.items():
        for index, row in enumerate(annotated.rows):
            probability_P = answer.probability_NP[index]
            patterns = [PATTERNS[annotated.pattern_N[index]], scheme, PATTERNS[int(probability_P.argmax())]]
            probabilities = [f"{value:.4f}" for value in probability_P]
            rows.append([row.map, *patterns, PATTERNS[answer.rules_N[index]], *probabilities])
    write_csv(folder / PREDICTIONS, ["map", "pattern", "held_out", "found", "rules", *PATTERNS], rows)


def _print(folder: Path, evaluation: Evaluation) -> None:
    console = Console()
    for scheme, scores in evaluation.held_out.items():
        console.print(
            f"{HELD_OUT[scheme]}: macro-F1 {scores.all.macro_f1}, rules {scores.all.macro_f1_rules}, difference "
            f"{scores.all.macro_f1_difference}; calibration error {scores.calibration_error:.3f}",
            soft_wrap=True,
        )
        clear = scores.parts.get("clear")
        if clear is not None:
            console.print(
                f"  on the {clear.maps:,} clear maps: {clear.macro_f1}, rules {clear.macro_f1_rules}, difference "
                f"{clear.macro_f1_difference}",
                soft_wrap=True,
            )
    unmet = evaluation.held_out.get("model")
    for model, part in unmet.models_clear.items() if unmet is not None else ():
        console.print(f"  {model} held out, on its {part.maps:,} clear maps: {part.macro_f1}", soft_wrap=True)
    console.print(f"\nClassifier: {folder}\nPage: {folder / PAGE}", soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tools.pattern_classifier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="output folder")
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="fit.<key> (see the README), margin, mistakes, resamples"
    )
    parser.add_argument(
        "--maps", type=Path, nargs="+", default=[PROJECT_MAPS], help="annotation folders with imported labels"
    )
    parsed = parser.parse_args(arguments)
    try:
        values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(parsed.settings))
        train_classifier(parsed.maps, parsed.out, TrainingSettings.read("", values))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
