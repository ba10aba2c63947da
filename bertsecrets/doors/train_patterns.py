"""Trains the classifier of attention patterns and judges it on annotated maps that it has not seen."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from bertsecrets.doors.build import make, run_folder
from bertsecrets.doors.unit import CONFIG_COPY
from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.crossvalidation import SCHEMES, AnnotatedMaps, HeldOut, Scheme, folds, held_out, variants_of
from bertsecrets.patterns.fitting import (
    FitConfig,
    LabelledViews,
    finetune,
    generated_maps,
    one_hot,
    partly_hidden,
    pretrain,
    views_of,
)
from bertsecrets.patterns.labels import LABELS, consensus, majority_of_others, read_labels, votes
from bertsecrets.patterns.maps import ANNOTATED, TABLE, MapSet
from bertsecrets.patterns.network import PatternClassifier, PatternNetwork, judge
from bertsecrets.patterns.rules import masses
from bertsecrets.patterns.scoring import (
    Estimate,
    bootstrap_f1,
    calibration_error,
    confusion,
    f1_scores,
    fit_temperature,
    macro_f1,
    reliability,
)
from bertsecrets.patterns.trained import save_classifier
from bertsecrets.results.figures.classifier import Curve, TitledMap, map_sheet, reliability_diagram
from bertsecrets.results.figures.patterns import count_table
from bertsecrets.results.figures.saving import save_figure
from bertsecrets.results.files import atomic_write
from bertsecrets.results.progress import progress_over
from bertsecrets.results.report.content import FigureBlock, Report, Section, Table
from bertsecrets.results.report.page import write_report

EVALUATION, PREDICTIONS, PAGE = "evaluation.json", "predictions.csv", "classifier.html"
_SYNTHETIC = 2000
_FEWEST = 10
_CLEAR = 0.8
_HELD_OUT: dict[Scheme, str] = {
    "head": "heads held out",
    "task": "tasks held out",
    "head_and_task": "heads and tasks held out",
}


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
    answers: dict[Scheme, HeldOut] = {}
    total = sum(len(folds(annotated, scheme, fit.seed)) for scheme in SCHEMES)
    with progress_over(total, "folds", config.progress, unit="fold") as advance:
        for scheme in SCHEMES:
            answers[scheme] = held_out(annotated, generated, made_masses_N3, start, scheme, fit, advance)
    network = finetune(start, generated, variants_of(annotated, fit), fit)
    temperature = fit_temperature(answers["head"].logit_NP, annotated.pattern_N)
    classifier = PatternClassifier(network, temperature, float(settings.margin))

    evaluation: dict[str, Any] = {
        "maps": len(annotated.rows),
        "heads": len(set(annotated.heads)),
        "tasks": sorted(set(annotated.tasks)),
        "patterns": dict(
            zip(PATTERNS, np.bincount(annotated.pattern_N, minlength=len(PATTERNS)).tolist(), strict=True)
        ),
        "passes": _beside_annotators(source, annotated, answers),
        "temperature": temperature,
        "generated": _generated_scores(network, start, *unseen, annotated),
        "held_out": {
            scheme: _scores(annotated, answer, classifier.margin, int(settings.resamples), fit.seed)
            for scheme, answer in answers.items()
        },
    }
    save_classifier(classifier, folder, {"training": asdict(fit), "evaluation": evaluation})
    with atomic_write(folder / EVALUATION) as temporary:
        temporary.write_text(json.dumps(evaluation, indent=1) + "\n", "utf-8")
    _write_predictions(folder, annotated, answers)
    _write_page(folder, annotated, answers, evaluation, int(settings.mistakes))
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


@torch.no_grad()
def _generated_scores(
    network: PatternNetwork,
    start: PatternNetwork,
    unseen: Sequence[torch.Tensor],
    unseen_N: NDArray[np.int64],
    first_segment_N: NDArray[np.int64],
    annotated: AnnotatedMaps,
) -> dict[str, float]:
    """Macro-F1 on generated maps, and what annotated maps add."""
    views = views_of(unseen, first_segment_N)
    found_N = start(views_of(annotated.maps, annotated.first_segment_N)).argmax(-1).numpy()
    return {
        "maps": len(unseen),
        "macro_f1": float(macro_f1(confusion(unseen_N, network(views).argmax(-1).numpy()))),
        "macro_f1_of_annotated_without_learning_from_them": float(
            macro_f1(confusion(annotated.pattern_N, found_N), _judged(annotated.pattern_N))
        ),
    }


def _scores(annotated: AnnotatedMaps, answer: HeldOut, margin: float, resamples: int, seed: int) -> dict[str, Any]:
    label_N, found_N = annotated.pattern_N, answer.probability_NP.argmax(1)
    table_PP = confusion(label_N, found_N)
    uncertain_N = judge(torch.from_numpy(answer.probability_NP).log(), margin).uncertain.numpy()
    bins = reliability(answer.probability_NP, label_N)
    plain = torch.from_numpy(answer.logit_NP).softmax(-1).numpy()
    untold_N = answer.unsegmented_NP.argmax(1)
    everywhere = np.ones(len(label_N), np.bool_)
    share_N = annotated.vote_NP.max(1)
    clear_N = share_N >= _CLEAR
    sought_N = np.array([bool(row.sought) for row in annotated.rows])
    # Maps sought for rare patterns are those that a classifier may well get wrong; the others are as heads have them.
    parts = {
        "clear": clear_N,
        "unanimous": share_N == 1,
        "taken_whatever_they_show": ~sought_N,
        "taken_whatever_they_show_clear": ~sought_N & clear_N,
        "sought": sought_N,
        "sought_clear": sought_N & clear_N,
    }
    return {
        **_against_rules(annotated, answer, everywhere, resamples, seed),
        **{
            name: _against_rules(annotated, answer, chosen_N, resamples, seed)
            for name, chosen_N in parts.items()
            if chosen_N.any()
        },
        "macro_f1_of_all_patterns": float(macro_f1(table_PP)),
        "without_segments": {
            name: float(macro_f1(confusion(label_N[chosen_N], untold_N[chosen_N]), _judged(label_N[chosen_N])))
            for name, chosen_N in {"all": everywhere, **parts}.items()
            if chosen_N.any()
        },
        "f1": _by_pattern(table_PP),
        "f1_rules": _by_pattern(confusion(label_N, answer.rules_N)),
        "confusion": table_PP.astype(int).tolist(),
        "accuracy_by_task": {
            task: float((found_N == label_N)[[each == task for each in annotated.tasks]].mean())
            for task in sorted(set(annotated.tasks))
        },
        "uncertain": float(uncertain_N.mean()),
        "macro_f1_of_the_certain": float(
            macro_f1(confusion(label_N[~uncertain_N], found_N[~uncertain_N]), _judged(annotated.pattern_N))
        ),
        "calibration_error": calibration_error(bins),
        "calibration_error_before_temperature": calibration_error(reliability(plain, label_N)),
        "reliability": [asdict(each) for each in bins],
    }


def _against_rules(
    annotated: AnnotatedMaps, answer: HeldOut, chosen_N: NDArray[np.bool_], resamples: int, seed: int
) -> dict[str, Any]:
    """Network and rules on some of the maps, over the patterns of which there are enough among them."""
    label_N, found_N = annotated.pattern_N[chosen_N], answer.probability_NP.argmax(1)[chosen_N]
    rules_N = answer.rules_N[chosen_N]
    heads = [head for head, chosen in zip(annotated.heads, chosen_N, strict=True) if chosen]
    judged_P = _judged(label_N)
    network, rules, difference = bootstrap_f1(
        label_N, [found_N, rules_N], heads, judged_P, resamples=resamples, seed=seed
    )
    return {
        "maps": len(label_N),
        "judged": [name for name, judged in zip(PATTERNS, judged_P, strict=True) if judged],
        "macro_f1": asdict(network),
        "macro_f1_rules": asdict(rules),
        "macro_f1_difference": asdict(difference),
        "accuracy": float((found_N == label_N).mean()),
        "accuracy_rules": float((rules_N == label_N).mean()),
    }


def _judged(pattern_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The patterns of which there are maps enough for an F1 to mean something."""
    return np.bincount(pattern_N, minlength=len(PATTERNS)) >= _FEWEST


