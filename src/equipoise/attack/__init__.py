"""What could the server see? Attacks on releases, from the server's own position.

Every attack takes a ``Server`` (model, mechanism, settings: public) and a ``View`` (previous and released weights,
labels where they are granted), and public data where it needs some. Start at ``view.py``; docs/threat_model.md says
what each attack is granted, ``registry.py`` lists them.
"""
