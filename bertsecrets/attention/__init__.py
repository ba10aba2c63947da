"""The only room that touches attention: watch it, override it, prove that both work."""

from bertsecrets.attention.means import mean_head_outputs
from bertsecrets.attention.override import MODES, HeadEdit, Mode, override
from bertsecrets.attention.proof import Proof, prove
from bertsecrets.attention.watch import Observer, watch

__all__ = ["MODES", "HeadEdit", "Mode", "Observer", "Proof", "mean_head_outputs", "override", "prove", "watch"]
