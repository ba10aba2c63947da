"""The page of Clark et al. 2019, *What Does BERT Look At?*."""

from bertsecrets.papers.clark2019.attention import entropy, gradients, positions, special_tokens
from bertsecrets.papers.clark2019.groups import groups
from bertsecrets.papers.clark2019.maps import typical_heads
from bertsecrets.papers.clark2019.sinks_and_roles import roles, sinks
from bertsecrets.papers.clark2019.syntax import coreference, dependency, probes
from bertsecrets.papers.paper import Paper
from bertsecrets.results.report.content import Section

PAPER = Paper(
    file="what_does_bert_look_at.html",
    title="What does BERT look at, run again",
    citation="Clark et al. 2019",
    chapters=(
        typical_heads,
        positions,
        special_tokens,
        gradients,
        sinks,
        entropy,
        roles,
        dependency,
        coreference,
        probes,
        groups,
    ),
    other_model="The paper studies bert-base-uncased, these runs {models}: the paper's numbers for heads and layers are left out, "
    "its general statements are checked.",
    reading=Section(
        "How to read this page",
        paragraphs=[
            "Statements are checked on the model before fine-tuning, which is what the paper studies. Only the gradients of a "
            "task's loss and the sink heads, which need answers to the task, are checked on fine-tuned models too. In the "
            "tables, fine-tuned models (of several seeds the first) stand below. The runs agree or disagree with a statement "
            "only where a test shows it; otherwise it cannot be told.",
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 8-11 is layer 7 · head 10 here, "
            "l07h10 in tables. Numbers of the paper's figures were read off the pictures. A layer's standard error is the "
            "mean of its heads', the most that it can be.",
        ],
    ),
)
