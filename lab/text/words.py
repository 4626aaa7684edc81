"""Word lists of the support desk. Everything here is made up."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words("""
Ada Alma Amir Anders Anita Anton Asha Beate Boris Carla Cedric Chiara Clara Dario Delia Dimitri Edda
Elias Elif Emil Enzo Erika Farah Felix Fiona Florian Gemma Georg Greta Hanna Hassan Helga Henrik
Ilse
Imran Ines Ivan Jana Jonas Josef Julia Kamal Karin Kaya Klara Lars Leila Lena Leon Lilian Luca
Magnus
Malik Marek Maria Milan Mina Nadia Nils Nora Olga Omar Oscar Paula Petra Priya Rafael Rosa Ruben
Salim
Selma Simon Sofia Sven Tamar Theo Tilda Uma Vera Viktor Wanda Yara Yusuf Zoe
""")

LAST_NAMES = _words("""
Abbott Acosta Adler Ahmadi Bakker Barros Becker Bianchi Blum Bondar Braun Brodie Castro Chen Conti
Costa Dahl Dalton Demir Dietrich Duarte Eklund Engel Ferrari Fischer Fontana Garcia Gomez Gruber
Haas Hansen Hartmann Hoffman Holm Ibrahim Ivanova Jansen Jensen Kaplan Keller Khan Kovacs Kraus Lang
Larsen Lehmann Lindgren Lopez Marino Martin Mendes Meyer Moreau Nagy Nakamura Neumann Novak Olsen
Ortega Park Patel Pereira Petrov Pohl Popescu Quinn Rahman Reyes Ricci Romano Rossi Sato Schmid
Schuster Sharma Silva Sokolov Steiner Strand Tanaka Thorne Toth Vargas Vogel Wagner Walsh Weber
Winter Wolff Yilmaz Zhang Ziegler
""")

CITIES = _words("""
Aarhus Basel Bergen Bilbao Bologna Bremen Brno Cadiz Cork Dresden Ghent Graz Haarlem Izmir Krakow
Leeds Leipzig Lille Linz Lugano Lyon Malaga Malmo Mainz Modena Nantes Odense Oporto Padua Pilsen
Riga
Rouen Seville Split Tampere Tartu Trieste Turku Utrecht Varna Vigo Zagreb
""")

AGENTS = _words("""
Mara Idris Bettina Caspar Dunja Eamon Fenja Gustav Hedda Ilya Jolanta Kasimir Linnea Matteo Nuria
Orson Pilar Quentin Rhea Silvan Tova Ulrich Vesna Wendel
""")

COMPANY_HEADS = _words("""
Amber Anchor Aspen Beacon Birch Bramble Brook Canyon Cedar Cobalt Copper Coral Delta Ember Falcon
Fjord Granite Harbor Heron Iron Juniper Lantern Larch Maple Meadow Mistral North Onyx Orchard Pebble
Quarry Raven River Saffron Sierra Silver Summit Thistle Tidal Willow
""")
COMPANY_TAILS = _words(
    "Goods Home Supply Outfitters Living Works Trading House Market Depot Atelier Store"
)
SECTORS = (
    "household goods",
    "garden tools",
    "kitchen equipment",
    "office furniture",
    "outdoor gear",
    "lighting",
    "small appliances",
    "bicycle parts",
    "music accessories",
    "pet supplies",
)

PRODUCT_LINES = _words("""
Alder Arden Argon Avila Bristol Calla Carmel Corvo Delphi Dover Elara Eston Fargo Fiorel Galen
Garnet
Halden Hazel Ibis Indra Jasper Juno Kelso Kestrel Lorca Lumen Marlow Merida Nimbus Norden Olmo Orion
Palma Pavo Quill Quartz Rialto Rowan Sabine Sorrel Tarn Tivoli Umbra Ursa Valen Verdi Wexley Xenia
Yarrow Zephyr
""")
PRODUCT_KINDS = (
    "kettle",
    "toaster",
    "desk lamp",
    "floor lamp",
    "office chair",
    "bar stool",
    "side table",
    "bookcase",
    "blender",
    "coffee grinder",
    "hand mixer",
    "rice cooker",
    "garden hose",
    "pruner",
    "lawn rake",
    "wheelbarrow",
    "tent",
    "sleeping bag",
    "backpack",
    "camp stove",
    "bike pump",
    "saddle",
    "helmet",
    "headlight",
    "guitar stand",
    "metronome",
    "music stand",
    "dog bed",
    "cat tower",
    "bird feeder",
    "heater",
    "desk fan",
    "humidifier",
    "wall clock",
    "mirror",
    "cushion",
    "blanket",
    "carpet",
    "storage box",
    "tool case",
)
COLOURS = _words(
    "slate ivory olive navy rust sand teal plum charcoal mint ochre cherry pearl graphite"
)
DESKS = _words("""
Otter Badger Falcon Lynx Marten Osprey Puffin Raven Stork Swift Tern Viper Walrus Bison Crane Dingo
""")
MAIL_HOSTS = _words("mailbox.example post.example inbox.example letter.example webmail.example")
NUMBER_WORDS = _words("zero one two three four five six seven eight nine ten eleven twelve")
