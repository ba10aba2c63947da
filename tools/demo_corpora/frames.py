"""The verb frames of the demo corpus: verbs, the roles they assign, and the classes of nouns that fill the roles."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """The inflected forms that the grammar uses."""

    base: str
    past: str
    participle: str


@dataclass(frozen=True, slots=True)
class Role:
    """A frame element: its name, the classes of nouns that fill it, and the preposition that marks it, if any."""

    name: str
    categories: tuple[str, ...]
    preposition: str = ""


@dataclass(frozen=True, slots=True)
class VerbFrame:
    """A frame with the synonymous verbs that evoke it.

    ``third`` is an optional role marked by a preposition. ``manner`` names the kinds of adverb and ``places`` the
    class of places that combine with it. ``opposite`` is the base form of a verb with the contrary meaning.
    """

    name: str
    verbs: tuple[Verb, ...]
    agent: Role
    patient: Role
    third: Role | None = None
    manner: tuple[str, ...] = ()
    places: str = "region"
    opposite: str = ""

    def verb(self, second: bool) -> Verb:
        """The verb; the second synonym, if there is one, when ``second``."""
        return self.verbs[-1 if second else 0]


def inflect(row: str) -> Verb:
    """The forms of a verb given as "base", "base:past" or "base:past:participle".

    >>> inflect("carry").past, inflect("hire").participle, inflect("write:wrote:written").participle
    ('carried', 'hired', 'written')
    """
    base, *irregular = row.split(":")
    if irregular:
        return Verb(base, irregular[0], irregular[-1])
    if base.endswith("e"):
        past = base + "d"
    elif base.endswith("y") and base[-2] not in "aeiou":
        past = base[:-1] + "ied"
    else:
        past = base + "ed"
    return Verb(base, past, past)


def _role(row: str) -> Role:
    name, categories, *preposition = row.split(":")
    return Role(name, tuple(categories.split()), *preposition)


def _frame(
    name: str, verbs: str, agent: str, patient: str, third: str = "", manner: str = "", places: str = "region",
    opposite: str = "",
) -> VerbFrame:  # fmt: skip
    return VerbFrame(
        name,
        tuple(inflect(row) for row in verbs.split("=")),
        _role(agent),
        _role(patient),
        _role(third) if third else None,
        tuple(manner.split()),
        places,
        opposite,
    )


_PORTABLE = "clothing instrument valuable device text"
_GOODS = f"vehicle craft furniture {_PORTABLE}"

FRAMES: tuple[VerbFrame, ...] = (
    # Frames between people: in most of them agent and patient can be swapped.
    _frame("Judgment_communication", "praise=commend", "Communicator:person", "Evaluee:person",
           manner="secrecy", opposite="criticize"),
    _frame("Judgment_communication", "criticize=denounce", "Communicator:person", "Evaluee:person",
           manner="secrecy", opposite="praise"),
    _frame("Experiencer_focus", "love=adore", "Experiencer:person", "Content:person animal",
           manner="secrecy", opposite="hate", places=""),
    _frame("Experiencer_focus", "hate=detest", "Experiencer:person", "Content:person animal",
           manner="secrecy", opposite="love", places=""),
    _frame("Judgment", "admire=respect", "Cognizer:person", "Evaluee:person", opposite="despise", places=""),
    _frame("Judgment", "despise=scorn", "Cognizer:person", "Evaluee:person", opposite="admire", places=""),
    _frame("Hiring", "hire=employ", "Employer:person", "Employee:person", opposite="fire"),
    _frame("Firing", "fire=dismiss", "Employer:person", "Employee:person", opposite="hire"),
    _frame("Assistance", "help=assist", "Helper:person", "Benefited_party:person", manner="mood", opposite="hinder"),
    _frame("Hindering", "hinder=obstruct", "Hindrance:person", "Protagonist:person", opposite="help"),
    _frame("Judgment_direct_address", "scold=reprimand", "Communicator:person", "Addressee:person"),
    _frame("Rewards_and_punishments", "reward", "Agent:person", "Evaluee:person", opposite="punish"),
    _frame("Rewards_and_punishments", "punish", "Agent:person", "Evaluee:person", opposite="reward"),
    _frame("Cotheme", "chase=pursue", "Theme:person animal", "Cotheme:person animal"),
    _frame("Contacting", "call=phone", "Communicator:person", "Addressee:person", manner="secrecy"),
    _frame("Education_teaching", "teach:taught=instruct", "Teacher:person", "Student:person"),
    _frame("Visiting", "visit", "Agent:person", "Entity:person building", manner="secrecy"),
    _frame("Request", "invite", "Speaker:person", "Addressee:person", manner="mood"),
    _frame("Greeting", "greet=welcome", "Speaker:person", "Addressee:person", manner="warmth"),
    _frame("Rescuing", "rescue=save", "Agent:person", "Patient:person animal"),
    _frame("Attack", "attack=assault", "Assailant:person animal", "Victim:person animal", opposite="defend"),
    _frame("Protecting", "defend=protect", "Protection:person animal", "Asset:person animal", opposite="attack"),
    _frame("Perception_active", "watch=observe", "Perceiver:person", "Phenomenon:person animal", manner="secrecy"),
    _frame("Becoming_aware", "notice=spot:spotted", "Cognizer:person animal", "Phenomenon:person animal"),
    _frame("Remembering", "remember=recall", "Cognizer:person", "Phenomenon:person", opposite="forget", places=""),
    _frame("Forgetting", "forget:forgot:forgotten", "Cognizer:person", "Phenomenon:person", opposite="remember",
           places=""),
    _frame("Arrest", "arrest=detain", "Authorities:police", "Suspect:person"),
    _frame("Questioning", "interview=question", "Speaker:person police", "Addressee:person police"),
    _frame("Stimulate_emotion", "please=delight", "Stimulus:person", "Experiencer:person", opposite="annoy"),
    _frame("Stimulate_emotion", "annoy=irritate", "Stimulus:person", "Experiencer:person", opposite="please"),
    _frame("Cause_fear", "frighten=scare", "Stimulus:person animal", "Experiencer:person animal"),
    _frame("Trust", "trust", "Cognizer:person", "Source:person", opposite="distrust", places=""),
    _frame("Trust", "distrust", "Cognizer:person", "Source:person", opposite="trust", places=""),
    _frame("Beat_opponent", "defeat=beat:beat:beaten", "Winner:person", "Loser:person"),
    _frame("Manipulation", "deceive=trick", "Manipulator:person", "Victim:person"),
    _frame("Warning", "warn=alert", "Speaker:person police", "Addressee:person police", manner="sound"),
    # Frames between people and things.
    _frame("Commerce_buy", "buy:bought=purchase", "Buyer:person", f"Goods:{_GOODS}", "Seller:person:from",
           "secrecy"),
    _frame("Commerce_sell", "sell:sold", "Seller:person", f"Goods:{_GOODS}", "Buyer:person:to", "secrecy"),
    _frame("Ingestion", "eat:ate:eaten=consume", "Ingestor:person", "Ingestibles:dish produce",
           manner="speed sound", places="room"),
    _frame("Ingestion", "drink:drank:drunk=sip:sipped", "Ingestor:person", "Ingestibles:drink",
           manner="sound", places="room"),
    _frame("Cooking_creation", "prepare=make:made", "Cook:person", "Produced_food:dish", "Recipient:person:for",
           "care speed", "room"),
    _frame("Fixing", "repair=fix", "Agent:person", "Object:vehicle craft instrument furniture device",
           "Instrument:repairtool:with", "care speed", opposite="damage"),
    _frame("Damaging", "damage=ruin", "Agent:person", "Patient:vehicle craft instrument furniture device",
           "Instrument:repairtool:with", "secrecy", opposite="repair"),
    _frame("Building", "build:built=construct", "Agent:person", "Created_entity:building", manner="care speed",
           opposite="demolish"),
    _frame("Destroying", "demolish=destroy", "Destroyer:person", "Undergoer:building", manner="speed",
           opposite="build"),
    _frame("Closure", "open", "Agent:person", "Container_portal:container opening", manner="care sound secrecy",
           opposite="close", places=""),
    _frame("Closure", "close=shut:shut", "Agent:person", "Container_portal:container opening", manner="care sound",
           opposite="open", places=""),
    _frame("Locking", "lock", "Agent:person", "Lock:opening", manner="sound secrecy", opposite="unlock", places=""),
    _frame("Locking", "unlock", "Agent:person", "Lock:opening", manner="sound secrecy", opposite="lock", places=""),
    _frame("Wearing", "wear:wore:worn", "Wearer:person", "Clothing:clothing", manner="mood"),
    _frame("Cleaning", "wash=clean", "Agent:person", "Item:vehicle clothing", manner="care speed"),
    _frame("Operate_vehicle", "drive:drove:driven", "Driver:person", "Vehicle:vehicle", manner="care speed"),
    _frame("Text_creation", "write:wrote:written=compose", "Author:person", "Text:text", "Addressee:person:for",
           "care speed", "room"),
    _frame("Reading_activity", "read:read", "Reader:person", "Text:text contract", manner="care speed sound",
           places="room"),
    _frame("Sign_agreement", "sign", "Signatory:person", "Agreement:contract", manner="mood secrecy",
           places="room"),
    _frame("Publishing", "publish=release", "Publisher:person", "Work:text", manner="secrecy"),
    _frame("Translating", "translate", "Cognizer:person", "Content:text contract", "Beneficiary:person:for",
           "care speed"),
    _frame("Performing_arts", "play", "Performer:person", "Instrument:instrument", "Audience:person:for",
           "sound mood", "room"),
    _frame("Bringing", "carry=transport", "Agent:person", "Theme:container furniture instrument plant",
           "Goal:building room:to", "care speed"),
    _frame("Theft", "steal:stole:stolen", "Perpetrator:person", f"Goods:{_GOODS}", "Victim:person:from", "secrecy"),
    _frame("Locating", "find:found=discover", "Perceiver:person", f"Sought_entity:{_PORTABLE}", opposite="lose"),
    _frame("Losing", "lose:lost=misplace", "Owner:person", f"Possession:{_PORTABLE}", opposite="find"),
    _frame("Borrowing", "borrow", "Borrower:person", f"Theme:tool repairtool vehicle {_PORTABLE}",
           "Lender:person:from", "secrecy"),
    _frame("Lending", "lend:lent=loan", "Lender:person", f"Theme:tool repairtool vehicle {_PORTABLE}",
           "Borrower:person:to", "mood"),
    _frame("Sending", "send:sent=mail", "Sender:person", "Theme:text contract valuable", "Recipient:person:to",
           "secrecy"),
    _frame("Giving", "donate", "Donor:person", f"Theme:{_PORTABLE} furniture", "Recipient:building:to",
           "secrecy mood"),
    _frame("Creating_design", "design", "Designer:person", "Artifact:building clothing craft", "Recipient:person:for",
           "care"),
    _frame("Cutting", "cut:cut=slice", "Agent:person", "Item:produce", "Instrument:blade:with", "care speed", "room"),
    _frame("Hiding_objects", "hide:hid:hidden=conceal", "Agent:person", "Hidden_object:valuable contract container",
           manner="care", places="room"),
    _frame("Planting", "plant", "Agent:person", "Theme:plant", manner="care"),
    _frame("Growing", "water", "Grower:person", "Plant:plant", manner="care"),
    _frame("Feeding", "feed:fed", "Agent:person", "Animal:animal", manner="care"),
    _frame("Taking_captive", "catch:caught=capture", "Agent:person", "Captive:animal", opposite="free"),
    _frame("Releasing", "free", "Captor:person", "Theme:animal", manner="secrecy", opposite="catch"),
    _frame("Choosing", "choose:chose:chosen=select", "Cognizer:person",
           "Chosen:clothing valuable instrument furniture", "Beneficiary:person:for", "care speed"),
    _frame("Inspecting", "inspect=examine", "Inspector:person police",
           "Ground:vehicle craft building contract container", manner="care speed"),
    _frame("Receiving", "accept", "Recipient:person", "Theme:contract valuable", "Donor:person:from", "mood",
           opposite="reject"),
    _frame("Refusing", "reject=refuse", "Protagonist:person", "Proposed_object:contract valuable", opposite="accept"),
    _frame("Delivery", "deliver", "Deliverer:person", "Theme:text contract furniture container dish",
           "Recipient:person:to", "speed"),
    _frame("Renting", "rent", "Lessee:person", "Goods:vehicle instrument building", "Lessor:person:from"),
    _frame("Creating_image", "draw:drew:drawn=sketch", "Creator:person", "Subject:person animal building plant",
           manner="care speed"),
    _frame("Photographing", "photograph", "Creator:person", "Subject:person animal building valuable",
           manner="secrecy"),
)  # fmt: skip
BY_VERB: dict[str, VerbFrame] = {verb.base: frame for frame in reversed(FRAMES) for verb in frame.verbs}
