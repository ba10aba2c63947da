"""The experiment of disabling heads and layers: how a sweep is declared."""

from bertsecrets.ablation.rows import ABLATION
from bertsecrets.grid import Column, Shown
from bertsecrets.results.experiment import Experiment


class Disabling(Experiment):
    """Heads and layers, disabled one at a time; results are in ``ablation.parquet``, those of single heads also in the
    head table.

    Args:
        columns: ``<metric>_<mode>`` and ``<metric>_<mode>_all_but_one``, from the grids of tested effects.
    """

    name = ABLATION
    title = "Disabled heads"
    shown = Shown(reads_task=True, lowest=True, effects=True)
    presenter = "bertsecrets.present.disabling:PRESENTER"

    def __init__(self, columns: tuple[Column, ...] = ()) -> None:
        self.columns = columns
