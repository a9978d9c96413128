"""The words a conversation says: seeded, so that both legs and every attempt say the same."""

from __future__ import annotations

import random

# Short, common words: most tokenizers make one or two tokens of each, so lengths scale smoothly.
WORD_LIST = (
    "about after again air all along also always and animal another answer any ask away back because been "
    "before begin below between big book both boy build call came can carry change children city close come "
    "could country cut day did different does done door down draw each early earth eat end enough even every "
    "example eye face family far father feet few field find first follow food for form found four from game "
    "gave get girl give good great group grow had half hand hard has have head hear help her here high him "
    "home hope house how idea important into its just keep kind know land large last late learn leave left "
    "letter life light like line list little live long look made make man many may mean men might mile miss "
    "more most mother mountain move much music must name near need never new next night not now number off "
    "often old once one only open other our out over own page paper part people picture place plant play "
    "point read right river run said same saw say school sea second see seem sentence set she should show "
    "side small some song soon sound spell stand start state still stop story study such sun take talk tell "
    "than that their them then there these they thing think this those thought three through time together "
    "took tree try turn two under until use very walk want was watch water way well went were what when "
    "where which while white who why will with without wood word work world would write year young your"
)
WORDS = tuple(WORD_LIST.split())


def words(seed: int, part: int, count: int) -> str:
    """`count` words of `part` of a conversation; a longer text begins with the shorter one of its seed."""
    # A string seed is hashed by random itself (sha512), so equal on every machine and Python.
    source = random.Random(f"{seed}/{part}")
    return " ".join(source.choice(WORDS) for _ in range(count))
