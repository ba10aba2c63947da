"""Edits of an event: some keep it true, some contradict it, some give another event.

Each edit takes a sampler and an event and returns the changed event, or None where it does not apply.
"""

from collections.abc import Callable
from dataclasses import replace

from tools.demo_corpora.events import Event, Participant, Sampler, accepts
from tools.demo_corpora.frames import BY_VERB, FRAMES
from tools.demo_corpora.lexicon import ADJECTIVES_FOR, BY_CATEGORY, HYPERNYMS, NUMERALS, OPPOSITE

Edit = Callable[[Sampler, Event], Event | None]


def swap_roles(sampler: Sampler, event: Event) -> Event | None:
    """Swap agent and patient: the same words, another event."""
    agent, patient = event.agent, event.patient
    if not accepts(event.frame, patient, agent) or patient.owner or patient.count > 1:
        return None
    if event.companion or event.background or event.negation == "any":
        return None
    return replace(event, agent=patient, patient=agent)


def flip_negation(sampler: Sampler, event: Event) -> Event | None:
    """Negate the event, or remove its negation."""
    if event.negation:
        return replace(event, negation="")
    if event.manner is not None or (event.companion is not None and not _denies_well(event)):
        return None
    negation = sampler.negation(event.patient)
    return replace(event, negation="not" if event.time and negation == "never" else negation)


def opposite_verb(sampler: Sampler, event: Event) -> Event | None:
    """Replace the verb with its contrary: loved, hated."""
    if not event.frame.opposite or event.third or event.companion:
        return None
    frame = BY_VERB[event.frame.opposite]
    manner = event.manner if event.manner is not None and set(event.manner.suits) & set(frame.manner) else None
    return replace(event, frame=frame, manner=manner)


def opposite_adjective(sampler: Sampler, event: Event) -> Event | None:
    """Replace the patient's adjective with its contrary: old, new."""
    adjective = event.patient.adjective
    return None if adjective is None else _with_patient(event, replace(event.patient, adjective=OPPOSITE[adjective]))


def opposite_manner(sampler: Sampler, event: Event) -> Event | None:
    """Replace the adverb with its contrary: quickly, slowly."""
    return None if event.manner is None else replace(event, manner=OPPOSITE[event.manner])


def other_count(sampler: Sampler, event: Event) -> Event | None:
    """Change the number of patients."""
    if event.patient.count == 1:
        return None
    count = sampler.rng.choice([count for count in NUMERALS if count != event.patient.count])
    return _with_patient(event, replace(event.patient, count=count))


def other_owner(sampler: Sampler, event: Event) -> Event | None:
    """Change the owner of the patient."""
    if event.patient.owner is None:
        return None
    return _with_patient(event, replace(event.patient, owner=sampler.owner(event)))


def other_agent(sampler: Sampler, event: Event) -> Event | None:
    """Change the agent."""
    if event.companion or event.background or event.patient.owner is event.agent:
        return None
    agent = sampler.participant(event.frame.agent.categories, event.patient)
    if agent.noun in (event.agent.noun, event.third and event.third.noun):
        return None
    return replace(event, agent=replace(agent, definite=event.agent.definite))


def other_patient(sampler: Sampler, event: Event) -> Event | None:
    """Change the patient to another person or thing of the same class."""
    patient = event.patient
    noun = sampler.rng.choice(BY_CATEGORY[patient.noun.category])
    if patient.noun.proper or noun in (patient.noun, event.agent.noun) or noun.countable != patient.noun.countable:
        return None
    fresh = sampler.individual(noun)
    if event.companion is not None and fresh.pronouns == event.agent.pronouns:
        return None
    return _with_patient(event, replace(patient, noun=noun, key=fresh.key, gender=fresh.gender))


def other_verb(sampler: Sampler, event: Event) -> Event | None:
    """Change the verb to one that the event neither implies nor excludes."""
    frame = sampler.rng.choice(FRAMES)
    fits = accepts(frame, event.agent, event.patient)
    related = frame.name == event.frame.name or frame.opposite == event.frame.verbs[0].base
    bare = not (event.third or event.manner or event.companion or event.place)
    if not (fits and bare) or related or (event.time and not frame.places):
        return None
    return replace(event, frame=frame)


def other_time(sampler: Sampler, event: Event) -> Event | None:
    """Change the day."""
    return replace(event, time=sampler.time(event)) if event.time else None


def add_time(sampler: Sampler, event: Event) -> Event | None:
    """Add a day."""
    if event.time or event.companion or not event.frame.places:
        return None
    return replace(event, time=sampler.time(event))


def add_place(sampler: Sampler, event: Event) -> Event | None:
    """Add a place."""
    if event.place or event.companion or event.background or not event.frame.places:
        return None
    if event.patient.noun.category == "building":
        return None
    return replace(event, place=sampler.place(event.frame))


def add_third(sampler: Sampler, event: Event) -> Event | None:
    """Add a third role."""
    if event.third or event.frame.third is None or event.background:
        return None
    return replace(event, third=sampler.third(event))


def add_adjective(sampler: Sampler, event: Event) -> Event | None:
    """Add an adjective to the patient."""
    adjectives = ADJECTIVES_FOR.get(event.patient.noun.category, ())
    if event.patient.adjective or event.patient.noun.proper or not adjectives:
        return None
    return _with_patient(event, replace(event.patient, adjective=sampler.rng.choice(adjectives)))


def drop_time(sampler: Sampler, event: Event) -> Event | None:
    """Drop the day."""
    return replace(event, time="") if event.time else None


def drop_place(sampler: Sampler, event: Event) -> Event | None:
    """Drop the place."""
    return replace(event, place=None) if event.place else None


def drop_third(sampler: Sampler, event: Event) -> Event | None:
    """Drop the third role."""
    return replace(event, third=None) if event.third else None


def drop_manner(sampler: Sampler, event: Event) -> Event | None:
    """Drop the adverb."""
    return replace(event, manner=None) if event.manner else None


def drop_adjective(sampler: Sampler, event: Event) -> Event | None:
    """Drop the patient's adjective."""
    return _with_patient(event, replace(event.patient, adjective=None)) if event.patient.adjective else None


def drop_companion(sampler: Sampler, event: Event) -> Event | None:
    """Drop the second event."""
    return replace(event, companion=None) if event.companion else None


def drop_background(sampler: Sampler, event: Event) -> Event | None:
    """Drop the relative clause."""
    return replace(event, background=None) if event.background else None


def generalize(sampler: Sampler, event: Event) -> Event | None:
    """Name the patient by the noun of its class: violin, instrument."""
    patient = event.patient
    hypernym = HYPERNYMS.get(patient.noun.category)
    if hypernym is None or patient.noun == hypernym or patient.adjective is not None:
        return None
    return _with_patient(event, replace(patient, noun=hypernym))


DROPS: tuple[Edit, ...] = (
    drop_time,
    drop_place,
    drop_third,
    drop_manner,
    drop_adjective,
    drop_companion,
    drop_background,
)
ADDITIONS: tuple[Edit, ...] = (add_time, add_place, add_third, add_adjective)


def _with_patient(event: Event, patient: Participant) -> Event:
    """The event, and its companion, with another patient."""
    companion = event.companion
    if companion is not None:
        companion = replace(companion, event=replace(companion.event, patient=patient))
    return replace(event, patient=patient, companion=companion)


def _denies_well(event: Event) -> bool:
    # "Anna did not buy a guitar before she sold it": the pronoun has no referent.
    return event.patient.definite and event.companion is not None and event.companion.connective in ("before", "after")
