"""Sections that combine two experiments of one run; no other part of a report names experiments."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertsecrets.measures.clusters.geometry import same_label_is_close
from bertsecrets.measures.clusters.rows import Distance, Place, Space
from bertsecrets.present.clusters import compared_p
from bertsecrets.present.figures.maps import MapPanel, gallery
from bertsecrets.present.figures.scatters import ScatterPanel, head_scatter, head_space
from bertsecrets.present.figures.style import score_change
from bertsecrets.present.kit import block
from bertsecrets.present.presenter import presenter_of
from bertsecrets.present.report.content import Section, Table
from bertsecrets.pruning.experiment import KEPT
from bertsecrets.reporting.answer import changed_and_needed
from bertsecrets.results.captures import moment_name, read_examples, read_maps, read_steps
from bertsecrets.results.formatting import MISSING, head_label, number, p_value
from bertsecrets.results.verdicts import NEEDED
from bertsecrets.results.views import LEVEL, MeasureView
from bertsecrets.statistics.corrections import corrected
from bertsecrets.statistics.overlap import overlap_by_layer

Join = Callable[[Mapping[str, MeasureView], Mapping[str, Section], int], Section | None]

_GALLERY_TOKENS = 40
_PERMUTATIONS = 2000


def drift_and_ablation(views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int) -> Section | None:
    """Whether the heads that changed are the heads that matter; None unless both numbers differ between heads."""
    if "drift" not in sections or "ablation" not in sections:
        return None
    related = changed_and_needed(views)
    if related is None:
        return None
    certain = np.array([row["verdict"] == NEEDED for row in related.rows])
    first = related.rows[0]
    figure = block(
        "drift_against_ablation",
        "Are the heads that changed the heads that matter?",
        head_scatter,
        "Drift against the effect of disabling, head by head.",
        panels=[ScatterPanel(f"ρ = {number(related.correlation.rho, 2)}", related.drift_N, related.effect_N, certain)],
        x_label="drift (1 − cosine)",
        y_label="rise of the mean loss" if related.by_loss else score_change(first["metric"]),
        note=f"one dot per head; filled: needed; disabled by {first['mode']}; n = {first['count']} examples",
    )
    return Section("Changed and needed", [related.in_words], figures=[figure])


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


def distances_and_classes(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int
) -> Section | None:
    """Whether heads that attend alike are of one class; None without distances, or without classes of heads."""
    space = views["clusters"].fact(Space) if "clusters" in sections.keys() & views.keys() else None
    if space is None:
        return None
    places = [row for row in views["clusters"].found(Place) if not row.before]
    # Of a head with several classes, the first is drawn.
    classes = {
        heading: [text.split(",")[0] for row in text_LH for text in row] for heading, text_LH in _classes(views).items()
    }
    classes = {heading: class_N for heading, class_N in classes.items() if len(class_N) == len(places)}
    if not classes:
        return None
    figure = block(
        "clusters_classes",
        "What heads that attend alike do",
        head_space,
        "The heads of the section on groups of heads, coloured by their classes in other experiments.",
        points_N2=[(row.x, row.y) for row in places],
        classes=classes,
        note=f"distances between heads by multidimensional scaling, stress {number(space.stress, 2)}; in brackets: "
        "heads",
    )
    number_of = {(row.layer, row.head): number for number, row in enumerate(places)}
    distance_NN = np.zeros((len(places), len(places)))
    for row in views["clusters"].found(Distance):
        if not row.before:
            pair = number_of[row.layer, row.head], number_of[row.other_layer, row.other_head]
            distance_NN[pair] = distance_NN[pair[::-1]] = row.nats
    tests = [
        (heading, closeness)
        for heading, class_N in classes.items()
        if (closeness := _closeness(distance_NN, class_N)) is not None
    ]
    return Section(
        "Groups of heads and what they do",
        [
            f"Heads of the same {heading} are {'' if p <= LEVEL else 'not significantly '}closer to each other than to "
            f"heads of another: {number(within)} against {number(between)} nats (permutation test, p {compared_p(p)})."
            for heading, (within, between, p) in tests
        ],
        figures=[figure],
    )


def _classes(views: Mapping[str, MeasureView]) -> dict[str, Sequence[Sequence[str]]]:
    """The classes of heads of all declared experiments, ``[layers][heads]`` by heading."""
    return {
        heading: text_LH
        for name, view in views.items()
        for declaration in view.run.declarations()
        if declaration.name == name
        for heading, text_LH in presenter_of(declaration).classes(view).items()
    }


def roles_of_kept_heads(
    views: Mapping[str, MeasureView], sections: Mapping[str, Section], heads: int
) -> Section | None:
    """How many heads of each class a smaller model keeps; None without a smaller model, or without classes."""
    smaller = next((view for view in views.values() if view.has(KEPT)), None)
    if smaller is None:
        return None
    kept_LH = smaller.value(KEPT) == 1
    rows = []
    for heading, text_LH in _classes({name: view for name, view in views.items() if not view.has(KEPT)}).items():
        names_LH = [[text.split(", ") for text in row] for row in text_LH]
        if np.shape(text_LH) != kept_LH.shape:
            continue
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
            f"and corrected (false discovery rate {LEVEL:.0%}). A head may be in several classes."
        ],
        [table],
    )


def _closeness(distance_NN: NDArray[np.float64], class_N: Sequence[str]) -> tuple[float, float, float] | None:
    """Mean distance within classes and between them, and a permutation test; None with fewer than two classes of
    two.
    """
    labelled = [head for head, label in enumerate(class_N) if label != MISSING]
    label_N = np.unique([class_N[head] for head in labelled], return_inverse=True)[1] if labelled else np.zeros(0, int)
    if (np.bincount(label_N, minlength=1) > 1).sum() < 2:
        return None
    return same_label_is_close(distance_NN[np.ix_(labelled, labelled)], label_N, _PERMUTATIONS, seed=0)


JOINS: tuple[Join, ...] = (
    roles_of_kept_heads,
    drift_and_ablation,
    maps_of_changed_heads,
    distances_and_classes,
)
"""The joins of a run's report, in the order of their sections."""

READ_TASK = frozenset({drift_and_ablation})
"""The joins about the effect of fine-tuning on the task."""
