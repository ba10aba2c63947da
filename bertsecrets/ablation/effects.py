"""Effects of disabling each head or layer in the runs of a condition, and their verdicts over seeds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from bertsecrets.ablation.seeds import OverSeeds, judge_conditions
from bertsecrets.results.components import KINDS
from bertsecrets.results.disabled import rows_of
from bertsecrets.results.verdicts import DISPENSABLE, NEEDED, joint_limits
from bertsecrets.results.views import Replicates


@dataclass(frozen=True)
class Effects:
    """The effects at the last step of the first metric.

    Args:
        delta_RLH: Changes of the score, ``[replicates, layers, heads]``; a whole layer is one head.
        certain_RLH: Which of them are significant.
        needed_RLH: Which heads are needed.
        dispensable_RLH: For which heads a loss of the margin or more is ruled out.
        limits_RLH2: Limits of each run's changes that hold for all of its heads together.
        baseline_R: Scores of the models with nothing disabled.
        count: Number of examples; the largest over heads where they differ.
        fewest: The smallest number of examples over heads.
        metric, mode: The score, and the mode of disabling.
        false_discovery_rate: Of significant changes.
        screened: Whether any run evaluated only the pairs whose prediction may change.
        judge: Returns the verdicts over seeds. Called once, and only if they are needed, because it reads all
            predictions.
    """

    delta_RLH: NDArray[np.float64]
    certain_RLH: NDArray[np.bool_]
    needed_RLH: NDArray[np.bool_]
    dispensable_RLH: NDArray[np.bool_]
    limits_RLH2: NDArray[np.float64]
    baseline_R: NDArray[np.float64]
    count: int
    fewest: int
    metric: str
    mode: str
    false_discovery_rate: float
    screened: bool
    judge: Callable[[], OverSeeds | None]

    @cached_property
    def over(self) -> OverSeeds | None:
        """The verdicts over seeds; None for a single seed, and where seeds cannot be combined."""
        return self.judge()

    @property
    def judged(self) -> bool:
        """Whether each head has a verdict: of the only seed, or over seeds."""
        return len(self.delta_RLH) == 1 or self.over is not None

    @property
    def needed_LH(self) -> NDArray[np.bool_]:
        """Which heads are needed, over seeds or by the only seed; none where several seeds cannot be combined."""
        return self._with_verdict(NEEDED, self.needed_RLH)

    @property
    def dispensable_LH(self) -> NDArray[np.bool_]:
        """Which heads can be spared, likewise."""
        return self._with_verdict(DISPENSABLE, self.dispensable_RLH)

    def _with_verdict(self, code: str, single_RLH: NDArray[np.bool_]) -> NDArray[np.bool_]:
        with_code_LH = np.zeros(single_RLH.shape[1:], bool)
        if len(single_RLH) == 1:
            with_code_LH |= single_RLH[0]
        elif self.over is not None:
            for (layer, head), verdict in zip(self.over.components, self.over.verdict, strict=True):
                with_code_LH[layer, head or 0] = verdict == code
        return with_code_LH

    @property
    def limits_LH2(self) -> NDArray[np.float64]:
        """Limits of the mean changes that hold for all heads together, likewise; NaN where a head has none."""
        limits_LH2 = np.full(self.limits_RLH2.shape[1:], np.nan)
        if len(self.limits_RLH2) == 1:
            limits_LH2[:] = self.limits_RLH2[0]
        elif self.over is not None:
            limits_V2 = np.stack(self.over.effects.limits_simultaneous, -1)
            for (layer, head), limits_2 in zip(self.over.components, limits_V2, strict=True):
                limits_LH2[layer, head or 0] = limits_2
        return limits_LH2

    @property
    def what(self) -> str:
        """Metric and mode, as printed in tables."""
        return f"{self.metric} ({self.mode}{', screened' * self.screened})"


def effects(
    replicates: Replicates,
    kind: str,
    judged: Mapping[str, OverSeeds] | None = None,
    label: str = "",
    mode: str | None = None,
) -> Effects | None:
    """Effects of each head or layer (``kind``); None if no replicate disabled any.

    Args:
        replicates: The runs of a condition.
        kind: Name of a kind of components.
        judged: Verdicts over seeds by condition, if the caller already has them.
        label: The condition.
        mode: The mode of disabling; None for the first of each run.
    """
    judge = partial(_over_seeds, replicates, kind, mode) if judged is None else partial(judged.get, label)
    deltas, flags, limits, baselines, last = [], [], [], [], None
    counts, screened = set(), False
    for view in replicates.views:
        singles = rows_of(KINDS[kind], view.run.ablation_table(), mode)
        run_size = view.run.size()
        if not singles or run_size is None:
            continue
        last = singles[0]
        size = KINDS[kind].size(*run_size)
        delta_LH, flag_LH3 = np.full(size, np.nan), np.zeros((*size, 3), bool)
        limits_LH2 = np.full((*size, 2), np.nan)
        for row in singles:
            cell = KINDS[kind].cell(row)
            delta_LH[cell] = row["delta"]
            flag_LH3[cell] = row["significant"], row["verdict"] == NEEDED, row["verdict"] == DISPENSABLE
            limits_LH2[cell] = joint_limits(row)
            counts.add(row["count"])
            screened |= row["sweep"] == "screened"
        deltas.append(delta_LH)
        limits.append(limits_LH2)
        flags.append(flag_LH3)
        baselines.append(last["baseline"])
    if last is None:
        return None
    certain_RLH, needed_RLH, dispensable_RLH = np.moveaxis(np.stack(flags), -1, 0)
    return Effects(
        np.stack(deltas),
        certain_RLH,
        needed_RLH,
        dispensable_RLH,
        np.stack(limits),
        np.array(baselines),
        max(counts),
        min(counts),
        last["metric"],
        last["mode"],
        last["false_discovery_rate"],
        screened,
        judge,
    )


def _over_seeds(replicates: Replicates, kind: str, mode: str | None) -> OverSeeds | None:
    return judge_conditions({"": replicates}, kind, mode).by_label.get("")
