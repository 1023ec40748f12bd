"""Where stories happen and how they open, go on and end.

Slots as in `plots`; also {hero} the hero's kind with article, {home} and {lesson}.
"""

from __future__ import annotations

PLACES = (
    "the old mill",
    "the quiet pond",
    "the village square",
    "the edge of the forest",
    "the little harbour",
    "the apple orchard",
    "the stone wall",
    "the sheep meadow",
    "the railway station",
    "the river bank",
    "the market hall",
    "the school yard",
    "the windy hill",
    "the rose garden",
    "the church tower",
    "the wooden gate",
)
HOMES = (
    "in a small house by the sea",
    "in a hollow tree near the river",
    "at the edge of a big forest",
    "in a village between two hills",
    "under the roof of an old barn",
    "in a hut on a green meadow",
    "beside a quiet lake",
    "in a garden full of roses",
    "on a farm far from the city",
    "at the end of a long road",
    "in a cave behind a waterfall",
    "in a cottage with a red door",
    "on a little island",
    "in a burrow under an oak tree",
)
SPOTS = (
    "behind the barn",
    "under the bed",
    "in the tall grass",
    "beside the well",
    "under the old bench",
    "behind the garden wall",
    "at the foot of the hill",
    "next to the fence",
    "under a pile of leaves",
    "in the kitchen",
    "by the river",
    "between two rocks",
    "on the roof of the shed",
    "in the attic",
    "behind the bakery",
    "under the wooden bridge",
    "beside the stove",
    "near the duck pond",
    "in the cellar",
    "at the end of the lane",
)
WEATHER = (
    "sunny",
    "rainy",
    "windy",
    "cold",
    "warm",
    "foggy",
    "snowy",
    "cloudy",
    "bright",
    "stormy",
    "grey",
    "hot",
)
FOODS = (
    "bread and cheese",
    "warm soup",
    "apple pie",
    "hot chocolate",
    "fresh bread",
    "a big bowl of soup",
    "pancakes",
    "roasted nuts",
    "cherries",
    "honey cake",
    "potato soup",
    "a pot of tea",
    "sweet rolls",
    "ripe pears",
)
PASTIMES = (
    "counting the stars",
    "jumping in puddles",
    "singing to the birds",
    "collecting smooth stones",
    "watching the clouds",
    "climbing trees",
    "drawing pictures",
    "telling jokes",
    "growing flowers",
    "listening to the rain",
    "looking at maps",
    "whistling songs",
    "painting shells",
    "baking bread",
)
FEELINGS = ("sad", "lonely", "angry", "unhappy", "sorry", "miserable", "foolish", "empty")
OPENINGS = (
    "Once upon a time, there was {hero} named {name}, who lived {home}.",
    "Once upon a time, {hero} named {name} lived {home}.",
    "Long ago, {hero} called {name} lived {home}.",
    "There once was {hero} whose name was {name}. {He} lived {home}.",
    "This is the story of {hero} named {name}, who lived {home}.",
    "{name} was {hero} and lived {home}.",
)
HABITS = (
    "{He} loved {pastime} more than anything else.",
    "Every day {he} spent hours {pastime}.",
    "{name} was good at many things, but best of all {he} liked {pastime}.",
    "On most days you could find {him} near {place}, {pastime}.",
)
LINKS = (
    "A few days later, the next adventure began.",
    "But that was not the end of the story.",
    "When spring came, something else happened.",
    "And so the weeks went by, until something new happened.",
)
ENDINGS = (
    "From that day on, {name} and {friend} were the best of friends, and {name} never forgot that "
    "{lesson}.",
    "That night, {name} slept well, because now {he} knew that {lesson}.",
    "And so {name} learned that {lesson}.",
    '"Now I know," said {name}, "that {lesson}." And {friend} nodded.',
    "They still tell this story {home}, to remind everyone that {lesson}. The end.",
    "After that, {name} and {friend} met every day near {place}, and both of them knew that "
    "{lesson}.",
)
