"""Section 3 by interventions and hypothesis tests: is attention to [SEP] a no-op, and which heads have a role?"""

import numpy as np

from bertsecrets.data.special_tokens import SPECIAL_TOKENS
from bertsecrets.importance.sinks.interventions import CUT, REDIRECT
from bertsecrets.importance.sinks.kinds import NOP, Limits, TokenSinks, is_sink, sinks_of
from bertsecrets.importance.sinks.norms import ATTENTION
from bertsecrets.measures.roles import DELIMITER, LOCAL, ROLES, role_tests
from bertsecrets.papers.chapter import Answers, Chapter, PaperRuns, claims_tables
from bertsecrets.papers.clark2019.models import Model, all_below, claim, model_tables, models, not_measured
from bertsecrets.results.formatting import MISSING, head_label, number
from bertsecrets.results.report.content import Section
from bertsecrets.results.sections import highest


def sinks(runs: PaperRuns) -> Chapter:
    """Section 3.2: whether the answers stay the same when attention to [SEP] goes elsewhere, or is cut."""
    title = "Section 3.2: is attention to [SEP] a no-op?"
    measured = [model for model in models(runs, "sinks") if "limits" in model.view.extras]
    if not measured:
        return not_measured(title, "Run analyze.py checkpoint=<run folder> analysis=sinks.")
    cut, redirected = Answers(), Answers()
    rows = []
    for model in measured:
        limits = Limits(**model.view.extras["limits"])
        for name, token in sinks_of(model.view, limits).items():
            rows.append(_sink_row(model, name, token, limits))
            if name == "sep":
                chosen_LH = is_sink(model.view.value(name + ATTENTION), limits)
                for answers, column in ((cut, CUT), (redirected, REDIRECT)):
                    answers[model.name] = all_below(model, name + column, limits.change, chosen_LH)
    limits = Limits(**measured[0].view.extras["limits"])
    where = (
        f"significantly less than {limits.change:g} in every head that gives [SEP] {100 * limits.attention:g} % of its "
        "attention"
    )
    claims = [
        *claim(
            "Attention to [SEP] is a no-op: it adds little to what the model computes.",
            f"Cutting it changes the answers by {where}",
            cut,
        ),
        *claim(
            "Attention to [SEP] is a no-op: changing it does not change the answers.",
            f"Redirecting it to the other tokens changes the answers by {where}",
            redirected,
        ),
    ]
    header = [
        "token",
        "model",
        "heads",
        "nop by norms",
        "answers move: cut",
        "redirected",
        "loss rises",
        "largest change",
    ]
    caption = "Sink heads of each token: how many change the answers when cut or redirected, and raise the loss when redirected"
    return Chapter(
        Section(
            title,
            paragraphs=[
                "The paper infers the no-op from small gradients. Here the attention of each sink head to its token is cut, or "
                "redirected to the other tokens in proportion, one head at a time. The change of the answers is the mean total "
                "variation distance of the predicted probabilities, or the mean change of the score over its range. The "
                "paper's claim is about [SEP]; in some models the sink is [CLS]. Without sink heads of [SEP] the claim cannot "
                "be tested."
            ],
            tables=[*claims_tables(claims), *model_tables(header, rows, caption)],
        ),
        claims,
    )


def _sink_row(model: Model, name: str, token: TokenSinks, limits: Limits) -> list[str]:
    heads = token.heads
    largest = max(heads, key=lambda head: max(head.redirect, head.cut), default=None)
    return [
        SPECIAL_TOKENS[name],
        model.name,
        str(len(heads)),
        str(sum(head.by_norms == NOP for head in heads)),
        str(sum(head.cut >= limits.change for head in heads)),
        str(sum(head.redirect >= limits.change for head in heads)),
        str(sum(head.loss_changes and head.redirect_loss > 0 for head in heads)),
        MISSING
        if largest is None
        else f"{head_label(largest.layer, largest.head)}: {number(max(largest.redirect, largest.cut), 3)}",
    ]


def roles(runs: PaperRuns) -> Chapter:
    """The kinds of heads of section 3 by the sieve bias test of Pande et al. 2021."""
    title = "Section 3 by hypothesis tests: roles of heads"
    measured = [model for model in models(runs, "roles") if model.view.has(LOCAL)]
    if not measured:
        return not_measured(title, "Add measure=[roles], or analyze.py analysis=roles.")
    delimiter, local = Answers(), Answers()
    rows = []
    for model in measured:
        tests = role_tests(model.view)
        for role in ROLES:
            if role not in tests or not np.isfinite(model.view.value(role)).any():
                continue
            value_LH = model.view.value(role)
            place = highest(value_LH)
            by_layer = " ".join(str(int(heads)) for heads in tests[role].sum(1))
            best = f"{head_label(*place)}: {number(float(value_LH[place]), 2)}"
            threshold = f"{model.view.extras['thresholds'][role]:g}"
            rows.append([role, model.name, threshold, str(int(tests[role].sum())), by_layer, best])
        if model.pretrained:
            # A test that finds no head does not show that there is none.
            delimiter[model.name] = True if tests[DELIMITER].any() else None
            local[model.name] = True if tests[LOCAL].any() else None
    claims = [
        *claim(
            "Some heads attend to delimiter tokens.",
            "A head's score for special tokens is significantly above the threshold",
            delimiter,
        ),
        *claim(
            "Some heads attend to specific positional offsets.",
            "A head's score for tokens at most two places away is significantly above the threshold",
            local,
        ),
    ]
    header = ["role", "model", "threshold", "heads", "heads by layer", "highest score"]
    return Chapter(
        Section(
            title,
            paragraphs=[
                "The paper names the kinds of heads by eye. Pande et al. 2021 score a head by its attention to the tokens that a "
                "role names, over its attention to an average token (1 under uniform attention), and test the score over "
                "examples; here with a false discovery rate of 5 % over heads and roles. A head may have several roles."
            ],
            tables=[*claims_tables(claims), *model_tables(header, rows, "Heads with each role")],
        ),
        claims,
    )