def _beside_annotators(folder: Path, annotated: AnnotatedMaps, answers: dict[Scheme, HeldOut]) -> dict[str, Any]:
    """Macro-F1 of each pass, and of the network and the rules on the same maps, against what the other passes say."""
    labels = read_labels(folder)
    named, place = votes(labels), {row.map: number for number, row in enumerate(annotated.rows)}
    judged_P = _judged(annotated.pattern_N)
    found = {}
    for number in sorted({label.number for label in labels}):
        others = {name: pattern for name, pattern in majority_of_others(labels, number).items() if name in place}
        if not others:
            continue
        label_N = np.array([PATTERNS.index(pattern) for pattern in others.values()])
        chosen_N = np.array([place[name] for name in others])

        def score(said_N: NDArray[np.int64], label_N: NDArray[np.int64] = label_N) -> float:
            return float(macro_f1(confusion(label_N, said_N), judged_P))

        found[str(number)] = {
            "maps": len(others),
            "annotators": score(np.array([PATTERNS.index(named[name][number]) for name in others])),
            "network": {scheme: score(each.logit_NP.argmax(1)[chosen_N]) for scheme, each in answers.items()},
            "rules": {scheme: score(each.rules_N[chosen_N]) for scheme, each in answers.items()},
        }
    return found


def _by_pattern(table_PP: NDArray[np.float64]) -> dict[str, float | None]:
    scores = zip(PATTERNS, f1_scores(table_PP).tolist(), strict=True)
    return {name: None if math.isnan(score) else score for name, score in scores}


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


