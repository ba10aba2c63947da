"""What the section on disabling says, against rows made by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reporting.finished_runs import effect_row, make_run

from bertsecrets.ablation.redundancy import groups_of
from bertsecrets.ablation.rows import OverExamples, Power, Screened, Selection, Spared, SparedAt, Sublayers, Swept
from bertsecrets.ablation.seeds import effects
from bertsecrets.present.disabling import (
    ONE_SIDED,
    PRESENTER,
    ablation_scalars,
    ablation_sections,
    points_in_words,
    screened_in_words,
    spared_in_words,
)
from bertsecrets.present.disabling_compared import compare_effects
from bertsecrets.present.report.content import Report
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.estimate import Estimate
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates


def row(variant: str, delta: float, significant: bool = False, **other: Any) -> dict[str, Any]:
    given = {
        "variant": variant,
        "stage": "checkpoint",
        "step": 10,
        "p_value": 0.001 if significant else 0.5,
        "p_bh": 0.004 if significant else 0.6,
        "p_needed": 0.004 if significant else 1.0,
        "flips": 0.03,
        "smallest_effect": 0.029,
        "level": 0.9,
        "false_discovery_rate": 0.1,
        "significant": significant,
        "verdict": "needed" if significant and delta < 0 else "dispensable" if delta > 0 else "inconclusive",
        "p_margin": 0.01 if delta > 0 else 0.4,
    }
    return effect_row(delta, **{**given, **other})


def written(rows: list[dict[str, Any]], beside: Sequence[object] = ()) -> tuple[str, list[str], list[str]]:
    """All sentences of the sections, the names of their figures, and the findings."""
    report = Report("", sections=ablation_sections(AblationTable.from_rows(rows), beside))
    words = [text for section in report.sections for text in (*section.findings, *section.paragraphs)]
    return "\n".join(words), [block.name for block in report.figures], report.lead


HEADS = [
    row("l00h00", -0.191, True, heads="0-0", layer=0, head=0),
    row("l00h01", 0.012, heads="0-1", layer=0, head=1),
    row("l01h00", 0.02, True, heads="1-0", layer=1, head=0),
    row("l01h01", -0.01, heads="1-1", layer=1, head=1),
]


NOISE = [{**each, "significant": False, "verdict": "inconclusive"} for each in HEADS]
SECOND = [{**HEADS[0], "metric": "f1"}, {**HEADS[1], "metric": "f1", "verdict": "needed", "delta": -0.1}]


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        (
            HEADS,
            [
                "1 of 4 heads disabled in turn (uniform) is needed (accuracy falls; in 90 % of sweeps none falsely), "
                "layer 0 · head 0: −19.1 points (−21.1 to −17.1); 2 can be spared (a loss of 1.0 point or more is "
                "ruled out); 1 has no verdict.",
                "Heads: 2 raise the score, 1 significantly",
                "With 408 examples, losses of about 2.9 points or more are detected with 80 % power, for the number of "
                "predictions that the median head changes.",
            ],
        ),
        (
            HEADS[:2],
            ["(−21.1 to −17.1); 1 can be spared (a loss of 1.0 point or more is ruled out).", "1 raises the score"],
        ),
        (
            HEADS[3:],
            [
                "Layer 1 · head 1, disabled (uniform), costs at most 3.0 points of accuracy; 1 has no verdict; the "
                "largest loss, layer 1 · head 1 at −1.0"
            ],
        ),
        (
            NOISE,
            [
                "Each of 4 heads disabled in turn (uniform) costs at most 21.1 points of accuracy; 4 have no verdict; the largest loss, layer 0 · head 0 at −19.1 points (−21.1 to −17.1), may be chance"
            ],
        ),
        # A loss is not shown as zero points, and a gain not as a loss.
        ([row("l00h00", -0.0003)], ["layer 0 · head 0 at −0.030 points (−2.030 to +1.970), may be chance"]),
        ([row("l00h00", 0.031)], ["none lowers accuracy on these examples"]),
        (
            [row("l00h00", -0.004, True, verdict="dispensable")],
            [
                "costs at most 2.4 points of accuracy; 1 can be spared",
                "−0.4 points (−2.4 to +1.6), is significant but within",
            ],
        ),
        (
            [{**HEADS[0], "low_simultaneous": -0.3, "high_simultaneous": 0.001}],
            ["may just reach 0, because the test of a loss is one-sided."],
        ),
        (
            [*HEADS, row("l01h02", -0.03, layer=1, head=2)],
            ["The first interval of a table is pointwise, for one head or layer"],
        ),
        (
            [*HEADS, *SECOND],
            [
                "1 of 4 heads disabled in turn (uniform) is needed by accuracy",
                "2 of 2 heads disabled in turn (uniform) are needed by F1",
            ],
        ),
    ],
)
def test_words_carry_the_numbers(rows: list[dict[str, Any]], sentences: list[str]) -> None:
    words, figures, lead = written(rows)
    assert lead[0] in words
    assert {f"ablation_head_uniform_accuracy{end}" for end in ("", "_sorted")} <= set(figures)
    for sentence in sentences:
        assert sentence in words


def test_what_is_not_found_is_not_said() -> None:
    words = written(HEADS)[0]
    assert ONE_SIDED not in words
    assert "The first interval of a table" not in words
    # Tables of earlier versions say nothing of the loss.
    assert "mean loss" not in words
    assert "90 % interval, by itself" in ablation_sections(AblationTable.from_rows(HEADS), ())[0].tables[0].header
    unchanged = row("l00h00", 0.0, low_simultaneous=-0.0208, high_simultaneous=0.0208)
    assert points_in_words(unchanged) == "0.0 points (−2.1 to +2.1)"


SPARED = Spared(
    "accuracy",
    "uniform",
    0.01,
    0.9,
    0.1,
    heads=4,
    each=2,
    at_least=1,
    of_each=1,
    excluded=0.21,
    falsely=0.2,
    unchanged=0,
)
CURVE = [SparedAt("accuracy", "uniform", margin, *counts) for margin, *counts in ((0.005, 0, 0), (0.01, 2, 1))]


def test_a_lower_bound_and_its_curve_follow_the_count_of_heads_that_can_be_spared() -> None:
    words, figures, lead = written(HEADS, [SPARED, *CURVE, replace(SPARED, metric="f1")])
    assert lead[1] == spared_in_words(SPARED)
    assert "ablation_head_uniform_accuracy_spared" in figures
    assert ONE_SIDED not in words


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"falsely": 1.29, "unchanged": 54, "excluded_unchanged": 0.01802},
            "63 of 72 heads can each be spared, of which at most about 1.3 are expected to lose 1.0 point or more; "
            "with 95 % confidence at least 41 of 72 lose less than 1.0 point. With 95 % confidence "
            "(one-sided), each of 72 heads costs at most 2.4 points, each of the 54 that change no prediction at most 1.9.",
        ),
        ({"each": 0, "at_least": 0, "of_each": 0, "excluded": None}, "For no head is a loss of 1.0 point ruled out."),
        (
            {"each": 4, "at_least": 3, "of_each": 2, "excluded": 0.03},
            "4 of 72 heads can each be spared, of which at most about 0.2 are expected to lose 1.0 point or more; "
            "with 95 % confidence at least 3 of 72 lose less than 1.0 point, including 2 of these 4. With 95 % "
            "confidence (one-sided), each of 72 heads costs at most 3.0 points.",
        ),
    ],
)
def test_heads_that_can_be_spared_are_counted_in_words(changes: dict[str, Any], sentence: str) -> None:
    counts = replace(
        SPARED, level=0.95, false_discovery_rate=0.05, heads=72, each=63, at_least=41, of_each=41, excluded=0.0231
    )
    assert spared_in_words(replace(counts, **changes)) == sentence


def test_only_the_last_step_is_in_words_and_the_others_are_drawn() -> None:
    earlier = [{**each, "step": 5, "stage": "training", "delta": 0.0} for each in HEADS]
    later = [{**each, "stage": "training"} for each in HEADS]
    words, figures, _ = written([*earlier, *later])
    assert "1 of 4 heads disabled" in words
    assert "ablation_head_uniform_accuracy_trajectory" in figures


def test_groups_get_their_verdicts() -> None:
    def group(name: str, heads: str, verdict: str, redundant: bool) -> dict[str, Any]:
        joint = {"interaction": -0.08, "interaction_low": -0.1, "interaction_high": -0.06, "p_interaction": 0.001}
        index = {"kind": "group", "heads": heads, "num_heads": 2, "layer": None, "head": None}
        return row(name, -0.1, verdict == "needed", **index, **joint, verdict=verdict, redundant=redundant)

    rows = [
        *HEADS,
        group("group-000", "0-0 0-1", "needed", False),
        group("group-001", "0-1 1-1", "needed", True),
        group("group-002", "0-1 1-0", "dispensable", False),
        group("group-003", "0-0 1-0", "inconclusive", False),
        row("random-00.00-000", -0.01, kind="random", heads="0-0 0-2", num_heads=2, layer=None, head=None),
        row("random-00.01-000", -0.02, kind="random", heads="0-0 1-2", num_heads=2, layer=None, head=None),
    ]
    groups = groups_of(rows)
    assert [group.verdict for group in groups] == ["needed", "redundant", "dispensable", "inconclusive"]
    assert [[control["delta"] for control in group.controls] for group in groups] == [
        [-0.01],
        [-0.02],
        [-0.02],
        [-0.02],
    ]
    words, figures, lead = written(rows)
    assert lead[0] == (
        "2 of 4 groups of similar heads are needed, 1 of them redundant; 1 can each be removed as a whole; 1 has no verdict."
    )
    assert ablation_sections(AblationTable.from_rows(rows), ())[0].summary == lead[0]
    assert "A group can be removed if a loss of 1.0 point or more is ruled out for all its heads together." in words
    unharmed = [{**each, "verdict": "dispensable", "redundant": False} for each in rows if each["kind"] == "group"]
    first = written([*HEADS, *unharmed])[2][0]
    assert (
        first
        == "Each of 4 groups of similar heads costs at most 12.0 points of accuracy; 4 can each be removed as a whole."
    )
    assert (
        "Needed groups with fewer than 19 random groups of their layers, and so not tested for redundancy: 1." in words
    )
    assert "ablation_groups_uniform_accuracy" in figures


def test_what_is_beside_the_table_becomes_findings() -> None:
    selection = Selection("accuracy", "uniform", "l00h01", 0.3, 0.015, Estimate(0.001, -0.02, 0.02), 0.4, 0.41, False)
    sublayers = Sublayers("accuracy", "uniform", 3, 0.0, -0.2, Estimate(0.2, 0.1, 0.3), 0.95)
    words, _, lead = written(HEADS, [selection, sublayers])
    assert "changes the score by +1.50 points there and by +0.10 points" in words
    assert "(95 % interval −2.00 to +2.00; on all examples p = 0.410, corrected)" in words
    assert lead[-2].endswith("does not survive.")
    assert lead[-1] == (
        "Over 3 layers, accuracy changes by 0.0 points on average without an attention sublayer and by −20.0 without a "
        "feed-forward sublayer; the difference is +20.0 (95 % interval +10.0 to +30.0): this model needs its "
        "feed-forward sublayers more."
    )
    alike = replace(sublayers, difference=Estimate(0.2, -0.1, 0.5))
    assert "so neither kind is significantly more important" in written(HEADS, [alike])[0]
    over_examples = OverExamples("uniform", Estimate(0.9, 0.85, 0.95), 0.9, 12, 60)
    assert (
        "90.0 % (90 % interval 85.0 to 95.0) of the variance of the change of the loss over 12 heads and 60 examples"
        in written(HEADS, [over_examples])[0]
    )


def test_scalars() -> None:
    scalars = ablation_scalars(AblationTable.from_rows(HEADS))
    assert scalars == {
        "ablation/worst": "layer 0 · head 0",
        "ablation/worst_delta": pytest.approx(-19.1),
        "ablation/n_variants": 4,
        "ablation/needed": 1,
        "ablation/can_be_spared": 2,
        "ablation/n_loss_rises": 0,
        "ablation/not_enough_examples_to_tell": 1,
        "ablation/better_without": 1,
        "ablation/smallest_effect": pytest.approx(2.9),
    }
    assert ablation_scalars(AblationTable.from_rows([])) == {}


def test_counts_for_tracking_are_over_all_metrics() -> None:
    """A head that the second metric needs is not one that can be spared, as in the title of the run's page."""
    second = [{**each, "metric": "f1"} for each in HEADS]
    second[1] |= {"verdict": "needed", "delta": -0.1}
    scalars = ablation_scalars(AblationTable.from_rows([*HEADS, *second]))
    assert [scalars[f"ablation/{word}"] for word in ("needed", "can_be_spared", "better_without", "n_variants")] == [
        2,
        1,
        1,
        4,
    ]
    assert scalars["ablation/worst_delta"] == pytest.approx(-19.1)


