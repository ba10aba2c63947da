"""Section 6, figure 6: heads that attend alike."""

from bertsecrets.measures.clusters.record import ClusterRecord
from bertsecrets.papers.chapter import Answers, Chapter, Claim, PaperRuns, claims_tables
from bertsecrets.papers.clark2019.models import model_table, models, not_measured
from bertsecrets.results.figures.head_space import head_space
from bertsecrets.results.formatting import number, p_value
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.scores import LEVEL

_STABLE = 0.75


def groups(runs: PaperRuns) -> Chapter:
    """Distances between heads within layers and between them, and the groups that heads form."""
    title = "Section 6, figure 6: groups of heads"
    measured = [
        (model, record)
        for model in models(runs, "clusters")
        if (record := ClusterRecord.read(model.view.extras)) is not None
    ]
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
        Claim(statement, here, answers.everywhere)
        for statement, here, answers in (
            (
                "Heads of one layer attend alike more often than heads of different layers.",
                f"They are closer on average, by a permutation test: {close}.",
                close,
            ),
            (
                "Heads form groups of like behaviour.",
                f"Two or more groups are found again in samples of the texts (stability of {_STABLE} or more): {many}.",
                many,
            ),
        )
        if answers
    ]
    rows = [
        [
            model.name,
            number(record.within),
            number(record.between),
            p_value(record.p),
            str(max(record.groups) + 1),
            str(sum(value >= _STABLE for value in record.stability)),
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
            tables=[*claims_tables(claims), model_table(header, rows, "Distances between heads and their groups")],
            figures=[FigureBlock("paper_figure6", figure, caption, "Heads as points in the plane.")],
        ),
        claims,
    )
