"""Every reproduced table and figure of Zhang et al. (arXiv:2305.15148), one file each.

Each file says what its artefact needs, how it is scored, drawn and shown.

An artefact is an ``Artefact`` in a file of its own, and a line in ``registry``; nothing else knows it by name, but for
the claims that rest on it.
"""
