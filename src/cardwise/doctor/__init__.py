"""``cardwise doctor``: names the likely cause of what is wrong, with its evidence and what to do (SPEC H2).

What can be seen is gathered once (``gathering.py``, ``nearby.py``) into one frozen snapshot (``facts.py``); a check is
a pure function from facts to findings, one file each in ``checks/``, with a page of its code in the documentation;
``ranking.py`` puts causes before what follows from them. Refuses to change anything, and to guess where it cannot see:
what could not be looked at is said.
"""
