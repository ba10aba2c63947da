"""bertsecrets: which attention heads does a fine-tuned encoder really use?

The public API, for notebooks: any Hugging Face encoder and plain lists of sentences or pairs. Names are imported when
they are first used.

* :func:`load`: any model with its tokenizer, for the functions below.
* :func:`measure`, :func:`disable`: measure every head on a list of texts; disable each and test the effect.
* :func:`plan`: how many examples and seeds would settle more heads.
* :func:`fine_tune`, :func:`demo`: fine-tune a classifier in a notebook; generated texts for trying things out.
* :func:`head_view`: browse every head's attention to a sentence.
* :func:`watch`, :func:`override`, :class:`HeadEdit`: read attention maps and replace heads in your own code.
* :func:`remove_heads`, :func:`save_pruned`, :func:`load_pruned`: physically smaller models.
* :class:`MeasureHeads`, :class:`DisableHeads`, :class:`CaptureMaps`, :class:`GradientFlow`: callbacks for any
  LightningModule with a Hugging Face encoder; :class:`AnalyseHeads`: any analysis as a callback;
  :class:`HeadsCallback`: all of them in the Hugging Face Trainer.
* :class:`Run`: the folder of a finished run.
* :class:`Measure`, :class:`Column`, :class:`HeadGrid`: for your own measure.
* :class:`Analysis`, :class:`Experiment`, :class:`Findings`: for your own analysis; :class:`Section` and
  :class:`Table`: its part of a page.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsecrets.analysis import Analysis, Context, Findings
    from bertsecrets.api import demo, disable, fine_tune, measure, plan
    from bertsecrets.api_results import DemoTexts, DisabledHeads, HeadGrid
    from bertsecrets.attention.override import HeadEdit, override
    from bertsecrets.attention.watch import watch
    from bertsecrets.grid import Column, Shown
    from bertsecrets.huggingface import HeadsCallback
    from bertsecrets.lightning import AnalyseHeads, CaptureMaps, DisableHeads, GradientFlow, MeasureHeads
    from bertsecrets.measures.base import Measure
    from bertsecrets.models.checkpoint import load
    from bertsecrets.pages.head_view import HeadView, head_view
    from bertsecrets.pages.notebook_run import Run
    from bertsecrets.pages.power_page import PowerPlan
    from bertsecrets.present.presenter import Presenter
    from bertsecrets.present.report.content import Section, Table
    from bertsecrets.pruning.removal import load_pruned, remove_heads, save_pruned
    from bertsecrets.reporting.numbers import numbers
    from bertsecrets.results.estimate import Estimate
    from bertsecrets.results.experiment import Experiment

__version__ = "0.1.0"

_NAMES = {
    "analysis": "Analysis Context Findings",
    "api": "demo disable fine_tune measure plan",
    "api_results": "DemoTexts DisabledHeads HeadGrid",
    "attention.override": "HeadEdit override",
    "attention.watch": "watch",
    "grid": "Column Shown",
    "huggingface": "HeadsCallback",
    "lightning": "AnalyseHeads CaptureMaps DisableHeads GradientFlow MeasureHeads",
    "measures.base": "Measure",
    "models.checkpoint": "load",
    "pages.head_view": "HeadView head_view",
    "pages.notebook_run": "Run",
    "pages.power_page": "PowerPlan",
    "present.presenter": "Presenter",
    "present.report.content": "Section Table",
    "pruning.removal": "load_pruned remove_heads save_pruned",
    "reporting.numbers": "numbers",
    "results.estimate": "Estimate",
    "results.experiment": "Experiment",
}
_HOMES = {name: f"bertsecrets.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AnalyseHeads",
    "Analysis",
    "CaptureMaps",
    "Column",
    "Context",
    "DemoTexts",
    "DisableHeads",
    "DisabledHeads",
    "Estimate",
    "Experiment",
    "Findings",
    "GradientFlow",
    "HeadEdit",
    "HeadGrid",
    "HeadView",
    "HeadsCallback",
    "Measure",
    "MeasureHeads",
    "PowerPlan",
    "Presenter",
    "Run",
    "Section",
    "Shown",
    "Table",
    "demo",
    "disable",
    "fine_tune",
    "head_view",
    "load",
    "load_pruned",
    "measure",
    "numbers",
    "override",
    "plan",
    "remove_heads",
    "save_pruned",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsecrets' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
