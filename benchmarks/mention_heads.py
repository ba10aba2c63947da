"""Agreement of the head words of coreference mentions with those of a dependency parser, on LitBank.

    python -m benchmarks.mention_heads <litbank/conll> --pipeline en_core_web_sm --out
    benchmarks/results/mention_heads.json

A spaCy pipeline tags and parses LitBank's own words and sentences. A parser's head of a mention is the one word whose
governor lies outside of it; mentions with none or several are left out, and so are those of a single word.
``head_word`` gets the forms alone, as LitBank has no tags, and then the pipeline's tags too, as OntoNotes has some.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span

from bertsecrets.data.sources.coreference.conll import read_conll
from bertsecrets.data.sources.coreference.mentions import head_word


class Case(NamedTuple):
    """A mention of several words: forms, tags, the parser's head, and the heads of all parts if it is a
    coordination.
    """

    forms: list[str]
    tags: list[str]
    head: int
    coordinated: frozenset[int]

    @property
    def kind(self) -> str:
        tag = self.tags[self.head]
        if tag.startswith(("PRP", "WP")):
            return "pronoun"
        return "name" if tag.startswith("NNP") else "nominal" if tag.startswith("NN") else "other"


def parsed_documents(folder: Path, pipeline: Language) -> Iterator[tuple[Doc, list[tuple[int, int]]]]:
    """Each document as the pipeline parses it, with the first and last words of its mentions of several words."""
    for path in sorted(folder.glob("*.conll")):
        for _, annotation, error in read_conll(path):
            if annotation is None:
                raise SystemExit(str(error))
            starts = set(annotation.sentences)
            words = [word.form for word in annotation.words]
            doc = Doc(pipeline.vocab, words, sent_starts=[place in starts for place in range(len(words))])
            for _, component in pipeline.pipeline:
                doc = component(doc)
            yield (
                doc,
                [(mention.first, mention.last) for mention in annotation.mentions if mention.first < mention.last],
            )


def case_of(span: Span) -> Case | None:
    """A mention as the parser sees it; None unless exactly one of its words is governed from outside."""
    heads = [token for token in span if token.head not in span or token.head == token]
    if len(heads) != 1:
        return None
    (head,) = heads
    parts = [token for token in (head, *head.conjuncts) if token in span]
    return Case(
        [token.text for token in span],
        [token.tag_ for token in span],
        head.i - span.start,
        frozenset(token.i - span.start for token in parts),
    )


def agreement(cases: list[Case], tagged: bool) -> dict[str, dict[str, float]]:
    """For each kind of the parser's head: mentions, and percent in which both name one word or parts of one
    coordination.
    """
    counts, same, parts = Counter[str](), Counter[str](), Counter[str]()
    for case in cases:
        head = head_word(case.forms, case.tags if tagged else [""] * len(case.forms))
        for kind in (case.kind, "all"):
            counts[kind] += 1
            same[kind] += head == case.head
            parts[kind] += head in case.coordinated
    return {
        kind: {
            "mentions": count,
            "same_word": round(100 * same[kind] / count, 2),
            "same_coordination": round(100 * parts[kind] / count, 2),
        }
        for kind, count in sorted(counts.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="LitBank's folder of CoNLL files")
    parser.add_argument("--pipeline", default="en_core_web_sm", help="spaCy pipeline with a tagger and a parser")
    parser.add_argument("--shown", type=int, default=0, help="random disagreements to print")
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    pipeline = spacy.load(arguments.pipeline, exclude=["ner", "lemmatizer"])
    mentions, cases = 0, list[Case]()
    for doc, spans in parsed_documents(arguments.folder, pipeline):
        mentions += len(spans)
        cases += [case for first, last in spans if (case := case_of(doc[first : last + 1])) is not None]
    result = {
        "pipeline": f"{pipeline.meta['name']} {pipeline.meta['version']}",
        "mentions_of_several_words": mentions,
        "with_one_head": len(cases),
        "without_tags": agreement(cases, tagged=False),
        "with_tags": agreement(cases, tagged=True),
    }
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    heads = [head_word(case.forms, [""] * len(case.forms)) for case in cases]
    different = [pair for pair in zip(cases, heads, strict=True) if pair[1] not in pair[0].coordinated]
    for case, head in random.Random(0).sample(different, min(arguments.shown, len(different))):
        print(f"{' '.join(case.forms)}: parser {case.forms[case.head]}, rule {case.forms[head]}")


if __name__ == "__main__":
    main()
