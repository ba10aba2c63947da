"""Sections 4 and 5: heads that follow dependencies and coreference, and probes of the attention of all heads."""

from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from bertsecrets.measures.dependency.record import DependencyRecord, RelationScore
from bertsecrets.papers.chapter import Answers, Chapter, Claim, PaperRuns, claims_tables
from bertsecrets.papers.clark2019 import published
from bertsecrets.papers.clark2019.maps import heads_of_relations
from bertsecrets.papers.clark2019.models import Model, claim, model_tables, models, not_measured
from bertsecrets.results.figures.relation_scores import ScoreRow, relation_scores
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.report.content import FigureBlock, Section
from bertsecrets.results.scores import LEVEL

_ALL = "all"
_HALF, _CLEAR = 0.5, 0.75
_CLEAR_RELATIONS = ("det", "dobj", "poss", "auxpass")
"""Relations whose best head scores above three quarters in the paper and which other label sets have as well."""

_CLOSE = 0.1
"""How far below a system of rules a head may stay to be close to it; the paper's is 4 points below."""

_KINDS = {"all": 0, "pronoun": 1, "proper": 2, "nominal": 3}
_BASELINES = {
    "nearest": "nearest mention",
    "head_match": "same head word",
    "rule_based": "rules",
    "random": "random mention",
}

_PROBES = {
    "right_branching": "right-branching",
    "distances_words": "distances and words",
    "random_attention": "attention, random encoder",
    "random_attention_words": "attention and words, random encoder",
    "attention": "attention",
    "attention_words": "attention and words",
}


def dependency(runs: PaperRuns) -> Chapter:
    """Section 4.2, table 1: the best head of each relation."""
    title = "Section 4.2, table 1 and figure 5: dependency heads"
    records = [
        (model, record)
        for model in models(runs, "dependency")
        if (record := DependencyRecord.read(model.view.extras)) is not None and record.relations
    ]
    if not records:
        return not_measured(
            title, "Run analyze.py checkpoint=initial analysis=dependency task=treebank data.root=<treebank folder>."
        )
    before = [(model, record) for model, record in records if model.pretrained]
    whole, single, clear, downward = Answers(), Answers(), Answers(), Answers()
    for model, record in before:
        relations = [score for score in record.relations if score.relation != _ALL]
        for score in record.relations:
            if score.relation == _ALL:
                whole[model.name] = True if score.high < _HALF else False if score.low > _HALF else None
        single[model.name] = _most(
            [score.gain_low > 0 for score in relations], [score.gain_high < 0 for score in relations]
        )
        named = [score for score in relations if _theirs(score.relation) in _CLEAR_RELATIONS]
        if named:
            clear[model.name] = (
                True
                if all(score.low > _CLEAR for score in named)
                else False
                if any(score.high < _CLEAR for score in named)
                else None
            )
        downward[model.name] = _to_heads(relations)
    claims = [
        *claim(
            "No single head finds the heads of all words.",
            "The best head's share of all words is below one half with its whole interval",
            whole,
        ),
        *claim(
            "For single relations there are heads that are better than any fixed offset.",
            "For most relations, the interval of the difference between the best head and the best offset is above 0",
            single,
        ),
        *claim(
            f"Heads find {', '.join(_CLEAR_RELATIONS)} (labels of Stanford Dependencies) with over 75 % accuracy.",
            "Above 75 % with the whole interval for each of these that the treebank has",
            clear,
        ),
        *claim(
            "Heads point from dependents to their heads rather than the other way.",
            "The best head does so for significantly more than half of the relations (sign test)",
            downward,
        ),
    ]
    rows = [_relation_row(model, score) for model, record in records for score in record.relations]
    header = ["model", "relation", "words", "head", "accuracy, % [95 %]", "offset: baseline, %", "difference [95 %]"]
    header += ["paper, %", "paper's head"]
    model, record = records[0]
    scores = [
        ScoreRow(
            f"{score.relation} ({head_label(score.layer, score.head)})",
            score.accuracy,
            score.low,
            score.high,
            score.baseline,
        )
        for score in record.relations[:40]
    ]
    figure = relation_scores(
        scores,
        title="The best head of each relation, on sentences that it was not chosen on",
        unit="share of words whose head is found",
        baseline="best fixed offset",
        note=f"{model.name}; bars: 95 % intervals over sentences; {record.sentences:,} sentences",
    )
    caption = f"Table 1 as a figure ({model.name})."
    figures = [FigureBlock("paper_table1", figure, caption, "Dots with intervals, one row a relation.")]
    figures += heads_of_relations([(model, record.relations) for model, record in records])
    return Chapter(
        Section(
            title,
            paragraphs=[
                "Heads and offsets are chosen on one half of the sentences and scored on the other; the paper's were chosen "
                "and scored on the same sentences of the Wall Street Journal, with Stanford labels. Where a treebank of "
                "Universal Dependencies has the same relation under another name, the paper's number stands beside it. "
                "Intervals are not corrected for the number of relations."
            ],
            tables=[
                *claims_tables(claims),
                *model_tables(
                    header,
                    rows,
                    "Table 1: the best head of each relation; paper: its best head and best offset",
                    apart=True,
                ),
            ],
            figures=figures,
        ),
        claims,
    )


