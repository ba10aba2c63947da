"""Effects of disabling compared between conditions, against runs made by hand."""

from pathlib import Path
from typing import Any

import numpy as np
from reporting.finished_runs import make_run

from bertsecrets.ablation.seeds import effects
from bertsecrets.present.disabling import PRESENTER
from bertsecrets.present.disabling_compared import compare_effects
from bertsecrets.results.ablation_table import AblationTable
from bertsecrets.results.run import Declaration, Run
from bertsecrets.results.views import Comparison, MeasureView, Replicates

DELTA = np.array([[0.01, -0.02], [0.0, -0.05]])
DECLARATION = Declaration("ablation", "Disabled heads", "bertsecrets.ablation.rows:Disabling")


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
    return MeasureView(run, DECLARATION)


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
    assert effect is not None
    np.testing.assert_array_equal(effect.delta_RLH, DELTA[None])
    assert effect.certain_RLH.tolist() == [[[False, True], [False, False]]]
    assert (effect.baseline_R.tolist(), effect.count, effect.what) == ([0.8], 408, "accuracy (uniform)")
    assert effects(Replicates([view]), "layer") is None
    early = [{**row, "sweep": "screened", "count": 100} if row["head"] == 0 else row for row in rows]
    AblationTable.from_rows(early).write(view.run.ablation_path)
    effect = effects(Replicates([view]), "head")
    assert effect is not None
    assert (effect.fewest, effect.count, effect.what) == (100, 408, "accuracy (uniform, screened)")


def test_seeds_without_predictions_cannot_be_judged_together(tmp_path: Path) -> None:
    always, once = [[False, True], [False, False]], [[False, True], [False, True]]
    views = [a_run(tmp_path / "1", certain=always), a_run(tmp_path / "2", certain=once)]
    section = PRESENTER.comparison(Comparison({"a": Replicates(views), "b": Replicates(views[:1])}))
    assert section is not None
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
    assert section is not None
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
    assert section is not None
    *_, feed_forward = section.flat()
    assert feed_forward.title == "Feed-forward sublayers left out"
    assert feed_forward.tables[0].rows[0][:5] == ["a", "1", "accuracy", "layer 1", "−30.0"]
    assert feed_forward.findings[0].startswith(
        "The largest mean loss with a feed-forward sublayer left out is that of a"
    )
