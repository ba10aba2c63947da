"""Section 6, figure 6: heads that attend alike."""

from dataclasses import replace

from bertsecrets.measures.clusters.measure import ClusterRecord
from bertsecrets.papers.chapter import Answers, Chapter, PaperRuns, claims_tables
from bertsecrets.papers.clark2019.models import BEFORE, FINE_TUNED, Model, claim, model_tables, models, not_measured
from bertsecrets.results.figures.head_space import head_space
from bertsecrets.results.formatting import MISSING, number, p_value
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.scores import LEVEL

_STABLE = 0.75


def groups(runs: PaperRuns) -> Chapter:
    """Distances between heads within layers and between them, and the groups that heads form."""
    title = "Section 6, figure 6: groups of heads"
    measured = [pair for model in models(runs, "clusters") for pair in _records(model)]
    if not measured:
        return not_measured(title, "Add measure=[clusters], or analyze.py analysis=clusters.")
    close, many = Answers(), Answers()
    for model, record in measured:
        if model.pretrained:
            # A permutation test that is not significant does not show that layers make no difference.
            close[model.name] = True if record.p <= LEVEL else None
            if record.replicates:
                many[model.name] = True if sum(value >= _STABLE for value in record.stability) > 1 else None
    claims = [
        *claim(
            "Heads of one layer attend alike more often than heads of different layers.",
            "They are significantly closer on average (permutation test)",
            close,
        ),
        *claim(
            "Heads form groups of like behaviour.",
            f"Two or more groups are found again in samples of the texts (stability of {_STABLE} or more)",
            many,
        ),
    ]
    rows = [
        [
            model.name,
            number(record.within),
            number(record.between),
            p_value(record.p),
            str(max(record.groups) + 1),
            str(sum(value >= _STABLE for value in record.stability)) if record.replicates else MISSING,
            number(record.stress, 2),
        ]
        for model, record in measured
    ]
    header = ["model", "within layers, nats", "between layers", "p", "groups", "of these stable", "stress"]
    model, record = measured[0]
    figure = head_space(
        record.points,
        model.view.value("within_layer").shape[1],
        record.groups,
        title="Heads near each other attend alike",
        note=f"{model.name}; stress {number(record.stress, 2)}",
    )
    caption = f"Figure 6 ({model.name}): heads by layer and by group."
    return Chapter(
        Section(
            title,
            tables=[*claims_tables(claims), *model_tables(header, rows, "Distances between heads and their groups")],
            figures=[FigureBlock("paper_figure6", figure, caption, "Heads as points in the plane.")],
        ),
        claims,
    )


def _records(model: Model) -> list[tuple[Model, ClusterRecord]]:
    """A model's record; before it, that of the model before fine-tuning, which the measure takes along."""
    record = ClusterRecord.read(model.view.extras)
    if record is None:
        return []
    if record.before is None or model.pretrained:
        return [(model, record)]
    name = model.name.removesuffix(FINE_TUNED) + BEFORE
    return [(replace(model, name=name, pretrained=True), record.before), (model, record)]