def coreference(runs: PaperRuns) -> Chapter:
    """Section 4.3, table 2: the best head for antecedents."""
    title = "Section 4.3, table 2: coreference"
    measured = [model for model in models(runs, "coreference") if model.view.extras.get("kinds")]
    if not measured:
        return not_measured(
            title, "Run analyze.py checkpoint=initial analysis=coreference task=coreference data.root=<folder>."
        )
    above_match, above_nearest, near_rules = Answers(), Answers(), Answers()
    for model in measured:
        together = next((kind for kind in model.view.extras["kinds"] if kind["kind"] == "all"), None)
        if together is None or not model.pretrained:
            continue
        gains = {baseline["name"]: baseline for baseline in together["baselines"]}
        for answers, name in ((above_nearest, "nearest"), (above_match, "head_match")):
            if name in gains:
                answers[model.name] = _sign(gains[name]["gain_low"], gains[name]["gain_high"])
        if "rule_based" in gains:
            low, high = (gains["rule_based"][limit] + _CLOSE for limit in ("gain_low", "gain_high"))
            near_rules[model.name] = _sign(low, high)
    claims = [
        *claim(
            "One head finds antecedents better than the nearest mention.",
            "The difference is above 0 with its whole interval",
            above_nearest,
        ),
        *claim(
            "It finds them better than the nearest mention with the same head word.",
            "The difference is above 0 with its whole interval",
            above_match,
        ),
        *claim(
            "It comes close to a system of rules.",
            f"It is at most {_percent(_CLOSE)} points below with its whole interval",
            near_rules,
        ),
    ]
    rows = [row for model in measured for kind in model.view.extras["kinds"] for row in _mention_rows(model, kind)]
    header = ["model", "mentions", "number", "finder", "accuracy, % [95 %]", "paper (CoNLL-2012)"]
    return Chapter(
        Section(
            title,
            paragraphs=[
                "The head is chosen on one half of the documents and scored on the other; the paper does not say how its "
                "head 4-3 (from 0) was chosen."
            ],
            tables=[*claims_tables(claims), *model_tables(header, rows, "Table 2: antecedents found", apart=True)],
        ),
        claims,
    )


