"""Sections that combine two experiments of one run; no other part of a report names experiments."""

from collections.abc import Callable, Mapping

import numpy as np

from bertsecrets.present.figures.maps import MapPanel, gallery
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter
from bertsecrets.present.figures.style import score_change
from bertsecrets.present.grid import correlation_in_words
from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import Section, Table, block
from bertsecrets.pruning.rows import KEPT
from bertsecrets.results.captures import moment_name, read_examples, read_maps, read_steps
from bertsecrets.results.components import HEAD
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.formatting import MISSING, head_label, number, p_value, percentage
from bertsecrets.results.verdicts import NEEDED
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.overlap import overlap_by_layer
from bertsecrets.statistics.ranks import rank_correlation

Join = Callable[[Mapping[str, MeasureView], Mapping[str, Section], int], Section | None]

_GALLERY_TOKENS = 40


def drift_and_ablation(views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int) -> Section | None:
    """Whether the heads that changed are the heads that matter; None unless both numbers differ between heads."""
    if not {"drift", "ablation"} <= sections.keys() or not views["drift"].has("cosine"):
        return None
    drift_LH = 1 - views["drift"].value("cosine")
    rows = rows_of(HEAD, views["ablation"].run.ablation_table())
    if len(rows) != drift_LH.size:
        return None
    # Changes of a score are multiples of one example, but for rounding.
    ties = np.unique(np.round([row["delta"] for row in rows], 9), return_counts=True)[1].max()
    by_loss = 2 * ties > len(rows) and all(row["loss_change"] is not None for row in rows)
    effect_LH = np.full(drift_LH.shape, np.nan)
    for row in rows:
        effect_LH[row["layer"], row["head"]] = row["loss_change"] if by_loss else 100 * row["delta"]
    defined_LH = np.isfinite(drift_LH) & np.isfinite(effect_LH)
    rows = [row for row in rows if defined_LH[row["layer"], row["head"]]]
    drift_N, effect_N = (np.array([grid[row["layer"], row["head"]] for row in rows]) for grid in (drift_LH, effect_LH))
    if not rows or not np.ptp(drift_N) or not np.ptp(effect_N):
        return None
    correlation = rank_correlation(drift_LH, effect_LH)
    if not correlation.judged:
        relation = "Too few heads to link how much a head changed with how much it is needed"
    elif not correlation.significant:
        relation = "No clear link, beyond depth, between how much a head changed and how much it is needed"
    else:
        more = "more" if (correlation.claim.rho > 0) == by_loss else "less"
        relation = f"Heads that changed more are needed {more}"
    effect, sign = ("rise of the loss", "positive") if by_loss else ("change of score", "negative")
    why = " (used because the score changes equally for more than half of the heads)" if by_loss else ""
    figure = block(
        "drift_against_ablation",
        "Are the heads that changed the heads that matter?",
        head_scatter,
        "Drift against the effect of disabling, head by head.",
        panels=[
            ScatterPanel(
                f"ρ = {number(correlation.rho, 2)}", drift_N, effect_N, [row["verdict"] == NEEDED for row in rows]
            )
        ],
        x_label="drift (1 − cosine)",
        y_label="rise of the mean loss" if by_loss else score_change(rows[0]["metric"]),
        note=f"one dot per head; filled: needed; disabled by {rows[0]['mode']}; n = {rows[0]['count']} examples",
    )
    finding = (
        f"{relation}: over {len(rows)} heads, the rank correlation of drift with the {effect} without the head{why} is "
        f"{correlation_in_words(correlation)}; {sign} if heads that changed more are needed more."
    )
    return Section("Changed and needed", [finding], figures=[figure])


