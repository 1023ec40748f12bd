"""The words that the corpus is made of.

`KEY_WORDS` are used only in the keys of recall documents. No story, filler or chat line uses one,
so a key occurs only in records and in the questions about them.
"""

from __future__ import annotations

import string
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


KEY_WORDS = _words(
    """
    amber arctic atomic azure basalt beige bronze cedar chrome cobalt copper coral cosmic
    crimson crystal digital ebony electric emerald frozen galactic glacial granite hazel
    honeyed indigo ivory jade khaki lilac lunar magenta marble maroon mauve mellow modern neon
    nordic oaken ochre olive onyx opal orbital pearl plaid plum polar quartz royal ruby russet
    rustic saffron sapphire satin scarlet sepia sienna solar spiral stellar sterling tawny
    teal topaz tropical turquoise umber urban velvet vintage violet walnut woven zinc
    """
)

KEY_NOUNS = _words(
    """
    anchor archer arrow badge beacon bison bridge cactus canyon castle cobra comet compass
    condor cougar crane crater dagger delta dolphin eagle engine falcon ferret fjord galaxy
    gazelle geyser glacier harbor heron hornet iguana island jaguar kestrel lagoon lemur
    leopard lynx magnet mango meteor monsoon moose nebula ocelot orchid osprey panther parrot
    pelican phoenix pilot piston planet prairie python quarry quasar quiver raven reactor
    rhino rocket saddle salmon sentry shark shuttle sparrow sphinx stallion summit temple
    tiger tornado tower tunnel turbine viper volcano walrus whale yacht zebra zephyr
    """
)

VALUE_WORDS = _words(
    """
    brick clay cotton felt foam glass iron leather linen metal paper plastic rubber silk steel
    stone straw tin wicker wooden
    """
)

VALUE_NOUNS = _words(
    """
    apron barrel basket bell belt blanket boot bottle bowl box brush bucket button candle
    chair clock coat comb crate cup curtain drum fan flute fork glove hammer hat jar kettle
    ladder lamp lantern mat mirror mug needle pan pillow pipe plate pot ring rope ruler sack
    scarf shelf shoe spoon stool table ticket towel tray umbrella vase wallet wheel whistle
    """
)

GIRLS = _words(
    """
    Ada Alice Anna Bella Clara Daisy Ella Emma Flora Grace Hannah Holly Ida Ivy June Kate Lily
    Lucy Lena Mia Molly Nina Nora Olga Penny Poppy Rosa Ruth Sally Sophie Stella Tess Vera
    Willa Zoe
    """
)

BOYS = _words(
    """
    Adam Alfie Arthur Ben Bruno Carl Charlie Daniel David Felix Finn Fred George Harry Henry
    Hugo Jack Jacob James Leo Louis Max Milo Ned Oliver Oscar Otto Paul Peter Rufus Sam Simon
    Theo Toby Tom
    """
)

# Heroes: animals first (helpers are drawn from them), then people and inventions.
ANIMALS = _words(
    """
    badger bear beaver bee beetle bird bunny butterfly cat cow crab cricket deer dog donkey
    duck elephant fox frog goat goose hare hedgehog hen horse kitten lamb lion lizard mole
    monkey mouse otter owl penguin pig pony puppy rabbit rat seal sheep snail spider squirrel
    swan toad turtle wolf wren
    """
)

PEOPLE = _words(
    """
    baker boy child dragon farmer fisherman gardener ghost giant girl king knight mermaid
    miller monster painter pirate prince princess queen robot sailor shepherd snowman tailor
    teacher troll unicorn witch wizard
    """
)

FEMALE_KINDS = frozenset(("cow", "girl", "hen", "mermaid", "princess", "queen", "witch"))
MALE_KINDS = frozenset(("boy", "king", "prince"))

TRAITS = _words(
    """
    brave busy careful cheerful clever clumsy curious friendly gentle happy hungry kind lonely
    lively little merry old patient playful proud quiet shy silly sleepy small tiny young
    """
)

SYLLABLES = _words(
    """
    ba be bi bo da de di do fa fe fi fo ga go ha he ka ki ko la le li lo ma me mi mo na ne no
    pa pe po ra re ri ro sa se so ta te ti to va ve vi vo za ze zo
    """
)


def article(phrase: str) -> str:
    """`phrase` behind its indefinite article; an initial vowel letter takes "an"."""
    return f"an {phrase}" if phrase[0] in "aeio" else f"a {phrase}"


def invented_word(rng: Random) -> str:
    """A word that no list holds, syllables or letters at random: copying alone can learn it."""
    if rng.random() < 0.5:
        return "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4)))
    letters = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 6)))
    if rng.random() < 0.5:
        return letters + "".join(rng.choices(SYLLABLES, k=rng.randint(1, 2)))
    return rng.choice(SYLLABLES) + letters
