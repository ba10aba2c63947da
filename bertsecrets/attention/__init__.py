"""The only room that touches attention: watch it, override it, check that both work."""

from bertsecrets.attention.gradients import GradientObserver, attention_gradients
from bertsecrets.attention.head_outputs import OutputObserver, output_gradients
from bertsecrets.attention.override import MODES, HeadEdit, Mode, mean_head_outputs, override
from bertsecrets.attention.self_check import SelfCheck, check_attention
from bertsecrets.attention.values import ValueObserver, output_weights, watch_values
from bertsecrets.attention.watch import Observer, capture, map_stream, watch

__all__ = [
    "MODES",
    "GradientObserver",
    "HeadEdit",
    "Mode",
    "Observer",
    "OutputObserver",
    "SelfCheck",
    "ValueObserver",
    "attention_gradients",
    "capture",
    "check_attention",
    "map_stream",
    "mean_head_outputs",
    "output_gradients",
    "output_weights",
    "override",
    "watch",
    "watch_values",
]
