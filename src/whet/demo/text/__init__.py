"""Support-desk text made from a seed: what the demo pair is trained and tested on."""

from whet.demo.text.corpus import document, documents, draw_exchange, draw_system
from whet.demo.text.dialogue import Document, Exchange, Message
from whet.demo.text.dice import Dice
from whet.demo.text.split import Split, split_of

__all__ = [
    "Dice",
    "Document",
    "Exchange",
    "Message",
    "Split",
    "document",
    "documents",
    "draw_exchange",
    "draw_system",
    "split_of",
]
