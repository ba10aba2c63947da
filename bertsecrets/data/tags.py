"""Examples whose words have tags, from lists of words and tags, and windows of those that are longer than the model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerFast

from bertsecrets.data.example import Annotation, Example, Word
from bertsecrets.data.groups import group_of
from bertsecrets.data.windows import windows
from bertsecrets.errors import UserError, choices
from bertsecrets.results.formatting import metric_label
from bertsecrets.settings import shown
from bertsecrets.task_heads.base import TaskHead
from bertsecrets.task_heads.labels import IGNORED, continues, starts_inside


def annotated_words(words: Sequence[Any], where: str) -> tuple[str, Annotation]:
    """Words joined with spaces, and where each is.

    Raises:
        UserError: If there are none, or one is not a text, has no letters or has spaces around it.
    """
    if not isinstance(words, Sequence) or isinstance(words, str):
        raise UserError(f"{where} is {shown(words)}; expected a list of words, as each word has a tag.")
    if not words:
        raise UserError(f"{where} has no words; remove it.")
    placed, start = [], 0
    for word in words:
        if not isinstance(word, str) or not word.strip() or word != word.strip():
            raise UserError(f"{where} has the word {shown(word)}; expected a text without spaces around it.")
        placed.append(Word(word, start, start + len(word), "", -1, ""))
        start += len(word) + 1
    return " ".join(words), Annotation(tuple(placed))


def tag_numbers(tags: Sequence[Any], labels: Sequence[str], words: int, where: str) -> tuple[int, ...]:
    """The tags of a sentence as indices of classes; -100, and a missing one, is not scored.

    Args:
        tags: Names, or indices.
        labels: The tags that there are.
        words: How many words the sentence has.
        where: The sentence, for messages.

    Raises:
        UserError: If there are more or fewer tags than words, or one is unknown.
    """
    if not isinstance(tags, Sequence) or isinstance(tags, str) or len(tags) != words:
        count = f"{len(tags):,} tags" if isinstance(tags, Sequence) and not isinstance(tags, str) else shown(tags)
        raise UserError(f"{where} has {words:,} words but {count}; give every word one tag.")
    places = {label: place for place, label in enumerate(labels)}
    numbers = []
    for word, tag in enumerate(tags):
        if tag is None or (tag == IGNORED and not isinstance(tag, str)):
            numbers.append(IGNORED)
        elif isinstance(tag, str) and tag in places:
            numbers.append(places[tag])
        elif isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag < len(labels):
            numbers.append(tag)
        else:
            expected = choices(tag, labels) if isinstance(tag, str) else f"expected 0 to {len(labels) - 1}, or a name"
            raise UserError(f"{where}, word {word + 1}: unknown tag {shown(tag)}; {expected}.")
    return tuple(numbers)


def tagged_examples(
    texts: Sequence[Sequence[str]], tags: Sequence[Sequence[Any]], labels: Sequence[str], where: str
) -> list[Example]:
    """Examples of lists of words and of lists of their tags, by name or number.

    Args:
        texts: The words of each sentence.
        tags: Their tags.
        labels: The tags that there are.
        where: What a sentence is called in messages, before its number.

    Raises:
        UserError: As :func:`annotated_words` and :func:`tag_numbers`.
    """
    examples = []
    for index, (words, of_words) in enumerate(zip(texts, tags, strict=True)):
        text, annotation = annotated_words(words, f"{where} {index}")
        numbers = tag_numbers(of_words, labels, len(annotation.words), f"{where} {index}")
        examples.append(Example(index, (text,), numbers, (annotation,)))
    return examples


def check_scored(examples: Sequence[Example], head: TaskHead, metrics: Sequence[str], what: str) -> None:
    """Raise UserError if no word of any example has a tag, or a metric is undefined for these tags.

    Args:
        examples: Sentences whose words have tags.
        head: The task head, with its metrics.
        metrics: Names of what is to be computed.
        what: The examples, for messages.
    """
    tags = [example.label for example in examples if isinstance(example.label, tuple)]
    scored = {tag for each in tags for tag in each} - {IGNORED}
    if not scored:
        raise UserError(
            f"No word of {what} has a tag (all are {IGNORED}); give tags to the words that are to be scored."
        )
    answer_NF = head.baseline(tags)[1].numpy()
    for metric in (head.metrics[name] for name in metrics):
        if not metric.defined(metric.features(answer_NF, answer_NF[None])[0]):
            raise UserError(
                f"No word of {what} counts for {metric_label(metric.name)}, as all have tag "
                f"{' or '.join(head.labels[tag] for tag in sorted(scored))}; give other sentences, or choose "
                "token_accuracy as the only metric (task.metrics=[token_accuracy], in Python metric='token_accuracy')."
            )


def note_on_tags(examples: Sequence[Example], labels: Sequence[str], what: str) -> str | None:
    """A sentence on entities that no ``B-`` begins; None if every one has its ``B-``, or no tag has one."""
    if not any(label.startswith("B-") for label in labels):
        return None
    sentences = [_names(example, labels) for example in examples]
    bad = [(row, word) for row, tags in enumerate(sentences) for word in starts_inside(tags)]
    if not bad:
        return None
    row, word = bad[0]
    count = f"{len(bad):,} entities of {what} begin" if len(bad) > 1 else f"1 entity of {what} begins"
    return (
        f"{count} without B-, e.g. with '{sentences[row][word]}' at word {word + 1} of sentence "
        f"{examples[row].index + 1}; they count as entities, as in seqeval."
    )


def tagged_windows(
    examples: Sequence[Example],
    labels: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
) -> list[Example]:
    """The sentences, those that are too long cut between words into windows, outside of entities where possible.

    Windows of one sentence share its group. Without a sentence that is too long, the examples as they are.

    Args:
        examples: Sentences whose words have tags.
        labels: The tags that there are.
        tokenizer: A fast tokenizer.
        max_length: Longest window in tokens, special tokens included.
    """

    def cuts(example: Example) -> tuple[int, ...]:
        tags = _names(example, labels)
        # Windows are cut where sentences of a document begin.
        return (0, *(word for word in range(1, len(tags)) if not continues(tags[word - 1], tags[word])))

    divided = [
        replace(example, annotations=(replace(example.annotations[0], sentences=cuts(example)),))
        for example in examples
    ]
    cut = windows(divided, tokenizer, max_length)
    if len(cut) == len(examples):
        return [*examples]
    groups = [one.group if one.group is not None else group_of(one.index) for one in examples]
    of_index = {one.index: group for one, group in zip(examples, groups, strict=True)}
    return [
        replace(one, group=of_index[one.document or 0], annotations=(replace(one.annotations[0], sentences=()),))
        for one in cut
    ]


def _names(example: Example, labels: Sequence[str]) -> list[str]:
    """The tags of an example's words, outside of entities where a word is not scored."""
    assert isinstance(example.label, tuple)
    return ["O" if tag == IGNORED else labels[tag] for tag in example.label]
