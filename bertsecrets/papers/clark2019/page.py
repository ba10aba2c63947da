"""The page of Clark et al. 2019, *What Does BERT Look At?*."""

from bertsecrets.papers.clark2019.attention import entropy, gradients, positions, special_tokens
from bertsecrets.papers.clark2019.groups import groups
from bertsecrets.papers.clark2019.syntax import coreference, dependency, probes
from bertsecrets.papers.paper import Paper
from bertsecrets.results.report.content import Section

PAPER = Paper(
    file="what_does_bert_look_at.html",
    title="What does BERT look at, run again",
    citation="Clark et al. 2019",
    chapters=(positions, special_tokens, gradients, entropy, dependency, coreference, probes, groups),
    other_model="The paper looks at bert-base-uncased, these runs at {models}: its numbers of attention by layer are left out, "
    "and its general statements are checked.",
    reading=Section(
        "How to read this page",
        paragraphs=[
            "Statements are checked on models before fine-tuning, of which the paper speaks, except for the gradients of a "
            "task; fine-tuned models (of several seeds the first) stand below them in the tables. A statement holds, or does "
            "not, only where a test says so; “cannot be told” where the data leave both open.",
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 8-11 is layer 7 · head 10 here, "
            "l07h10 in tables. Numbers of the paper's figures were read off the pictures. A layer's standard error is the "
            "mean of its heads', the most that it can be.",
        ],
    ),
)
