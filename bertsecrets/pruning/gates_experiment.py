"""The experiments of gates: how fits to a frozen model, and gates learned with fine-tuning, are described."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bertsecrets.grid import Column, Shown
from bertsecrets.present.figures.grids import HeadPanel, head_panels
from bertsecrets.present.report.content import FigureBlock, Section, Table
from bertsecrets.pruning.figures import pruning_curves
from bertsecrets.pruning.gate_fit import FACILITATING, INTERFERING, IRRELEVANT, UNDECIDED, roles
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING, number
from bertsecrets.results.views import MeasureView

SHUT, OPEN = "pushed_shut", "pushed_open"
GATE, OPEN_PROBABILITY = "gate", "open_probability"


class CausalGates(Experiment):
    """Gates of a frozen model, pushed shut and pushed open, and a path to few heads."""

    name = "causal_gates"
    title = "Gates of the frozen model"
    columns = (
        Column(SHUT, "gate when pushed shut", "gate", (0, 1)),
        Column(OPEN, "gate when pushed open", "gate", (0, 1)),
    )
    shown = Shown(reads_task=True)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """Roles in words, both fits side by side, and the path."""
        if not view.has(SHUT):
            return None
        content = view.extras
        names = _roles(view)
        counts = Counter(name for row in names for name in row)
        total = sum(counts.values())
        finding = (
            f"Of {total} heads, the gates of {counts[FACILITATING]} stay open when pushed shut (facilitating), those of "
            f"{counts[INTERFERING]} shut when pushed open (interfering), and {counts[IRRELEVANT]} follow the push (irrelevant)"
            f"{f'; {counts[UNDECIDED]} are undecided' if counts[UNDECIDED] else ''}."
        )
        fits = f"{view.count(SHUT)} fit{'s' * (view.count(SHUT) != 1)}"
        panels = [HeadPanel(column.label, view.value(column.name)) for column in cls.columns]
        blocks = [
            FigureBlock(
                cls.name,
                head_panels(
                    panels,
                    title="Gates of the frozen model",
                    unit="mean gate over the fits",
                    note=f"{fits} each; 1: the head is kept whole, 0: its output is zero",
                    limits=(0, 1),
                ),
                "Gates fitted on training examples with a penalty that pushes them shut (left) and open (right).",
                "Heatmaps by layer and head: gates pushed shut and pushed open.",
            )
        ]
        tables = []
        if content.get("curves"):
            tables.append(_path_table(content))
            blocks.append(_path_figure(cls.name, content))
        settings = (
            f"The model is frozen; a penalty of {content['penalty']:g} for each expected open gate pushes shut, its negative "
            f"pushes open. {fits} of {content['steps']} steps on {content['choosing']:,} training examples; a head's gate is "
            "their mean, open from 0.5. Gates start open: with a stronger or longer push, fewer heads are facilitating."
        )
        return Section(cls.title, [finding], [settings], tables, blocks)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The role of each head."""
        return {"role": _roles(view)} if view.has(SHUT) else {}

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """The number of heads of each role."""
        if not view.has(SHUT):
            return {}
        counts = Counter(name for row in _roles(view) for name in row)
        return {name: float(counts[name]) for name in (FACILITATING, INTERFERING, IRRELEVANT)}


class LearnedGates(Experiment):
    """Gates learned together with fine-tuning (Voita et al. 2019, section 6)."""

    name = "gates"
    title = "Gates learned with fine-tuning"
    columns = (
        Column(GATE, "gate in evaluation", "gate", (0, 1)),
        Column(OPEN_PROBABILITY, "probability of an open gate", "probability", (0, 1)),
    )
    shown = Shown(reads_task=True)

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """How many heads are open in words, and the gates."""
        if not view.has(GATE):
            return None
        gate_LH = view.value(GATE)
        is_open = gate_LH >= 0.5
        between = int(((gate_LH > 0.05) & (gate_LH < 0.95)).sum())
        by_layer = ", ".join(f"layer {layer}: {int(count)}" for layer, count in enumerate(is_open.sum(-1)))
        figure = head_panels(
            [HeadPanel(column.label, view.value(column.name)) for column in cls.columns],
            title=cls.title,
            unit="gate, probability",
            note="1: the head is kept whole, 0: its output is zero",
            limits=(0, 1),
        )
        history = [[f"{step:,}", str(int((value_LH >= 0.5).sum()))] for step, value_LH in view.history(GATE)]
        return Section(
            cls.title,
            [f"{int(is_open.sum())} of {gate_LH.size} heads are open after fine-tuning with a penalty on open gates."],
            [f"Open heads by {by_layer}. {between} gates are neither open nor shut (0.05 to 0.95)."],
            [Table(["step", "open heads"], history, "Open heads during fine-tuning")] if history else [],
            [FigureBlock(cls.name, figure, "At the last validation.", "Heatmaps by layer and head: learned gates.")],
        )

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """Whether each gate is open."""
        if not view.has(GATE):
            return {}
        return {"gate": [["open" if value >= 0.5 else "shut" for value in row] for row in view.value(GATE).tolist()]}

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """The number of open heads."""
        return {"open_heads": float((view.value(GATE) >= 0.5).sum())} if view.has(GATE) else {}


def _roles(view: MeasureView) -> list[list[str]]:
    return roles(view.value(SHUT).tolist(), view.value(OPEN).tolist())


def _path_figure(name: str, content: Mapping[str, Any]) -> FigureBlock:
    figure = pruning_curves(
        content["curves"],
        title=f"Change of {content['metric']} by heads kept: gates of the frozen model",
        count=content["examples"],
        level=content["level"],
    )
    return FigureBlock(
        f"{name}_path",
        figure,
        "Each point is a fit with a stronger penalty; heads are kept or removed whole.",
        f"Line chart: change of {content['metric']} by number of heads kept.",
    )


def _path_table(content: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"{row['penalty']:g}",
            str(row["kept"]),
            *(MISSING if row[key] is None else number(100 * row[key], 1) for key in ("change", "low", "high")),
            number(row["loss"]),
        ]
        for row in content["curves"]
    ]
    return Table(
        ["penalty", "heads kept", "change, points", "lowest", "highest", "loss"],
        rows,
        f"The path: {content['metric']} {number(content['baseline'])}, loss {number(content['clean_loss'])} with all heads; "
        f"limits at {content['level']:.0%}",
    )