def test_heads_that_the_loss_needs_are_named_and_flagged_where_the_metric_spares_them() -> None:
    judged = {"loss_baseline": 0.2, "loss_low_simultaneous": 0.01, "loss_high_simultaneous": 0.03}
    rises = [0.02, 0.04, 0.001, 0.0]
    rows = [
        {**each, **judged, "loss_change": rise, "p_loss_rise": 0.3 if rise == 0 else 0.01}
        for each, rise in zip(HEADS, rises, strict=True)
    ]
    _, _, lead = written(rows)
    assert lead[1] == (
        "By accuracy 1 is needed, by the mean loss 3 are, most of all layer 0 · head 1 (spared), +20 % (+5 to +15). 2 of "
        "the 3 can be spared by accuracy. Accuracy takes precedence; the loss is more sensitive, because it also changes "
        "where no prediction does."
    )
    assert ablation_scalars(AblationTable.from_rows(rows))["ablation/n_loss_rises"] == 3
    _, _, lead = written([{**row, "metric": "pearson"} for row in rows])
    assert lead[1].endswith("the loss is more sensitive.")
    assert (
        "By accuracy 1 is needed, by the mean loss none." in written([{**each, "p_loss_rise": 0.3} for each in rows])[0]
    )


def test_undefined_scores_are_counted_and_do_not_hide_the_worst() -> None:
    names = ("score", "delta", "stderr", "low", "high", "smallest_effect")
    gone = row("l02h00", 0.0, layer=2, head=0) | dict.fromkeys(names, math.nan)
    for rows in ([gone, *HEADS], [*HEADS, gone]):
        words, _, _ = written(rows)
        assert "layer 0 · head 0: −19.1 points" in words
        assert "Undefined scores: 1." in words
        assert "about 2.9 points" in words
        scalars = ablation_scalars(AblationTable.from_rows(rows))
        assert scalars["ablation/worst_delta"] == pytest.approx(-19.1)
        assert scalars["ablation/smallest_effect"] == pytest.approx(2.9)
    words, _, lead = written([gone])
    assert lead == [words] == ["Accuracy is undefined without layer 2 · head 0."]


