"""The experiment of disabling heads and layers: how a sweep is declared, described and compared."""

from collections.abc import Mapping, Sequence

from bertsecrets.ablation.comparison import compare_effects
from bertsecrets.ablation.section import ablation_scalars, ablation_sections, main_rows
from bertsecrets.grid import Column, Shown
from bertsecrets.present.report.content import Section, joined
from bertsecrets.results.components import HEAD
from bertsecrets.results.experiment import Experiment
from bertsecrets.results.formatting import MISSING
from bertsecrets.results.verdicts import WORDS, joint_verdicts
from bertsecrets.results.views import Comparison, MeasureView


class Disabling(Experiment):
    """Heads and layers disabled in turn; numbers are in ``ablation.parquet``, those of single heads also in the head table.

    Args:
        columns: ``<metric>_<mode>`` and ``<metric>_<mode>_all_but_one``, from the judged grids.
    """

    name = "ablation"
    title = "Disabled heads"
    shown = Shown(reads_task=True, lowest=True, effects=True)

    def __init__(self, columns: tuple[Column, ...] = ()) -> None:
        self.columns = columns

    @classmethod
    def describe(cls, view: MeasureView) -> Section | None:
        """A section for each set, metric and mode."""
        return joined(ablation_sections(view.run.ablation_table(), view.run.checks()))

    @classmethod
    def compare(cls, comparison: Comparison) -> Section | None:
        """Effects of single heads and of whole layers, by condition."""
        return compare_effects(comparison)

    @classmethod
    def classes(cls, view: MeasureView) -> Mapping[str, Sequence[Sequence[str]]]:
        """The verdict on each single head over all metrics; a dash for heads that were not disabled alone."""
        rows = HEAD.of(main_rows(view.run.ablation_table()))
        if not rows:
            return {}
        layers, heads = (1 + max(row[name] for row in rows) for name in ("layer", "head"))
        verdicts = [[MISSING] * heads for _ in range(layers)]
        codes = joint_verdicts(rows)
        for row in rows:
            verdicts[row["layer"]][row["head"]] = WORDS[codes[row["variant"]]]
        return {"verdict": verdicts}

    @classmethod
    def scalars(cls, view: MeasureView) -> Mapping[str, float]:
        """The number of significant effects, and the largest loss."""
        return ablation_scalars(view.run.ablation_table())
