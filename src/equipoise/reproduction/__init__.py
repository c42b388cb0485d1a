"""Every table and figure of the paper, computed again and set beside it.

The way of the data: ``plan`` says which federations an artefact needs and what is to be measured on them; ``work``
trains and measures (torch and numpy alone) and writes raw records; ``tables``, ``trends`` and ``claims`` turn records
into cells with verdicts; ``figures`` and ``pages`` show them; ``reproduce`` is the command that does all of it.
"""
