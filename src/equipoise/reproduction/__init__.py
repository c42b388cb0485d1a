"""Every table and figure of the paper, computed again and set beside it.

The way of the data: ``artefacts`` say which federations they need; ``plan`` makes jobs of them; ``job`` trains and
measures (torch and numpy alone) and writes raw records; ``records`` reads these; each artefact scores them into cells
with verdicts, which ``claims`` rest on; ``figures``, ``sections`` and ``pages`` show them; ``reproduce`` is the command
that does all of it.
"""