def test_each_set_has_a_section() -> None:
    other = [{**each, "evaluation": "mismatched", "delta": 0.0, "significant": False} for each in HEADS]
    words, figures, _ = written([*HEADS, *other])
    assert "Of 8 heads" not in words
    assert words.count("1 of 4 heads disabled") == 2
    assert {"ablation_head_uniform_accuracy", "ablation_head_uniform_accuracy_mismatched"} <= set(figures)
    assert ablation_scalars(AblationTable.from_rows([*HEADS, *other]))["ablation/n_variants"] == 4


def test_where_heads_have_no_verdict_the_page_says_what_it_would_take() -> None:
    rows = NOISE
    power = Power("uniform", "accuracy", 0.01, 4, 4, 408, 2719.3, 6528, 0.9, None, None, 1203.0, 4096.0)
    assert written(rows, [power])[2][0].endswith(
        "About 2,800 examples, including these 408, would settle 80 % of the 4 heads without a verdict "
        "(1,300 to 4,100 in eight of ten simulations)."
    )
    for changed, ends in (
        ({"examples": 408.3}, "About 410 examples, including these 408"),
        ({"examples_high": None}, "(1,300 to more than was simulated in eight of ten simulations)"),
        ({"examples_low": None}, "(simulated from these)"),
        (
            {"examples": None, "share": 0.412},
            "Even 6,528 examples would settle only 41 % of the 4 heads without a verdict",
        ),
    ):
        assert ends in written(rows, [replace(power, **changed)])[2][0]
    settled = [{**each, "verdict": "dispensable"} for each in rows]
    by_f1 = [{**each, "metric": "f1"} for each in rows]
    for silent in (written(rows), written(settled, [power]), written(by_f1, [power])):
        assert "would settle" not in silent[2][0]


