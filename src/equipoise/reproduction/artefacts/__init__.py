"""Every reproduced table and figure, one file each: what it needs, how it is scored, drawn and shown.

An artefact is an ``Artefact`` in a file of its own, and a line in ``registry``; nothing else knows it by name, but for
the claims that rest on it.
"""
