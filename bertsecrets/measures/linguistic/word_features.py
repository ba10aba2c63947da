"""Linguistic features, as a user defines them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.errors import UserError
from bertsecrets.settings import Settings

_Texts = Annotated[
    tuple[str, ...],
    Field(strict=False, description="a list of texts, quoted where YAML would read something else, e.g. [NOUN]"),
]
_Flag = Annotated[bool, Field(description="true or false")]


class Feature(Settings):
    """A feature of tokens: tokens of words that fit all its kinds, or special tokens; a section of ``conf/feature``.

    Attributes:
        pos: Universal POS tags.
        relation: Universal Dependencies labels.
        tag: The annotator's finer tags.
        lexicon: Word forms, ignoring case.
        negation: Only negation words.
        shared: Only words that occur in both sentences of an example, ignoring case (Kovaleva et al. 2019, section 5).
        contains: Strings to find anywhere in a sentence (case-sensitive), as the original code does for negation; only
            with ``matching=kovaleva``, and without other kinds.
        special: ``first`` (the classification token) or ``separator`` (every other special token); without other kinds.
        pool: How several tokens with the feature are combined: ``max`` or ``sum``.

    Raises:
        UserError: If there is no kind, or ``special`` or ``contains`` is combined with another kind.
    """

    pos: _Texts = ()
    relation: _Texts = ()
    tag: _Texts = ()
    lexicon: _Texts = ()
    negation: _Flag = False
    shared: _Flag = False
    contains: _Texts = ()
    special: Literal["first", "separator"] | None = Field(default=None, description="first, separator or null")
    pool: Literal["max", "sum"] = Field(default="max", description="max or sum")

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        of_words = bool(self.pos or self.relation or self.tag or self.lexicon or self.negation or self.shared)
        if of_words + bool(self.contains) + (self.special is not None) != 1:
            raise UserError(
                "A feature is defined by exactly one of: special tokens, strings (contains), or words (pos, "
                "relation, tag, lexicon, negation, shared)."
            )
        return self

    @property
    def needs_annotation(self) -> bool:
        """Whether the feature needs annotated words."""
        return self.special is None and not self.contains

    def fits(self, word: Word, shared: Collection[str] = ()) -> bool:
        """Whether a word has the feature; False for features of special tokens or contained strings.

        Args:
            word: A word of an example.
            shared: The example's :func:`shared_forms`.
        """
        return (
            self.needs_annotation
            and (not self.pos or word.pos in self.pos)
            and (not self.relation or word.relation in self.relation)
            and (not self.tag or word.tag in self.tag)
            and (not self.lexicon or word.form.lower() in {form.lower() for form in self.lexicon})
            and (not self.negation or word.negation)
            and (not self.shared or word.form.lower() in shared)
        )

    def occurs(self, example: Example) -> bool:
        """Whether an example has the feature before truncation."""
        if self.contains:
            return any(part in text for part in self.contains for text in example.texts)
        if self.special is not None:
            return True
        shared = shared_forms(example.annotations)
        return any(self.fits(word, shared) for sentence in example.annotations for word in sentence.words)


def shared_forms(annotations: Sequence[Annotation]) -> frozenset[str]:
    """The lower-case forms common to both sentences of an example; none if it has one sentence."""
    if len(annotations) < 2:
        return frozenset()
    one, other = ({word.form.lower() for word in annotation.words} for annotation in annotations)
    return frozenset(one & other)


def features_from_config(sections: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Feature]:
    """Name -> feature; a name without a section (``nouns: null``) is ignored."""
    return {
        str(name): Feature.read(f"features.{name}", section)
        for name, section in sections.items()
        if section is not None
    }


def check_occurs(measure: str, features: Mapping[str, Feature], examples: Sequence[Example]) -> None:
    """Check that every feature is in at least one example.

    Args:
        measure: Name of the measure with the features.
        features: By name.
        examples: All examples.

    Raises:
        UserError: If a feature is in no example.
    """
    for name, feature in features.items():
        if not any(feature.occurs(example) for example in examples):
            if feature.tag and not any(
                word.tag for example in examples for sentence in example.annotations for word in sentence.words
            ):
                raise UserError(
                    f"Feature '{name}' is defined by Penn Treebank tags ({', '.join(feature.tag)}), which this "
                    "annotation lacks; use annotation=spacy, or the features of conf/feature/default.yaml."
                )
            kinds = [
                f"{kind} {'|'.join(value) if isinstance(value, tuple) else str(value).lower()}"
                for kind, value in feature
                if value and kind != "pool"
            ]
            raise UserError(
                f"Feature '{name}' matches nothing in the {len(examples):,} examples; correct its definition "
                f"({', '.join(kinds)}) or remove it with measure.{measure}.features.{name}=null."
            )
