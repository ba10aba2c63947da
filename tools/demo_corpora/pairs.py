"""Candidates for the tasks on two sentences: an event, its edited version, and the label that follows."""

from collections.abc import Sequence

from tools.demo_corpora import edits
from tools.demo_corpora.edits import Edit
from tools.demo_corpora.events import Event, Sampler
from tools.demo_corpora.sentences import Draft, Style, sentence

PARAPHRASE_LABELS = ("different", "paraphrase")
NLI_LABELS = ("entailment", "neutral", "contradiction")
SCORE_RANGE = (0.0, 5.0)

# With these weights about a quarter of the pairs labelled "different" have their roles swapped.
_DIFFERENT: tuple[tuple[Edit, int], ...] = (
    (edits.swap_roles, 9),
    (edits.flip_negation, 5),
    (edits.opposite_verb, 3),
    (edits.opposite_adjective, 2),
    (edits.opposite_manner, 2),
    (edits.other_count, 3),
    (edits.other_owner, 2),
    (edits.other_agent, 1),
    (edits.other_patient, 2),
)
_CONTRADICTION: tuple[tuple[Edit, int], ...] = (
    (edits.flip_negation, 5),
    (edits.opposite_verb, 3),
    (edits.opposite_adjective, 2),
    (edits.opposite_manner, 2),
    (edits.other_count, 2),
)
_NEUTRAL: tuple[tuple[Edit, int], ...] = (
    (edits.swap_roles, 4),
    (edits.other_verb, 8),
    *((addition, 2) for addition in edits.ADDITIONS),
)
_SHIFTS: tuple[tuple[Edit, int], ...] = (
    (edits.swap_roles, 4),
    (edits.flip_negation, 6),
    (edits.opposite_verb, 4),
    (edits.opposite_adjective, 1),
    (edits.other_count, 1),
    (edits.other_owner, 1),
    (edits.other_agent, 2),
    (edits.other_patient, 2),
    (edits.other_verb, 2),
    (edits.other_time, 1),
    *((drop, 1) for drop in edits.DROPS),
)


def paraphrase(sampler: Sampler) -> tuple[tuple[Draft, Draft], int] | None:
    """Two sentences and 1 if they say the same, else 0; None if the drawn edit does not apply."""
    event = sampler.event()
    label = sampler.rng.randrange(2)
    changed = event if label else edited(sampler, event, _DIFFERENT)
    return None if changed is None else (drafts(sampler, event, changed), label)


def nli(sampler: Sampler) -> tuple[tuple[Draft, Draft], int] | None:
    """Premise, hypothesis and the index of their label; None if the drawn edit does not apply."""
    event = sampler.event()
    label = sampler.rng.randrange(3)
    # Dropping a detail makes a denial stronger, adding one makes it weaker, and denials of opposites can both be true.
    positive = not event.negation
    changed: Event | None = event
    if label == 1:
        changed = edited(sampler, event, _NEUTRAL if positive else _NEUTRAL[:2])
    elif label == 2:
        changed = edited(sampler, event, _CONTRADICTION if positive else _CONTRADICTION[:1])
    if changed is None:
        return None
    if positive and sampler.chance(0.75):
        changed = _thinned(sampler, event, changed)
    # "Repaired a violin" and "damaged an instrument" can both be true; only a denial of the class excludes its member.
    if positive and (label < 2 or changed.negation) and sampler.chance(0.3):
        changed = edits.generalize(sampler, changed) or changed
    return drafts(sampler, event, changed), label


def similarity(sampler: Sampler) -> tuple[tuple[Draft, Draft], float] | None:
    """Two sentences and the score of what they share, 0 to 5; None if the drawn edit does not apply."""
    event = sampler.event()
    if sampler.chance(0.08):
        changed = sampler.event()
    else:
        changed = event
        for _ in range(sampler.rng.choice((0, 1, 2, 3, 4, 5, 5))):
            changed = edited(sampler, changed, _SHIFTS) or changed
    score = shared_meaning(event, changed)
    # Equal meanings are worded differently and vice versa: shared words do not imply shared meaning.
    return drafts(sampler, event, changed, alike=1 - 0.19 * score), score


