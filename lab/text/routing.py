"""Routing: which desk takes a ticket, by the table of the system prompt."""

from __future__ import annotations

from lab.text.dialogue import Exchange
from lab.text.dice import Dice
from lab.text.split import Split
from lab.text.system import SystemPrompt
from lab.text.tickets import draw_ticket

REQUESTS = (
    "Which desk takes this ticket?",
    "Route this ticket.",
    "Name the desk for this ticket.",
    "Who should get this ticket?",
)


def routing(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A ticket whose issue decides the desk; the reply is the desk's name."""
    ticket = draw_ticket(dice, split, system)
    desk = system.shop.routing[ticket.issue]
    body = f"{dice.pick(REQUESTS)}\nTicket: {ticket.text}"
    return Exchange(task="routing", user=body, reply=desk, scorer="exact", expected=desk)
