"""The NVIDIA driver of this node, by NVIDIA's own bindings: what cards there are, how they are, what befalls them.

The only room that imports ``pynvml``: its objects become :mod:`cardwise.core.card.facts`, its errors ours. What the
driver or a card does not support is None in that field, is not asked again until the next :meth:`Driver.facts`, and is
told by :meth:`Driver.untold`. A card whose calls do not return costs neither the facts nor the events of the others.
Refuses to judge, and to guard other calls against that: one thread per card does (``agent/cards.py``). Refuses numpy
too: the agent has a budget of memory.

Cards are told apart by UUID alone: the driver's order and its handles move.
"""