def maps_of_changed_heads(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int
) -> Section | None:
    """Maps of the most changed heads before and after fine-tuning; None unless both drift and maps are known."""
    highlights = sections["drift"].highlights if "drift" in sections else None
    if highlights is None or "capture" not in sections:
        return None
    folder = views["capture"].run.captures
    files = read_steps(folder)
    # The maps of the weights that the page is about; those of the last step are kept too.
    step = views["drift"].step
    first, last = min(files), step if step in files else max(files)
    examples = read_examples(folder)
    # The longest example with tokens still readable in print.
    fitting = [example for example in examples if len(example.tokens) <= _GALLERY_TOKENS]
    example = (
        max(fitting, key=lambda candidate: len(candidate.tokens))
        if fitting
        else min(examples, key=lambda candidate: len(candidate.tokens))
    )
    before, after = (read_maps(files[step])[example.index] for step in (first, last))
    panels = []
    for line in highlights.heads[:heads]:
        row, head = head_label(line.layer, line.head), (line.layer, line.head)
        panels.append(MapPanel(row, moment_name(first), before[head], example.tokens))
        if last != first:
            panels.append(MapPanel(row, moment_name(last), after[head], example.tokens))
            panels.append(MapPanel(row, "difference", after[head] - before[head], example.tokens, signed=True))
    caption = f"Example {example.index} ({example.label}): {' / '.join(example.texts)}"
    return Section(
        "Maps before and after",
        paragraphs=["Rows are the tokens that attend, columns the tokens attended to."],
        figures=[block("maps", "The most changed heads, before and after", gallery, caption, panels=panels)],
    )


def roles_of_kept_heads(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int
) -> Section | None:
    """How many heads of each class a smaller model keeps; None without a smaller model, or without classes."""
    smaller = next((view for view in views.values() if view.has(KEPT)), None)
    if smaller is None:
        return None
    kept_LH = smaller.value(KEPT) == 1
    rows = []
    others = [view for view in views.values() if not view.has(KEPT)]
    classes = {
        heading: text_LH
        for view in others
        for declaration in view.run.declarations()
        if declaration.name == view.name
        for heading, text_LH in presenter_of(declaration).classes(view).items()
    }
    for heading, text_LH in classes.items():
        if np.shape(text_LH) != kept_LH.shape:
            continue
        names_LH = [[text.split(", ") for text in row] for row in text_LH]
        for name in sorted({name for row in names_LH for names in row for name in names}):
            member_LH = np.array([[name in names for names in row] for row in names_LH])
            label = f"no {heading}" if name == MISSING else name
            rows.append((heading, label, int(member_LH.sum()), *overlap_by_layer(member_LH, kept_LH)))
    if not rows:
        return None
    p_N = corrected([p for *_, p in rows])
    share = f"The smaller model keeps {kept_LH.sum()} of {kept_LH.size} heads"
    differing = [
        f"{both} of {count} “{label}” ({number(expected, 1)} expected)"
        for (_, label, count, both, expected, _), p in zip(rows, p_N, strict=True)
        if p <= LEVEL
    ]
    finding = (
        f"{share}: {'; '.join(differing)}."
        if differing
        else f"{share}; beyond layers, no class of heads is significantly over- or under-represented."
    )
    table = Table(
        ["kind", "class", "heads", "kept", "expected", "p"],
        [
            [heading, label, str(count), str(both), number(expected, 1), p_value(p)]
            for (heading, label, count, both, expected, _), p in zip(rows, p_N, strict=True)
        ],
        "Heads by class, and how many of them are kept",
    )
    return Section(
        "Which heads were kept",
        [finding],
        [
            "Expected: if the same number of heads per layer were kept at random. P-values are exact over all layers "
            f"and corrected (false discovery rate {percentage(LEVEL)}). A head may be in several classes."
        ],
        [table],
    )


JOINS: tuple[Join, ...] = (
    roles_of_kept_heads,
    drift_and_ablation,
    maps_of_changed_heads,
)
"""The joins of a run's report, in the order of their sections."""

READ_TASK = frozenset({drift_and_ablation})
"""The joins about the effect of fine-tuning on the task."""
