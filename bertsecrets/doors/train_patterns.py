"""Trains the classifier of attention patterns and judges it on annotated maps that it has not seen."""

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from bertsecrets.doors.build import make, run_folder
from bertsecrets.doors.pattern_classifier_page import HELD_OUT, PAGE, interval, write_classifier_page
from bertsecrets.doors.pattern_evaluation import beside_annotators, generated_scores, scores_of
from bertsecrets.doors.unit import CONFIG_COPY
from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.crossvalidation import SCHEMES, AnnotatedMaps, HeldOut, Material, Scheme, folds, held_out
from bertsecrets.patterns.fitting import (
    FitConfig,
    LabelledViews,
    finetune,
    generated_maps,
    one_hot,
    partly_hidden,
    pretrain,
)
from bertsecrets.patterns.labels import LABELS, consensus, read_labels, votes
from bertsecrets.patterns.maps import ANNOTATED, TABLE, MapSet
from bertsecrets.patterns.network import PatternClassifier
from bertsecrets.patterns.rules import masses
from bertsecrets.patterns.scoring import fit_temperature
from bertsecrets.patterns.trained import save_classifier
from bertsecrets.results.files import atomic_write
from bertsecrets.results.progress import progress_over

EVALUATION, PREDICTIONS = "evaluation.json", "predictions.csv"
_SYNTHETIC = 2000


def train_patterns(config: DictConfig) -> dict[str, Any]:
    """Trains on generated and annotated maps, in Hydra's output folder; returns what ``evaluation.json`` says.

    Writes ``weights.safetensors`` and ``weights.json`` (a classifier for ``analysis.patterns.measures.patterns.classifier``),
    ``evaluation.json``, ``predictions.csv`` (what was said of each map while it was held out), figures and a page.

    Raises:
        UserError: If the folder holds no annotated maps, or too few to hold heads and tasks out.
    """
    settings = config.patterns
    fit = make(settings.fit)
    assert isinstance(fit, FitConfig)
    source = ANNOTATED if config.train_patterns is True else Path(str(config.train_patterns))
    annotated = read_annotated(source)
    folder = run_folder()
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / CONFIG_COPY, resolve=True)

    with progress_over(fit.generated + _SYNTHETIC, "maps made", config.progress, unit="map") as advance:
        made, made_N, first_N = generated_maps(fit.generated, fit.seed, advance)
        unseen = generated_maps(_SYNTHETIC, fit.seed + 1, advance)
    generated = LabelledViews.of(made, one_hot(made_N), partly_hidden(first_N, fit))
    made_masses_N3 = masses(made, first_N.tolist())
    start = pretrain(generated, fit)
    material = Material.of(annotated, fit)
    answers: dict[Scheme, HeldOut] = {}
    total = sum(len(folds(annotated, scheme, fit.seed)) for scheme in SCHEMES)
    with progress_over(total, "folds", config.progress, unit="fold") as advance:
        for scheme in SCHEMES:
            answers[scheme] = held_out(annotated, material, generated, made_masses_N3, start, scheme, fit, advance)
    network = finetune(start, generated, material.variants, fit)
    temperature = fit_temperature(answers["head"].logit_NP, annotated.pattern_N)
    classifier = PatternClassifier(network, temperature, float(settings.margin))

    evaluation: dict[str, Any] = {
        "maps": len(annotated.rows),
        "heads": len(set(annotated.heads)),
        "tasks": sorted(set(annotated.tasks)),
        "patterns": dict(
            zip(PATTERNS, np.bincount(annotated.pattern_N, minlength=len(PATTERNS)).tolist(), strict=True)
        ),
        "passes": beside_annotators(source, annotated, answers),
        "temperature": temperature,
        "generated": generated_scores(network, start, *unseen, annotated, material),
        "held_out": {
            scheme: scores_of(annotated, answer, classifier.margin, int(settings.resamples), fit.seed)
            for scheme, answer in answers.items()
        },
    }
    save_classifier(classifier, folder, {"training": asdict(fit), "evaluation": evaluation})
    with atomic_write(folder / EVALUATION) as temporary:
        temporary.write_text(json.dumps(evaluation, indent=1) + "\n", "utf-8")
    _write_predictions(folder, annotated, answers)
    write_classifier_page(folder, annotated, answers, evaluation, int(settings.mistakes))
    _print(folder, evaluation)
    return evaluation


def read_annotated(folder: Path) -> AnnotatedMaps:
    """The maps of an annotation folder on whose pattern its annotators agree.

    Raises:
        UserError: If the folder is none, or holds maps of fewer than six heads or three tasks.
    """
    if not (folder / TABLE).is_file() or not (folder / LABELS).is_file():
        raise UserError(
            f"Folder '{folder}' holds no {TABLE} with {LABELS}; give train_patterns=<folder that "
            "analysis=annotate_patterns made and took labels into>, or train_patterns=true for the package's maps."
        )
    maps, labels = MapSet.read(folder), read_labels(folder)
    decided, named = consensus(labels), votes(labels)
    rows = [row for row in maps.rows if row.map in decided]
    answers = [[PATTERNS.index(pattern) for pattern in named[row.map].values()] for row in rows]
    counts = [np.bincount(each, minlength=len(PATTERNS)) for each in answers]
    count_NP = np.array(counts, np.float64).reshape(-1, len(PATTERNS))
    annotated = AnnotatedMaps(
        rows,
        [maps[row.map] for row in rows],
        np.array([PATTERNS.index(decided[row.map]) for row in rows], np.int64),
        count_NP / count_NP.sum(1, keepdims=True),
    )
    if len(set(annotated.heads)) < 6 or len(set(annotated.tasks)) < 3:
        raise UserError(
            f"Folder '{folder}' has {len(rows)} maps with an agreed label, of {len(set(annotated.heads))} heads and "
            f"{len(set(annotated.tasks))} tasks; judging a classifier takes at least six heads and three tasks."
        )
    return annotated


def _write_predictions(folder: Path, annotated: AnnotatedMaps, answers: dict[Scheme, HeldOut]) -> None:
    with atomic_write(folder / PREDICTIONS) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["map", "pattern", "held_out", "found", "rules", *PATTERNS])
        for scheme, answer in answers.items():
            for place, row in enumerate(annotated.rows):
                probability_P = answer.probability_NP[place]
                found = [PATTERNS[annotated.pattern_N[place]], scheme, PATTERNS[int(probability_P.argmax())]]
                said = [f"{value:.4f}" for value in probability_P]
                writer.writerow([row.map, *found, PATTERNS[answer.rules_N[place]], *said])


def _print(folder: Path, evaluation: dict[str, Any]) -> None:
    console = Console()
    for scheme in SCHEMES:
        scores = evaluation["held_out"][scheme]
        console.print(
            f"{HELD_OUT[scheme]}: macro-F1 {interval(scores['macro_f1'])}, rules {interval(scores['macro_f1_rules'])}, "
            f"difference {interval(scores['macro_f1_difference'])}; calibration error {scores['calibration_error']:.3f}",
            soft_wrap=True,
        )
        if "clear" in scores:
            console.print(
                f"  on the {scores['clear']['maps']:,} clear ones {interval(scores['clear']['macro_f1'])}, rules "
                f"{interval(scores['clear']['macro_f1_rules'])}, difference "
                f"{interval(scores['clear']['macro_f1_difference'])}",
                soft_wrap=True,
            )
    console.print(f"\nClassifier: {folder}\nPage: {folder / PAGE}", soft_wrap=True)