def test_a_sample_is_named() -> None:
    swept = Swept("uniform", "the mean of its values", 408, 1043, "10min")
    words, _, _ = written(HEADS, [swept])
    assert words.splitlines()[1] == "The output of a disabled head is the mean of its values."
    assert (
        "1 of 4 heads disabled in turn (uniform) on 408 random examples of 1,043 (ablation.budget=10min) is needed"
        in words
    )
    words, _, _ = written(HEADS, [replace(swept, budget=None)])
    assert "(uniform) on 408 random examples of 1,043 is needed" in words


def test_a_screened_sweep_says_what_it_may_have_missed() -> None:
    screened = Screened("uniform", 1000, 250, inactive=800, audited=16, missed=0, whole=0, bound=148, each=29)
    words = screened_in_words(screened)
    assert "bf16" not in words
    assert "25.0 % of the 1,000 pairs of a variant and an example were evaluated exactly" in words
    assert "No variant had to be evaluated on all examples. With" in words
    assert "148 predictions differ from an exact sweep, and at most 29 for any one variant; int" in words
    bf16 = {"precision": "bf16-mixed", "bf16": 190, "again": 12, "audited_bf16": 4, "missed_bf16": 1}
    for changes, sentence in (
        (bf16, "25.0 % of the 1,000 pairs of a variant and an example were evaluated in fp32 and 19.0 % in bf16 alone"),
        ({**bf16, "whole": 1}, "1 of 4 audited pairs in bf16 had another prediction in fp32. 1 variant had to"),
        ({"onednn": True}, "in fp32 were computed by oneDNN."),
        ({"reason": "its passes are bf16 already"}, "apart from the trainer's, because its passes are bf16 already."),
    ):
        assert sentence in screened_in_words(replace(screened, **changes))