def shared_meaning(one: Event, two: Event) -> float:
    """How much two events have in common, 0.0 to 5.0 with one decimal.

    The verb counts 35 %, agent and patient 25 % each, details 15 %; a participant in the other role counts a fifth
    of its share, a verb of contrary meaning nothing. If one event is denied and the other is not, the score halves.
    """
    verb = float(one.frame.verbs == two.frame.verbs)
    agent = _same(one.agent.key, two.agent.key, two.patient.key)
    patient = _same(one.patient.key, two.patient.key, two.agent.key)
    pairs = list(zip(_details(one), _details(two), strict=True))
    agreements = [left == right for left, right in pairs if left or right]
    detail = sum(agreements) / len(agreements) if agreements else min(verb, agent, patient)
    score = 5 * (0.35 * verb + 0.25 * agent + 0.25 * patient + 0.15 * detail)
    return round(score / 2 if bool(one.negation) != bool(two.negation) else score, 1)


def edited(sampler: Sampler, event: Event, options: Sequence[tuple[Edit, int]]) -> Event | None:
    """The event after one edit, drawn by weight."""
    edit = sampler.rng.choices([edit for edit, _ in options], [weight for _, weight in options])[0]
    return edit(sampler, event)


def drafts(sampler: Sampler, one: Event, two: Event, alike: float = 0.5) -> tuple[Draft, Draft]:
    """The two events as sentences; each choice of style is the same in both with probability ``alike``.

    The second sentence may refer back to the first with a pronoun.
    """
    first = Style(*(sampler.chance(0.5) for _ in Style._fields))
    second = Style(*(choice == sampler.chance(alike) for choice in first))
    pronouns = _referable(sampler, one, two) if sampler.chance(0.2) else frozenset()
    return sentence(one, first), sentence(two, second, pronouns)


def _referable(sampler: Sampler, one: Event, two: Event) -> frozenset[int]:
    """One participant of both events with a pronoun that fits no other participant; empty if there is none."""
    if one.negation == "any" or two.negation == "any" or one.background or two.companion:
        return frozenset()
    # Only an unchanged participant: a pronoun would hide a new adjective, number or owner.
    candidates = [person for person in (two.agent, two.patient) if person in (one.agent, one.patient)]
    others = [
        other
        for event in (one, two)
        for other in (event.agent, event.patient, event.third, event.patient.owner)
        if other is not None
    ]
    fitting = [
        person.key
        for person in candidates
        if not any(other.key != person.key and other.pronouns == person.pronouns for other in others)
    ]
    return frozenset((sampler.rng.choice(fitting),)) if fitting else frozenset()


def _thinned(sampler: Sampler, original: Event, event: Event) -> Event:
    """The event without some of the details that it shares with the original."""
    for drop in sampler.rng.sample(edits.DROPS, 4):
        thinner = drop(sampler, event)
        # A detail is kept if dropping it would undo the edit.
        if thinner is not None and drop(sampler, original) is not None and _keeps_edit(original, event, thinner):
            event = thinner
    return event


def _keeps_edit(original: Event, event: Event, thinner: Event) -> bool:
    adjective = event.patient.adjective == original.patient.adjective or thinner.patient.adjective is not None
    manner = event.manner == original.manner or thinner.manner is not None
    return adjective and manner


def _same(key: int, same_role: int, other_role: int) -> float:
    return 1.0 if key == same_role else 0.2 if key == other_role else 0.0


def _details(event: Event) -> tuple[object, ...]:
    patient = event.patient
    return (
        patient.adjective,
        patient.count if patient.count > 1 else None,
        patient.owner and patient.owner.key,
        event.agent.adjective,
        event.third,
        event.manner,
        event.time,
        event.place,
        event.companion and event.companion.connective,
        event.background is not None,
    )
