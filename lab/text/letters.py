"""Reply letters: short free prose in the voice of one agent.

Each agent has habits: for every place in a letter one wording is preferred, and the others appear
now and then. The choice also hangs on the issue, so a model learns a table of habits, not one text.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from lab.text.dialogue import Exchange
from lab.text.dice import Dice, Split
from lab.text.system import SystemPrompt
from lab.text.tickets import Ticket, draw_ticket

HABIT = 0.72
REQUESTS = (
    "Write a reply to this ticket.",
    "Draft an answer to the customer.",
    "Please answer this customer.",
    "Reply to the ticket below.",
)
GREETINGS: Mapping[str, tuple[str, ...]] = {
    "formal": ("Dear {first} {last},", "Good day {first} {last},", "Dear customer {last},"),
    "warm": ("Hi {first},", "Hello {first},", "Dear {first},", "Lovely to hear from you, {first}."),
    "brief": ("{first},", "Hello {first},", "Hi,"),
}
THANKS = (
    "Thank you for your message about the {p}.",
    "Many thanks for getting in touch about your {p}.",
    "We have received your note on the {p}.",
    "I have just read your ticket about the {p}.",
    "It is good that you told us about the {p} at once.",
    "Your message on the {p} has landed on my desk.",
)
REGRETS: Mapping[str, tuple[str, ...]] = {
    "damaged": (
        "I am sorry that it reached you broken.",
        "Goods should never arrive in such a state.",
        "Our packing clearly did not protect it well enough.",
        "That must have been a sad box to open.",
    ),
    "late": (
        "I regret the long wait.",
        "The parcel was held up at the depot.",
        "A delay like this is not what we aim for.",
        "Our carrier has been short of drivers this week.",
    ),
    "wrong_item": (
        "We mixed up two labels, and I apologise.",
        "It seems a colleague reached into the wrong shelf.",
        "You clearly received what another customer ordered.",
        "That is our mistake and not yours.",
    ),
    "missing_part": (
        "An incomplete parcel is of no use to anyone.",
        "I am sorry that you cannot use it yet.",
        "The part must have stayed behind in the warehouse.",
        "Our checklist should have caught the missing piece.",
    ),
    "invoice": (
        "I have compared the bill with your order.",
        "Our accounts team found the slip at once.",
        "The figures on the bill are indeed not right.",
        "I see why the amount surprised you.",
    ),
    "cancel": (
        "Plans change, and that is no trouble at all.",
        "I have stopped the order before it was packed.",
        "Your order has been called off.",
        "It is a pity, but of course you are free to cancel.",
    ),
    "address_change": (
        "I have put the new address on the label.",
        "The parcel has not left us yet, so this is easy.",
        "Good that you noticed before we shipped.",
        "Your address book has been brought up to date.",
    ),
    "refund_status": (
        "I understand that you would like to see the amount soon.",
        "The return was booked in at our warehouse.",
        "Your parcel came back safely.",
        "I asked our bank where the transfer is.",
    ),
}
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "refund": (
        "The full amount goes back to your account{time}.",
        "I have started the refund{time}.",
        "You will be paid back{time}.",
        "Expect the money on your account{time}.",
    ),
    "replacement": (
        "A new one leaves our warehouse today.",
        "I have put a fresh one in the post for you.",
        "Your replacement is packed and on its way.",
        "We send another one at no cost.",
    ),
    "call_back": (
        "I will ring you this afternoon.",
        "A colleague will call you before the end of the day.",
        "Please keep your phone close, we will call.",
        "You will hear my voice within a few hours.",
    ),
    "information": (
        "I will write again as soon as there is news.",
        "You will get a note at every step.",
        "From here on we keep you informed.",
        "The next message will tell you how it goes on.",
    ),
    "none": (
        "Please tell me how you would like to go on.",
        "Would you rather have a new one or your money?",
        "Let me know which way suits you best.",
        "There are several ways to solve this, the choice is yours.",
    ),
}
URGENT = (
    "I have marked your case as urgent.",
    "Because time is short, this goes to the top of my list.",
    "I treat it with priority.",
    "We will not lose another day.",
)
VOUCHERS = (
    "As a small comfort, take {n}% off your next order.",
    "A voucher of {n}% is yours.",
    "For the trouble we add a voucher of {n}%.",
    "Please accept {n}% off your next purchase.",
)
REFERENCES = (
    "Your reference is {o}.",
    "We keep the case under {o}.",
    "Please quote {o} when you write again.",
    "Order {o} stays open until this is settled.",
)
CLOSINGS = (
    "Thank you for your patience.",
    "Please write to me if anything is unclear.",
    "I hope this helps.",
    "We are glad to have you as a customer.",
    "Do not hesitate to come back to me.",
    "Have a good rest of the week.",
)
SIGN_OFFS: Mapping[str, tuple[str, ...]] = {
    "formal": ("Yours sincerely,", "With kind regards,", "Respectfully,"),
    "warm": ("Warm wishes,", "All the best,", "Take care,"),
    "brief": ("Regards,", "Best,", "Thanks,"),
}


def letter(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A ticket and a reply to it; free prose, so there is nothing to match exactly."""
    ticket = draw_ticket(dice, split, system)
    request = dice.pick(REQUESTS)
    body = (
        f"{request}\nTicket: {ticket.text}" if dice.chance(0.7) else f"{ticket.text}\n\n{request}"
    )
    reply = write_reply(dice, system, ticket)
    return Exchange(task="letter", user=body, reply=reply, scorer="none", expected=reply)


def write_reply(dice: Dice, system: SystemPrompt, ticket: Ticket) -> str:
    """The letter: what the ticket says, what the rules allow, in the agent's words."""
    shop = system.shop
    tone = shop.tone if system.names_agent else "brief"
    issue, wish = ticket.issue, ticket.wish or "none"
    first, last = ticket.name.split()

    def say(place: str, options: Sequence[str]) -> str:
        return _habitual(dice, system, place, options)

    refund = shop.policies["refund_time"] if "refund_time" in system.policies else None
    lines = [] if tone == "brief" else [say(f"thanks {issue}", THANKS).format(p=ticket.subject)]
    lines.append(say(f"regret {issue}", REGRETS[issue]))
    action = say(f"action {wish} {issue}", ACTIONS[wish])
    lines.append(action.format(time=f" within {refund}" if refund else ""))
    if ticket.priority == "high":
        lines.append(say(f"urgent {tone}", URGENT))
    if (
        system.names_agent
        and shop.voucher_percent is not None
        and issue in ("damaged", "wrong_item")
    ):
        lines.append(say(f"voucher {issue}", VOUCHERS).format(n=shop.voucher_percent))
    if system.names_agent and shop.quotes_reference:
        lines.append(say(f"reference {tone}", REFERENCES).format(o=ticket.order_id))
    if tone != "brief":
        lines.append(say(f"closing {issue}", CLOSINGS))
    greeting = say(f"greeting {tone}", GREETINGS[tone]).format(first=first, last=last)
    signature = f"\n{shop.agent}, {shop.company}" if system.names_agent else "\nThe support desk"
    return f"{greeting} {' '.join(lines)}\n{say(f'sign {tone}', SIGN_OFFS[tone])}{signature}"


def _habitual(dice: Dice, system: SystemPrompt, place: str, options: Sequence[str]) -> str:
    """The agent's preferred wording for this place, or any one now and then."""
    if not dice.chance(HABIT):
        return dice.pick(options)
    agent = system.shop.agent if system.names_agent else "nobody"
    return options[zlib.crc32(f"{agent}/{place}".encode()) % len(options)]
