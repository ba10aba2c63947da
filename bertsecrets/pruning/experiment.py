"""Declarations of experiments that remove heads."""

from bertsecrets.grid import Column, Shown
from bertsecrets.results.experiment import Experiment

KEPT = "kept"
"""Column of experiments that remove heads: 1 for a head that is kept, 0 for one that is removed."""

REMOVED_AT = "removed_at"
SHUT, OPEN = "pushed_shut", "pushed_open"
GATE, OPEN_PROBABILITY = "gate", "open_probability"


class Pruning(Experiment):
    """Heads removed in the order of a score: the curve, its controls, and the smallest model with a guarantee."""

    name = "pruning"
    title = "Pruned heads"
    columns = (
        Column(REMOVED_AT, "heads removed before or with it", "heads removed"),
        Column(KEPT, "kept in the returned model", "1: kept", (0, 1)),
    )
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.pruning:PRESENTER"


class FirstPruned(Experiment):
    """Heads removed before fine-tuning."""

    name = "pruned_first"
    title = "Heads removed before fine-tuning"
    columns = (Column(KEPT, "kept in fine-tuning", "1: kept", (0, 1)),)
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.pruning:FIRST"


class CausalGates(Experiment):
    """Gates of a frozen model, pushed shut and pushed open, and a path to few heads."""

    name = "causal_gates"
    title = "Gates of the frozen model"
    columns = (
        Column(SHUT, "gate when pushed shut", "gate", (0, 1)),
        Column(OPEN, "gate when pushed open", "gate", (0, 1)),
    )
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.gates:FROZEN"


class LearnedGates(Experiment):
    """Gates learned together with fine-tuning (Voita et al. 2019, section 6)."""

    name = "gates"
    title = "Gates learned with fine-tuning"
    columns = (
        Column(GATE, "gate in evaluation", "gate", (0, 1)),
        Column(OPEN_PROBABILITY, "probability of an open gate", "probability", (0, 1)),
    )
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.gates:LEARNED"


class Shrinking(Experiment):
    """Heads and neurons removed by measured time, up to the fastest model that passes its tests."""

    name = "shrinking"
    title = "A smaller, faster model"
    columns = (Column(KEPT, "kept in the smaller model, or in the last one tried", "1: kept", (0, 1)),)
    shown = Shown(reads_task=True)
    presenter = "bertsecrets.present.shrink:PRESENTER"
