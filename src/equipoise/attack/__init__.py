"""What could the server see? Attacks on releases, from the server's own position.

Every attack takes a ``Server`` (model, mechanism, settings: public) and a ``View`` (previous and released weights,
labels where they are granted), and public data where it needs some. Start at ``view.py``; docs/threat_model.md says
what each attack is granted.
"""

from ..mechanism.protection import NO_PROTECTION
from .descent import Inversion, Search
from .inversion import DLG, MAP, dlg, idlg, invgrad, likelihood, unrolled
from .labels import infer_labels, last_layer_labels
from .lti import lti
from .matched import Effort, matched
from .membership import membership
from .multi_round import Combined, Observation, multi_round
from .view import Server, View

__all__ = [
    "DLG",
    "MAP",
    "NO_PROTECTION",
    "Combined",
    "Effort",
    "Inversion",
    "Observation",
    "Search",
    "Server",
    "View",
    "dlg",
    "idlg",
    "infer_labels",
    "invgrad",
    "last_layer_labels",
    "likelihood",
    "lti",
    "matched",
    "membership",
    "multi_round",
    "unrolled",
]