def _write_page(
    folder: Path,
    annotated: AnnotatedMaps,
    answers: dict[Scheme, HeldOut],
    evaluation: dict[str, Any],
    mistakes: int,
) -> None:
    label_N, answer = annotated.pattern_N, answers["head"]
    labels = [name.replace("_", " +\n") for name in PATTERNS]
    note = f"n = {len(label_N)} maps of {evaluation['heads']} heads and {len(evaluation['tasks'])} tasks"
    figures = {
        "confusion": count_table(
            confusion(label_N, answer.probability_NP.argmax(1)).astype(int),
            labels,
            title="What the network takes maps for, heads held out",
            rows="annotators",
            columns="network",
            note=note,
            unit="share of the row's maps",
        ),
        "confusion_rules": count_table(
            confusion(label_N, answer.rules_N).astype(int),
            labels,
            title="What the rules take maps for, heads held out",
            rows="annotators",
            columns="rules",
            note=note,
            unit="share of the row's maps",
        ),
        "reliability": reliability_diagram(
            [
                _curve("as trained", torch.from_numpy(answer.logit_NP).softmax(-1).numpy(), label_N),
                _curve("calibrated", answer.probability_NP, label_N),
            ],
            title="Do the probabilities hold? Heads held out",
            note=f"{note}; ten bins; bars: 95% Wilson intervals",
        ),
        "mistakes": _mistakes(annotated, answer, mistakes),
    }
    captions = {
        "confusion": "The network: number of maps by the annotators' pattern (rows) and the network's (columns).",
        "confusion_rules": "The rules, tuned on the same maps.",
        "reliability": "Share of right choices against probability, and how many maps each bin holds.",
        "mistakes": "The mistakes of which the network was surest.",
    }
    for name, figure in figures.items():
        save_figure(figure, folder / "figures" / f"{name}.png")
    rows = [
        [
            _HELD_OUT[scheme],
            *(
                _interval(evaluation["held_out"][scheme][key])
                for key in ("macro_f1", "macro_f1_rules", "macro_f1_difference")
            ),
            f"{evaluation['held_out'][scheme]['calibration_error']:.3f}",
        ]
        for scheme in SCHEMES
    ]
    table = Table(
        ["held out", "macro-F1 of the network", "of the rules", "difference", "calibration error"],
        rows,
        "95% intervals by a bootstrap over heads",
    )
    blocks = [FigureBlock(figure, captions[name], captions[name]) for name, figure in figures.items()]
    first = evaluation["held_out"]["head"]["macro_f1"]
    report = Report(
        title="A classifier of attention patterns",
        facts=[("annotated maps", str(len(label_N))), ("heads", str(evaluation["heads"]))],
        lead=[f"On maps of heads that it has not seen, the classifier's macro-F1 is {_interval(first)}."],
        sections=[Section("Held-out maps", tables=[table], figures=blocks)],
    )
    write_report(folder / PAGE, report)


def _curve(name: str, probability_NP: NDArray[np.float64], label_N: NDArray[np.int64]) -> Curve:
    bins = reliability(probability_NP, label_N)
    return Curve(name, [b.confidence for b in bins], [b.accuracy for b in bins], [b.count for b in bins])


def _mistakes(annotated: AnnotatedMaps, answer: HeldOut, count: int) -> Figure:
    """The maps whose own pattern got the lowest probability."""
    own_N = answer.probability_NP[np.arange(len(annotated.rows)), annotated.pattern_N]
    found_N = answer.probability_NP.argmax(1)
    wrong = [place for place in own_N.argsort(kind="stable") if found_N[place] != annotated.pattern_N[place]][:count]
    maps = []
    for place in wrong:
        row, best = annotated.rows[place], found_N[place]
        names = [PATTERNS[annotated.pattern_N[place]], f"→ {PATTERNS[best]} {answer.probability_NP[place, best]:.2f}"]
        where = f"{row.task}\n{row.layer}·{row.head}, {row.length} tokens"
        maps.append(
            TitledMap("\n".join([*names, where]).replace("vertical_diagonal", "vert.+diag."), annotated.maps[place])
        )
    return map_sheet(
        maps,
        title=f"The {len(maps)} worst mistakes, heads held out",
        note="first line: annotators; second: network, with its probability; then task, layer · head (from 0) and length; "
        "from dark violet (0) to yellow (the map's largest weight)",
    )


def _interval(estimate: Estimate | dict[str, float]) -> str:
    values = asdict(estimate) if isinstance(estimate, Estimate) else estimate
    return f"{values['value']:.3f} [{values['low']:.3f}, {values['high']:.3f}]"


def _print(folder: Path, evaluation: dict[str, Any]) -> None:
    console = Console()
    for scheme in SCHEMES:
        scores = evaluation["held_out"][scheme]
        console.print(
            f"{_HELD_OUT[scheme]}: macro-F1 {_interval(scores['macro_f1'])}, rules {_interval(scores['macro_f1_rules'])}, "
            f"difference {_interval(scores['macro_f1_difference'])}; calibration error {scores['calibration_error']:.3f}",
            soft_wrap=True,
        )
    console.print(f"\nClassifier: {folder}\nPage: {folder / PAGE}", soft_wrap=True)
