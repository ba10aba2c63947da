"""The only room that touches attention: watch it, override it, check that both work."""

from bertsecrets.attention.override import MODES, HeadEdit, Mode, mean_head_outputs, override
from bertsecrets.attention.self_check import SelfCheck, check_attention
from bertsecrets.attention.watch import Observer, capture, map_stream, watch

__all__ = [
    "MODES",
    "HeadEdit",
    "Mode",
    "Observer",
    "SelfCheck",
    "capture",
    "check_attention",
    "map_stream",
    "mean_head_outputs",
    "override",
    "watch",
]
