"""Gradients and updates of layers on pages."""

import numpy as np

from bertsecrets.present.figures.curves import gradient_flow
from bertsecrets.present.presenter import Presenter
from bertsecrets.present.report.content import Section, block
from bertsecrets.results.formatting import number
from bertsecrets.results.views import MeasureView


def section(view: MeasureView) -> Section | None:
    """Gradient norms and update ratios of layers during training; None if nothing was recorded."""
    layers = view.whole_layers()
    norms, ratios = layers.history("gradient_norm"), layers.history("update_ratio")
    if not norms:
        return None
    norm_SL, ratio_SL = (np.stack([value_L1[:, 0] for _, value_L1 in steps]) for steps in (norms, ratios))
    mean_L = norm_SL.mean(axis=0)
    most, least = int(mean_L.argmax()), int(mean_L.argmin())
    figure = block(
        view.name,
        "Gradients and updates by layer",
        gradient_flow,
        steps=[step for step, _ in norms],
        norm_SL=norm_SL,
        ratio_SL=ratio_SL,
        # Unknown for a user's own module.
        batch_size=view.run.config()["task"].get("training", {}).get("batch_size"),
    )
    return Section(
        view.title,
        [
            f"Over {len(norms)} steps, gradients were largest in layer {most} (mean norm {number(mean_L[most])}) and "
            f"smallest in layer {least} ({number(mean_L[least])})."
        ],
        [
            "Norms are computed before clipping. The update ratio is the size of one optimiser step relative to the "
            "weights."
        ],
        figures=[figure],
    )


PRESENTER = Presenter(section)
