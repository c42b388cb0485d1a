"""The bundled models, and losses and gradients of R sets of parameters at once."""