def probes(runs: PaperRuns) -> Chapter:
    """Section 5, table 3: dependency parsing from the attention of all heads."""
    title = "Section 5, table 3: probes of all heads"
    measured = [model for model in models(runs, "probes") if model.view.extras.get("scores")]
    if not measured:
        return not_measured(
            title, "Run analyze.py checkpoint=initial analysis=probes task=treebank data.root=<treebank folder>."
        )
    statements = {
        ("attention", "right_branching"): "Attention alone finds more heads of words than right-branching.",
        ("attention_words", "distances_words"): "Attention and words find more than distances and words.",
        ("attention_words", "attention"): "Words add to attention.",
        (
            "attention_words",
            "random_attention_words",
        ): "A pre-trained encoder's attention finds more than a random encoder's.",
    }
    claims: list[Claim] = []
    for (first, second), statement in statements.items():
        answers = Answers()
        for model in measured:
            for difference in model.view.extras["differences"]:
                if (difference["first"], difference["second"]) == (first, second) and model.pretrained:
                    answers[model.name] = _sign(difference["uas"]["low"], difference["uas"]["high"])
        here = "The difference on the same sentences is above 0 with its whole interval"
        claims += claim(statement, here, answers)
    rows = [
        [
            model.name,
            _PROBES.get(score["name"], score["name"]),
            _interval(score["uas"]["value"], score["uas"]["low"], score["uas"]["high"]),
            _interval(score["las"]["value"], score["las"]["low"], score["las"]["high"]),
            _percent(score["selectivity"]["value"], signed=True) if score.get("selectivity") else MISSING,
            str(published.PROBES.get(score["name"], MISSING)),
        ]
        for model in measured
        for score in model.view.extras["scores"]
    ]
    header = ["model", "probe", "heads right, % [95 %]", "with relation, % [95 %]", "selectivity", "paper (WSJ)"]
    return Chapter(
        Section(
            title,
            tables=[
                *claims_tables(claims),
                *model_tables(header, rows, "Table 3: words with the right head", apart=True),
            ],
        ),
        claims,
    )


def _most(above: Sequence[bool], below: Sequence[bool]) -> bool | None:
    """Whether more than half are above; False if half or more are below."""
    if not above:
        return None
    if sum(above) > len(above) / 2:
        return True
    return False if sum(below) >= len(below) / 2 else None


def _sign(low: float, high: float) -> bool | None:
    """Whether an interval lies above 0; None if it holds 0 or is not known."""
    if low > 0:
        return True
    return False if high < 0 else None


def _to_heads(relations: Sequence[RelationScore]) -> bool | None:
    """Whether significantly more of the relations' best heads point from the dependent to its head than the other way."""
    if not relations:
        return None
    upward = sum(not score.from_head for score in relations)
    if stats.binomtest(upward, len(relations)).pvalue > LEVEL:
        return None
    return upward > len(relations) / 2


def _theirs(relation: str) -> str:
    return published.UNIVERSAL.get(relation, relation)


def _relation_row(model: Model, score: RelationScore) -> list[str]:
    theirs = published.RELATIONS.get(_theirs(score.relation))
    place = None if theirs is None else theirs[2]
    return [
        model.name,
        score.relation,
        f"{score.count:,}",
        f"{head_label(score.layer, score.head)}{', from the head' if score.from_head else ''}",
        _interval(score.accuracy, score.low, score.high),
        f"{number(score.offset, 0, signed=True)}: {_percent(score.baseline)}",
        _interval(score.gain, score.gain_low, score.gain_high, signed=True),
        MISSING if theirs is None else f"{theirs[0]}, {theirs[1]}",
        MISSING if place is None or not model.published else head_label(*place),
    ]


def _mention_rows(model: Model, kind: Mapping[str, Any]) -> list[list[str]]:
    place = _KINDS.get(kind["kind"])
    head = head_label(kind["layer"], kind["head"])
    finders = [
        (head, "head", kind),
        *((_BASELINES.get(entry["name"], entry["name"]), entry["name"], entry) for entry in kind["baselines"]),
    ]
    return [
        [
            model.name,
            kind["kind"],
            f"{kind['count']:,}",
            label,
            _interval(entry["accuracy"], entry["low"], entry["high"]),
            MISSING if place is None or name not in published.COREFERENCE else str(published.COREFERENCE[name][place]),
        ]
        for label, name, entry in finders
    ]


def _percent(share: float, *, signed: bool = False) -> str:
    return number(100 * share, 1, signed=signed)


def _interval(value: float, low: float, high: float, *, signed: bool = False) -> str:
    return f"{_percent(value, signed=signed)} [{_percent(low, signed=signed)}, {_percent(high, signed=signed)}]"