DELTA = np.array([[0.01, -0.02], [0.0, -0.05]])
DISABLING = Declaration("ablation", "Disabled heads", "bertsecrets.ablation.rows:Disabling")


def a_run(folder: Path, shift: float = 0.0, certain: Any = None, layers: tuple[float, ...] = ()) -> MeasureView:
    run = Run.open(make_run(folder, delta_LH=DELTA + shift, significant_LH=certain))
    template = run.ablation_table().rows()[0]
    rows = [
        {**template, "kind": "layer", "variant": f"l{layer:02d}", "layer": layer, "head": None, "num_heads": 2,
         "delta": delta, "significant": delta < -0.2,
         "verdict": "needed" if delta < -0.2 else "inconclusive"}
        for layer, delta in enumerate(layers)
    ]  # fmt: skip
    if rows:
        run.ablation_table().append(AblationTable.from_rows(rows)).write(run.ablation_path)
    return MeasureView(run, DISABLING)


def test_effects_are_of_the_last_step_and_the_first_metric_and_set(tmp_path: Path) -> None:
    view = a_run(tmp_path / "run", certain=[[False, True], [False, False]])
    rows = view.run.ablation_table().rows()
    noise = [
        {**row, **other, "delta": 9.0}
        for row in rows
        for other in ({"step": 3}, {"metric": "f1"}, {"evaluation": "mismatched"}, {"mode": "zero"})
    ]
    AblationTable.from_rows([*rows, *noise]).write(view.run.ablation_path)
    effect = effects(Replicates([view]), "head")
    np.testing.assert_array_equal(effect.delta_RLH, DELTA[None])
    assert effect.certain_RLH.tolist() == [[[False, True], [False, False]]]
    assert (effect.baseline_R.tolist(), effect.count, effect.what) == ([0.8], 408, "accuracy (uniform)")
    assert effects(Replicates([view]), "layer") is None
    early = [{**row, "sweep": "screened", "count": 100} if row["head"] == 0 else row for row in rows]
    AblationTable.from_rows(early).write(view.run.ablation_path)
    effect = effects(Replicates([view]), "head")
    assert (effect.fewest, effect.count, effect.what) == (100, 408, "accuracy (uniform, screened)")


