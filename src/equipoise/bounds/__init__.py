"""The theoretical results of Zhang et al. (arXiv:2305.15148), set beside what a run did.

``run`` reads a run folder and gathers. One file per result measures and reports: ``stationarity`` (Theorem 5.1 and
Corollary 5.1), ``one_step`` (Lemma C.1), ``convergence`` (Theorem 5.2), ``leakage`` (Lemma D.1 and Remark 1).
``theory`` has the right-hand sides as formulas, ``estimates`` the constants, ``page`` the HTML page.
"""
