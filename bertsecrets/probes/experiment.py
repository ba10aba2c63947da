"""The experiment of probes: its declaration."""

from bertsecrets.grid import Column
from bertsecrets.results.experiment import Experiment

_UNIT = "weight per standard deviation of attention"


class Probes(Experiment):
    """Probes on the attention of a frozen encoder; the head table has the weights of the attention-only probe."""

    name = "probes"
    title = "Probes"
    columns = (
        Column("weight", "weight, word to its head", _UNIT),
        Column("weight_from_head", "weight, head to its word", _UNIT),
    )
    presenter = "bertsecrets.present.probes:PRESENTER"