def test_seeds_without_predictions_cannot_be_judged_together(tmp_path: Path) -> None:
    always, once = [[False, True], [False, False]], [[False, True], [False, True]]
    views = [a_run(tmp_path / "1", certain=always), a_run(tmp_path / "2", certain=once)]
    section = PRESENTER.comparison(Comparison({"a": Replicates(views), "b": Replicates(views[:1])}))
    # A verdict on fine-tuning takes the predictions behind the table, not a count of the seeds' verdicts.
    assert section.findings == [
        "In 1 condition of one seed each, 1 head is needed; whether other seeds need them cannot be said."
    ]
    assert section.paragraphs[-1] == (
        "The heads of a cannot be judged over seeds: fewer than two of its runs disabled the same heads and kept their "
        "predictions (ablation/*.safetensors)."
    )
    assert len(section.rows) == 8
    assert [block.name for block in section.figures] == ["ablation"]
    assert section.parts == ()


def test_layers_follow_heads(tmp_path: Path) -> None:
    first = Replicates([a_run(tmp_path / "1", layers=(-0.1, -0.3)), a_run(tmp_path / "2", layers=(-0.2, -0.5))])
    second = Replicates([a_run(tmp_path / "3", layers=(-0.05, 0.1))])
    section = compare_effects(Comparison({"a": first, "b": second}))
    heads, layers = section.flat()
    assert heads.title.startswith("Heads: disabling")
    assert layers.title.startswith("Layers: disabling")
    assert layers.tables[0].rows == [
        ["a", "2", "accuracy (uniform)", "layer 1", "−40.0", "–"],
        ["b", "1", "accuracy (uniform)", "layer 0", "−5.0", "none"],
    ]
    assert layers.findings == [
        "The largest mean loss with a whole layer disabled is that of a, −40.0 points; conditions are not tested "
        "against each other."
    ]
    assert [block.name for block in layers.figures] == ["ablation_layers"]


def test_parts_of_layers_follow_layers(tmp_path: Path) -> None:
    view = a_run(tmp_path / "1", layers=(-0.1, -0.3))
    rows = view.run.ablation_table().rows()
    parts = [{**row, "kind": "ffn", "variant": f"{row['variant']}-ffn"} for row in rows if row["kind"] == "layer"]
    view.run.ablation_table().append(AblationTable.from_rows(parts)).write(view.run.ablation_path)
    section = compare_effects(Comparison({"a": Replicates([view])}))
    *_, feed_forward = section.flat()
    assert feed_forward.title == "Feed-forward sublayers left out"
    assert feed_forward.tables[0].rows[0][:5] == ["a", "1", "accuracy", "layer 1", "−30.0"]
    assert feed_forward.findings[0].startswith(
        "The largest mean loss with a feed-forward sublayer left out is that of a"
    )
