"""The page of Kovaleva et al. 2019, *Revealing the Dark Secrets of BERT*."""

from bertsecrets.papers.kovaleva2019.disabling import disabled_heads, disabled_layers
from bertsecrets.papers.kovaleva2019.drift import drift
from bertsecrets.papers.kovaleva2019.features import features
from bertsecrets.papers.kovaleva2019.initialisation import initialisation
from bertsecrets.papers.kovaleva2019.patterns import patterns
from bertsecrets.papers.kovaleva2019.relations import relations
from bertsecrets.papers.kovaleva2019.token_to_token import token_to_token
from bertsecrets.papers.paper import Paper
from bertsecrets.results.report.content import Section

PAPER = Paper(
    file="dark_secrets.html",
    title="Revealing the Dark Secrets of BERT, run again",
    citation="Kovaleva et al. 2019",
    chapters=(
        initialisation,
        patterns,
        relations,
        drift,
        features,
        token_to_token,
        disabled_heads,
        disabled_layers,
    ),
    other_model="The paper fine-tuned bert-base-uncased, these runs {models}: published numbers are left out, and only the "
    "paper's general statements are checked.",
    reading=Section(
        "How to read this page",
        paragraphs=[
            "Layers and heads are counted from 0; the paper counts from 1, so that its head 12-9 is layer 11 · head 8 here, "
            "l11h08 in tables. Numbers of the paper's figures were read off the pictures. A task whose fine-tuned model "
            "is not shown to beat the constant answer is not judged. A statement “cannot be told” for differences that are "
            "not significant, for changes within rounding, and where any sample would fulfil it, such as that the best of "
            "many heads improves. Differences between layers are "
            "tested over seeds, or over examples where there is one seed."
        ],
    ),
)
